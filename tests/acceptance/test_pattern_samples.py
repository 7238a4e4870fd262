"""The sample agent of every pattern, over HTTP, against one server process without any key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.platform.astromesh import ROOT, ServerProcess

#: agent → its pattern, and what its metadata says of how it worked
SAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "plan-agent": ("plan_and_execute", {"replans": 0}),
    "second-opinion-agent": ("parallel_fan_out", {"chosen": "careful"}),
    "editor-agent": ("pipeline", {"stages": ["research", "edit"]}),
    "help-desk-agent": ("supervisor", {"delegations": [{"agent": "account-agent", "ok": True}]}),
    "front-desk-agent": ("swarm", {"answered_by": "account-agent", "handoffs": []}),
    "account-agent": ("react", {}),
    "billing-agent": ("react", {}),
    "explorer-agent": ("autonomous", {}),
    "debate-agent": ("graph", {}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(tmp_path_factory.mktemp("samples"), ROOT / "config")
    try:
        process.start()
        yield process.url
    finally:
        process.close()
    assert process.network_attempts() == []


@pytest.mark.parametrize("agent", SAMPLES)
def test_a_sample_answers_from_the_knowledge(server: str, agent: str) -> None:
    """With the passage, its source, and its own pattern's account of the run."""
    pattern, account = SAMPLES[agent]
    done = _run(server, agent, "How do I reset my password?")
    assert "Settings > Security > Reset password" in done["response"]
    assert "account-and-password.md" in done["response"]
    metadata = done["metadata"]
    assert (metadata["pattern"], metadata["stop_reason"]) == (pattern, "completed")
    assert {key: metadata[key] for key in account} == account
    assert metadata["tokens_used"] > 0


@pytest.mark.parametrize(
    ("agent", "account"),
    [
        ("help-desk-agent", {"delegations": [{"agent": "billing-agent", "ok": True}]}),
        (
            "front-desk-agent",
            {
                "answered_by": "billing-agent",
                "handoffs": [{"from": "account-agent", "to": "billing-agent"}],
                "tools_called": ["search_knowledge_base"],
            },
        ),
    ],
)
def test_a_question_goes_to_the_agent_it_is_for(server: str, agent: str, account: dict[str, object]) -> None:
    """By delegation and by hand-off, also without a language model."""
    done = _run(server, agent, "How do I get a refund of my invoice?")
    assert "we refund the full price" in done["response"]
    assert {key: done["metadata"][key] for key in account} == account


def test_a_question_for_two_workers_is_not_answered_with_a_list_of_them(server: str) -> None:
    """The supervisor's prompt lists its workers and what they know: words of the question, but no answer."""
    done = _run(server, "help-desk-agent", "How do I get a refund and reset my password?")
    assert "Delegates a task" not in done["response"]
    assert "Source: " in done["response"]


@pytest.mark.parametrize("agent", SAMPLES)
def test_a_sample_streams_what_it_answers(server: str, agent: str) -> None:
    """The tokens of the last step, joined, are the response of the same request without a stream."""
    question = "How do I change my e-mail address?"
    steps: dict[int, str] = {}
    response = ""
    for kind, data in _events(server, agent, question):
        if kind == "model.delta" and data["role"] == "assistant":
            steps[data["step"]] = steps.get(data["step"], "") + data["content"]
        elif kind == "run.completed":
            response = data["response"]
    assert list(steps.values())[-1] == response == _run(server, agent, question)["response"]


def _run(server: str, agent: str, question: str) -> dict[str, Any]:
    body = {"query": question, "session_id": f"of {question}"}
    done = httpx.post(f"{server}/v1/agents/{agent}/run", json=body, timeout=30)
    assert done.status_code == 200, done.text
    answer: dict[str, Any] = done.json()
    return answer


def _events(server: str, agent: str, question: str) -> Iterator[tuple[str, dict[str, Any]]]:
    body = {"query": question, "session_id": "streamed"}
    headers = {"Accept": "text/event-stream"}
    url = f"{server}/v1/agents/{agent}/run"
    kind = ""
    with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as stream:
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))
