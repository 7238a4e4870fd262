"""Streams of responses in the background: the server is killed at an event, and the reader goes on."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.reliability.payment_agent import LEASE, agent

TEXT = "the quick brown fox jumps over"
#: created, queued, in progress, item, part, six deltas, text, part, item, completed
EVENTS = 15
#: `make reliability` cuts at every event
CUTS = range(EVENTS) if os.environ.get("ASTROMESH_EVERY_CUT") else (1, 7, EVENTS - 1)


@pytest.fixture(params=("sqlite", "postgres"))
def store(request) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


def config(folder: Path, endpoint: str, store: str) -> Path:
    """An agent whose text streams slowly, and one that calls a tool before it."""
    (folder / "agents").mkdir(parents=True)
    for name, model in {"writer": "mock+tokens=6+gap=60", "teller": "mock+tools=1+tokens=6+gap=60"}.items():
        made = agent(endpoint, "read", "sqlite")
        made["metadata"]["name"] = name
        made["spec"]["model"]["primary"]["model"] = model
        made["spec"]["memory"] = {}
        if name == "writer":
            made["spec"]["tools"] = []
        (folder / "agents" / f"{name}.agent.yaml").write_text(yaml.safe_dump(made))
    (folder / "reliability_effects.py").write_text(
        'def charge(query: str) -> str:\n    """Charges."""\n    return query\n'
    )
    if store:
        runtime = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": {"storage": {"url": store}}}
        (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    return folder


def events_of(url: str, body: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a stream until it ends, or its reader leaves."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


@pytest.mark.timeout(60 + 30 * len(CUTS))
@pytest.mark.parametrize("name", ["writer", "teller"])
def test_a_stream_goes_on_after_the_event_at_which_the_server_was_killed(
    name, store, tmp_path, mock_llm, forked_server
):
    server = forked_server(config(tmp_path / "config", mock_llm.url, store), env=LEASE)
    for cut in CUTS:
        body = {"model": name, "input": "Write.", "stream": True, "background": True}
        stream = events_of(f"{server.url}/v1/responses", body)
        before = [next(stream)]
        while before[-1]["sequence_number"] < cut:
            before.append(next(stream))
        server.kill()
        server.start()
        response = before[0]["response"]["id"]
        after = list(events_of(f"{server.url}/v1/responses/{response}?stream=true&starting_after={cut}"))
        events = [*before, *after]
        assert [event["sequence_number"] for event in events] == list(range(EVENTS)), (cut, events)
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        last = events[-1]
        assert last["type"] == "response.completed"
        (text,) = (part["text"] for item in last["response"]["output"] for part in item["content"])
        assert ("".join(deltas), text.strip()) == (text, TEXT), cut
        assert list(events_of(f"{server.url}/v1/responses/{response}?stream=true")) == events
