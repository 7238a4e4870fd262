"""What people decide: what does not fit is refused and decides nothing; who decided what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.durable.approvals import check_decision, decisions_of
from astromesh.durable.base import JournalStep
from astromesh.errors import InvalidInput
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, write
from tests.integration.durable.test_durable_runs import api, asks, lookup, tool, until

CAREFUL = tool(effect="write", approval="required")
#: a decision that does not fit, and what its refusal names
WRONG = [
    ({"decision": "approve", "arguments": {"query": 5}}, "query: 5 is not of type"),
    ({"decision": "approve", "arguments": {}}, '"query" is a required property'),
    ({"decision": "approve", "answer": "x"}, "answer: "),
    ({"decision": "deny", "arguments": {"query": "b"}}, "arguments: "),
    ({"decision": "deny", "answer": "x"}, "answer: "),
    ({"decision": "answer"}, "answer: "),
    ({"decision": "answer", "answer": None}, "answer: "),
    ({"decision": "answer", "answer": "x", "arguments": {"query": "b"}}, "arguments: "),
]


async def waiting(client: httpx.AsyncClient, agent: str = "helper") -> str:
    body = {"query": "Do it", "session_id": "s-1"}
    answer = (await client.post(f"/v1/agents/{agent}/run", json=body)).json()
    assert answer["status"] == "waiting"
    return str(answer["run_id"])


async def test_a_decision_that_does_not_fit_is_refused_and_the_run_still_waits(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[CAREFUL]))
    async with api(folder, ScriptedProvider(asks("a"), "done"), used := lookup()) as client:
        path = f"/v1/runs/{await waiting(client)}"
        for decision, why in WRONG:
            refused = await client.post(f"{path}/resume", json=decision)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), decision
            assert why in refused.json()["detail"], refused.json()
        run = (await client.get(path)).json()
        assert (run["status"], run["decisions"], used.calls) == ("waiting", [], [])
        fits = {"decision": "approve", "arguments": {"query": "b"}}
        assert (await client.post(f"{path}/resume", json=fits)).status_code == 200
        await until(client, path, lambda found: found["status"] == "completed")
    assert used.calls == [{"query": "b"}]


async def test_who_decided_what_and_when_is_shown_with_the_run_and_told_as_an_event(tmp_path: Path) -> None:
    """The arguments that the model wrote stay beside those that the person wrote instead."""
    folder = write(tmp_path, manifest(tools=[CAREFUL]))
    async with api(folder, ScriptedProvider(asks("a", "b"), "done"), lookup()) as client:
        path = f"/v1/runs/{await waiting(client)}"
        first = {"decision": "approve", "arguments": {"query": "x"}}
        answered = (await client.post(f"{path}/resume", json=first)).json()
        assert [d["decision"] for d in answered["decisions"]] == ["approve"]
        await until(client, path, lambda found: found["status"] == "waiting")
        await client.post(f"{path}/resume", json={"decision": "answer", "answer": "forty-two"})
        run = await until(client, path, lambda found: found["status"] == "completed")
        events = (await client.get(f"{path}/events")).text
        listed = (await client.get("/v1/runs")).json()["runs"]
    one, two = run["decisions"]
    assert (one["by"], one["name"], one["agent"]) == ("anonymous", "lookup", "helper")
    assert {one["arguments"]["query"], two["arguments"]["query"]} == {"a", "b"}
    assert (one["edited"], two["decision"], two["answer"]) == ({"query": "x"}, "answer", "forty-two")
    assert one["asked_at"] <= one["decided_at"] <= two["decided_at"]
    resumed = [json.loads(b.split("data: ")[1]) for b in events.split("\n\n") if "event: run.resumed" in b]
    assert [[d["decision"] for d in data["decisions"]] for data in resumed] == [["approve"], ["answer"]]
    assert "forty-two" not in json.dumps(resumed)  # who, what and when; content stands with the run
    assert "decisions" not in listed[0]


async def test_a_note_is_shown_with_the_decision_and_the_model_reads_why_its_call_was_denied(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider(asks("a"), "done")
    async with api(write(tmp_path, manifest(tools=[CAREFUL])), provider, lookup()) as client:
        path = f"/v1/runs/{await waiting(client)}"
        made = {"decision": "deny", "note": "Not on Sundays."}
        too_long = await client.post(f"{path}/resume", json={**made, "note": "x" * 2001})
        await client.post(f"{path}/resume", json=made)
        run = await until(client, path, lambda found: found["status"] == "completed")
    assert too_long.status_code == 422
    assert run["decisions"][0]["note"] == "Not on Sundays."
    assert "Not on Sundays." in provider.requests[-1].messages[-1].content


async def test_a_decision_is_about_one_call_even_if_a_model_uses_its_id_again(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[CAREFUL]))
    again = [ToolCall("c1", "lookup", '{"query": "a"}')]
    async with api(folder, ScriptedProvider(again, again, "done"), used := lookup()) as client:
        path = f"/v1/runs/{await waiting(client)}"
        await client.post(f"{path}/resume", json={"decision": "approve"})
        await until(client, path, lambda found: found["status"] == "waiting")
        await client.post(f"{path}/resume", json={"decision": "deny"})
        run = await until(client, path, lambda found: found["status"] == "completed")
    assert [decision["decision"] for decision in run["decisions"]] == ["approve", "deny"]
    assert len(used.calls) == 1


async def test_a_question_names_the_agent_whose_call_it_is(tmp_path: Path) -> None:
    nested = [{"name": "ask", "type": "agent", "agent": "helper"}]
    folder = write(tmp_path, manifest(tools=[CAREFUL]), manifest("outer", tools=nested))
    provider = ScriptedProvider([ToolCall("c", "ask", '{"query": "Do"}')], asks("a"), "done", "all done")
    async with api(folder, provider, lookup()) as client:
        path = f"/v1/runs/{await waiting(client, 'outer')}"
        [asked] = (await client.get("/v1/approvals")).json()["approvals"]
        assert (asked["agent"], asked["asking_agent"]) == ("outer", "helper")
        await client.post(f"{path}/resume", json={"decision": "deny"})
        run = await until(client, path, lambda found: found["status"] == "completed")
        [below] = (await client.get("/v1/runs?agent=helper")).json()["runs"]
        assert "decisions" not in (await client.get(f"/v1/runs/{below['run_id']}")).json()
    assert [d["agent"] for d in run["decisions"]] == ["helper"]


@pytest.mark.parametrize(
    ("kind", "decision"),
    [
        ("unknown_outcome", {"decision": "answer", "answer": "it happened"}),
        ("unknown_outcome", {"decision": "approve", "arguments": {}}),
        ("identity", {"decision": "answer", "answer": 1}),
        ("human", {"decision": "approve", "arguments": {}}),
    ],
)
def test_what_a_kind_of_question_does_not_take_is_refused(kind: str, decision: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        check_decision({"kind": kind, "name": "n", "arguments": None}, decision)


def test_a_decision_of_a_version_that_kept_less_is_shown() -> None:
    output = {"kind": "approval", "name": "n", "arguments": {"a": 1}, "decision": "deny", "by": "ann"}
    [shown] = decisions_of([JournalStep("p", 1, "wait", "", "done", output)])
    assert (shown["arguments"], shown["by"], shown["decided_at"]) == ({"a": 1}, "ann", None)
    assert "edited" not in shown
