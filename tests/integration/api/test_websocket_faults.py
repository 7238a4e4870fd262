"""Faults of ours on a WebSocket: an error frame, and the socket and its runs go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.api.event_streams import json_bytes
from astromesh.durable.leases import WorkerHeartbeat
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer
from astromesh.runtime.runner import AgentRunner
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

RUN = {"query": "go", "session_id": "s"}
PATH = "/v1/ws/agent/helper"


class BrokenRunner(AgentRunner):
    """A runner whose first runs end in a way that nobody has foreseen."""

    broken_runs = 1

    async def start(self, *args: Any, **parts: Any) -> RunAnswer:
        if self.broken_runs:
            self.broken_runs -= 1
            raise ZeroDivisionError("the secret inside")
        return await super().start(*args, **parts)


class Broken(AgentRuntime):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, data_dir=folder / "data", env={})
        heartbeat = WorkerHeartbeat(self.data_dir)
        self.runner = BrokenRunner(self.directory, self.stores, self.clock, self.metrics, heartbeat)


def test_a_run_that_nobody_foresaw_is_told_and_the_socket_lives(tmp_path: Path) -> None:
    write(tmp_path, manifest(model={"primary": {"provider": "embedded"}}))
    runtime = Broken(tmp_path)
    with TestClient(create_app(runtime)) as client, client.websocket_connect(PATH) as socket:
        socket.send_json(RUN)
        frame = socket.receive_json()
        assert (frame["type"], frame["code"]) == ("error", "internal")
        assert "secret" not in frame["detail"]
        socket.send_json(RUN)
        assert socket.receive_json()["type"] == "run_started"


def test_a_frame_that_makes_the_server_fail_is_told_and_the_socket_lives(tmp_path: Path) -> None:
    class Worse(Broken):
        @property
        def runs(self) -> Any:
            raise ZeroDivisionError

        @runs.setter
        def runs(self, value: Any) -> None:
            pass

    write(tmp_path, manifest(model={"primary": {"provider": "embedded"}}))
    runtime = Worse(tmp_path)
    with TestClient(create_app(runtime)) as client, client.websocket_connect(PATH) as socket:
        socket.send_json({"type": "cancel", "run_id": "x"})
        assert socket.receive_json()["code"] == "internal"
        socket.send_json({"type": "ping"})
        assert socket.receive_json() == {"type": "pong"}


def test_text_that_has_no_utf8_form_reaches_the_client_escaped(tmp_path: Path) -> None:
    """A plugin's model may answer half a surrogate pair."""
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("half \ud83d", "next"))
    with TestClient(create_app(runtime)) as client, client.websocket_connect(PATH) as socket:
        for expected in ("half \ud83d", "next"):
            socket.send_json(RUN)
            frames = [socket.receive_json()]
            while frames[-1]["type"] not in ("done", "error"):
                frames.append(socket.receive_json())
            assert frames[-1]["type"] == "done"
            assert frames[-1]["response"] == expected


CIRCLE: dict[str, Any] = {}
CIRCLE["self"] = CIRCLE


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [1, "x", None]}, {"a": [1, "x", None]}),
        ({"a": 2**70}, {"a": 2**70}),
        ({"a": "\ud83d"}, {"a": "\ud83d"}),
        ({1: b"x"}, {"1": "b'x'"}),
        ({"a": {1, 2}}, {"a": "{1, 2}"}),
        (CIRCLE, {"self": "{'self': {...}}"}),
    ],
    ids=["plain", "a large number", "half a pair", "bytes", "a set", "a circle"],
)
def test_every_value_has_a_form(value: Any, read: Any) -> None:
    assert json.loads(json_bytes(value)) == read


def test_a_broken_agent_is_told_as_over_http_and_closed_as_unavailable(tmp_path: Path) -> None:
    """Not as one that nobody knows; and where the configuration lies is told to no client."""
    write(tmp_path, manifest(orchestration={"patern": "react"}))
    runtime = AgentRuntime(tmp_path, data_dir=tmp_path / "data", env={})
    with TestClient(create_app(runtime)) as client, client.websocket_connect(PATH) as socket:
        frame = socket.receive_json()
        closed = socket.receive()
        answer = client.post("/v1/agents/helper/run", json=RUN).json()
    assert frame == {"type": "error", "code": "agent_unavailable", "detail": answer["detail"]}
    assert "agents/helper.agent.yaml:" in frame["detail"]
    assert str(tmp_path) not in frame["detail"]
    assert (closed["type"], closed["code"]) == ("websocket.close", 4503)
