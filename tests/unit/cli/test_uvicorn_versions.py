"""The installed uvicorn is one that astromesh's protocols fit: they use names that it does not document."""

from __future__ import annotations

import inspect
import re

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.supervisors import Multiprocess

FITTING_VERSIONS = ("0.54",)

#: what `uvicorn_protocols`, `uvicorn_websocket` and `commands.serve` read, set or override
NAMES = {
    HttpToolsProtocol: (
        "connection_made", "connection_lost", "cycle", "data_received", "handle_websocket_upgrade", "headers",
        "loop", "on_body", "on_headers_complete", "on_message_complete", "parser", "pipeline", "scope",
        "timeout_keep_alive_task", "transport", "url",
    ),
    RequestResponseCycle: (
        "disconnected", "keep_alive", "message_event", "response_complete", "response_started", "scope",
    ),
    WebSocketsSansIOProtocol: (
        "client", "close_sent", "conn", "curr_msg_data_type", "data_received", "disconnected", "frames",
        "handle_connect", "handle_parser_exception", "handshake_complete", "handshake_initiated", "send",
        "send_receive_event_to_app", "transport", "writable",
    ),
    uvicorn.Server: ("handle_exit", "main_loop", "on_tick", "serve", "should_exit", "started", "startup"),
    Multiprocess: ("keep_subprocess_alive", "processes", "run"),
}  # fmt: skip


def test_the_installed_version_is_one_that_the_protocols_were_tested_with() -> None:
    installed = ".".join(uvicorn.__version__.split(".")[:2])
    assert installed in FITTING_VERSIONS, (
        f"astromesh's protocols are tested with uvicorn {', '.join(FITTING_VERSIONS)}, and {installed} is "
        "installed. Compare its httptools_impl.py and websockets_sansio_impl.py with those of a version that "
        "fits, run tests/integration/api, and add the version to FITTING_VERSIONS."
    )


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_uvicorn_has_every_name_that_the_protocols_use(kind: type) -> None:
    present = {*dir(kind), *re.findall(r"self\.(\w+)", inspect.getsource(kind))}
    missing = sorted({*NAMES[kind]} - present)
    assert not missing, f"In uvicorn {uvicorn.__version__}, {kind.__name__} lacks {', '.join(missing)}."
