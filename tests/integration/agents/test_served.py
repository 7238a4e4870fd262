"""Agents from Python in a server: the runtime opens their declarations beside those of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh import Agent, AgentRuntime, ToolContext, tool
from astromesh.errors import ConfigError
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write


@tool
def balance(ctx: ToolContext[dict[str, int]], account: str) -> int:
    """The balance of an account."""
    return ctx.deps[account]


def bank() -> tuple[Agent[Any, str], ScriptedProvider]:
    model = ScriptedProvider(ToolCall("1", "balance", '{"account": "ada"}'), "Seven.", "Seven, still.")
    agent = Agent(
        model,
        name="bank",
        system="Be brief.",
        tools=[balance],
        memory="memory",
        guardrails=["pii_detection"],
        deps={"ada": 7},
    )
    return agent, model


async def test_a_server_of_agents_from_python_alone(tmp_path: Path) -> None:
    agent, model = bank()
    async with client_of(AgentRuntime(agents=[agent], data_dir=tmp_path / "data")) as http:
        listed = (await http.get("/v1/agents")).json()
        asked = {"query": "Mine? I am ada@example.org.", "session_id": "s"}
        first = (await http.post("/v1/agents/bank/run", json=asked)).json()
        await http.post("/v1/agents/bank/run", json={"query": "Still?", "session_id": "s"})
        runs = (await http.get("/v1/runs")).json()
        trace = (await http.get(f"/v1/traces/{first['metadata']['trace_id']}")).json()
        ready = await http.get("/health/ready")
    assert [one["name"] for one in listed["agents"]] == ["bank"]
    assert (first["response"], first["metadata"]["tools_called"]) == ("Seven.", ["balance"])
    assert "ada@example.org" not in str(model.requests)
    assert [m.role for m in model.requests[2].messages] == ["system", "user", "assistant", "user"]
    assert len(runs["runs"]) == 2
    assert any(span["name"] == "tool balance" or "balance" in str(span) for span in trace["spans"])
    assert ready.status_code == 200


async def test_a_run_of_the_library_emits_what_a_run_over_http_emits(tmp_path: Path) -> None:
    """One pipeline: the events of both are the same, in the same order."""
    agent, _ = bank()
    stream = agent.stream("Mine?", session_id="s")
    alone = [event.type async for event in stream]
    agent, _ = bank()
    async with client_of(AgentRuntime(agents=[agent], data_dir=tmp_path / "data")) as http:
        body = {"query": "Mine?", "session_id": "s"}
        answer = await http.post("/v1/agents/bank/run", json=body, headers={"accept": "text/event-stream"})
    served = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert alone == served
    assert alone[0] == "run.started" and alone[-1] == "run.completed" and "guardrails.checked" in alone


async def test_agents_from_python_stand_beside_those_of_a_folder(tmp_path: Path) -> None:
    """One replaces the agent of its name, and agents of both kinds call each other."""
    calls = [{"name": "ask", "type": "agent", "agent": "bank"}]
    folder = write(tmp_path, manifest("clerk", tools=calls), manifest("bank"), manifest("other"))
    agent, _ = bank()
    scripted = ScriptedProvider(ToolCall("1", "ask", '{"query": "Mine?"}'), "It is seven.")
    runtime = runtime_of(folder, scripted, agents=[agent])
    async with runtime:
        assert sorted(runtime.agents) == ["bank", "clerk", "other"]
        answer = await runtime.run("clerk", "What is mine?", "s")
    assert answer.response == "It is seven."
    assert "Seven." in scripted.requests[1].messages[-1].content


def test_two_agents_of_one_name_are_refused() -> None:
    first, second = bank()[0], bank()[0]
    with pytest.raises(ConfigError, match="Two agents are named 'bank'"):
        AgentRuntime(agents=[first, second])
