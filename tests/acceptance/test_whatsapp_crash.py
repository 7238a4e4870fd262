"""A server that is killed between the webhook's 200 and the answer loses nothing (reliability.md R1)."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.testing.whatsapp import sign_webhook, text_message, webhook
from tests.integration.agents_folder import manifest, write
from tests.integration.channels.whatsapp_server import HOOK, SECRET, channel_file
from tests.platform.astromesh import ROOT
from tests.platform.processes import Command, Server, fetch, free_port, plain_environment, port_is_open


class Graph:
    """The fake Graph API as a process."""

    def __init__(self, home: Path) -> None:
        port = free_port()
        self._origin = f"http://127.0.0.1:{port}"
        self.api_base = f"{self._origin}/v23.0"
        argv = [sys.executable, "-m", "astromesh.testing.whatsapp", "--port", str(port)]
        command = Command(argv, plain_environment(home), ROOT)
        self.server = Server(command, home / "graph.log", lambda: port_is_open(port))

    def sent(self) -> list[str]:
        return [m["text"]["body"] for m in json.loads(fetch(f"{self._origin}/sent"))["messages"]]


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    graph = Graph(tmp_path)
    graph.server.start()
    yield graph
    graph.server.kill()


def post(url: str, data: Any) -> int:
    body, headers = sign_webhook(SECRET, data)
    request = urllib.request.Request(url + HOOK, body, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return int(answer.status)


def until(reached: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def test_kill_between_insert_and_answer_loses_nothing(tmp_path, server_process, mock_llm, graph) -> None:
    """Killed while the model thinks; what came is answered after the restart, in its session."""
    model = {"provider": "openai", "endpoint": mock_llm.url, "api_key": "k", "model": "mock+say=Answered"}
    agent = manifest("helper", memory={"conversational": {"backend": "sqlite"}})
    agent["spec"]["model"] = {"primary": model}
    config = write(tmp_path / "config", agent)
    channel_file(config, graph.api_base, lease_seconds=1)
    (config / "providers.yaml").write_text(
        yaml.safe_dump({"apiVersion": "astromesh/v1", "kind": "ProviderConfig", "spec": {"providers": {}}})
    )
    mock_llm.script(
        {"text": "First."}, {"latency": 60_000, "text": "never"}, {"latency": 60_000, "text": "never"}
    )
    server = server_process(config)
    assert post(server.url, webhook(text_message("0", "before", "111"))) == 200
    until(lambda: len(graph.sent()) == 1)
    waiting = webhook(
        text_message("1", "one", "111"), text_message("2", "two", "111"), text_message("3", "uno", "222")
    )
    assert post(server.url, waiting) == 200
    until(lambda: mock_llm.stats()["chats"] == 3)
    assert server.kill() == -9
    server.start()
    assert post(server.url, waiting) == 200
    until(lambda: len(graph.sent()) == 4)
    assert post(server.url, webhook(text_message("4", "after", "111"))) == 200
    until(lambda: len(graph.sent()) == 5)
    assert graph.sent() == ["First.", "Answered", "Answered", "Answered", "Answered"]
    chats = [[m["content"] for m in body["messages"] if m["role"] == "user"] for body in mock_llm.requests()]
    assert chats[-1] == ["before", "one", "two", "after"], "in order, each once"
