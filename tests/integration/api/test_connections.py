"""Open sockets are known to the server (document 001, step 1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from astromesh.api.app import create_app
from astromesh.api.ws import SERVICE_RESTART, ConnectionManager
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write


def test_open_sockets_are_told_to_come_back_when_the_server_ends(tmp_path: Path) -> None:
    """With close code 1012; a socket that has gone is not known any more."""
    app = create_app(runtime_of(write(tmp_path, manifest()), ScriptedProvider("Hi.")))
    with TestClient(app) as client:
        with client.websocket_connect("/v1/ws/agent/helper") as socket:
            assert client.portal is not None
            sockets: ConnectionManager = app.state.connections
            client.portal.call(sockets.close_all)
            with pytest.raises(WebSocketDisconnect) as told:
                socket.receive_json()
        assert (told.value.code, len(sockets)) == (SERVICE_RESTART, 0)
