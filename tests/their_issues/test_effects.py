"""Approvals, failures and retries: effects happen once, and no result is lost.

docs/their-issues.md names the reports of other projects.
"""

from __future__ import annotations

from typing import Any

import pytest

from astromesh import Agent, ToolContext, tool
from astromesh.errors import ApprovalNotFound, ProviderUnavailable
from astromesh.events import ModelDelta
from astromesh.graph import PromptGraph, PromptGraphEngine, interrupt, node
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import ToolCall

Log = list[str]


@tool(approval="required", effect="external")
def delete(name: str, ctx: ToolContext[Log]) -> str:
    """Deletes a record."""
    ctx.deps.append(f"deleted {name}")
    return f"deleted {name}"


@tool
def count(ctx: ToolContext[Log]) -> str:
    """Counts the records."""
    ctx.deps.append("counted")
    return "4 records"


@tool(effect="external")
def charge(ctx: ToolContext[Log]) -> str:
    """Charges a card."""
    ctx.deps.append("charged")
    return "receipt 1"


def deletes(identifier: str, name: str) -> ToolCall:
    return ToolCall(identifier, "delete", f'{{"name": "{name}"}}')


async def test_results_beside_an_approval_reach_the_model_and_their_tools_run_once() -> None:
    log: Log = []
    model = ScriptedProvider([deletes("1", "a"), ToolCall("2", "count", "{}")], "a is gone, 4 are left.")
    agent = Agent(model, tools=[delete, count], deps=log, store="memory")
    waiting = await agent.run("Delete a and count.")
    assert waiting.waiting_for is not None
    assert (await agent.resume(waiting.run_id)).output == "a is gone, 4 are left."
    assert sorted(log) == ["counted", "deleted a"]
    results = {m.tool_call_id: m.content for m in model.requests[1].messages if m.role == "tool"}
    assert results == {"1": "deleted a", "2": "4 records"}


async def test_a_late_decision_about_a_call_never_counts_for_the_next_one() -> None:
    log: Log = []
    agent = Agent(
        ScriptedProvider(deletes("1", "a"), deletes("2", "b"), "Nothing was deleted."),
        tools=[delete],
        deps=log,
        store="memory",
    )
    first = await agent.run("Delete.")
    assert first.waiting_for is not None
    second = await agent.resume(first.run_id, "deny", question=first.waiting_for.id)
    assert second.waiting_for is not None
    with pytest.raises(ApprovalNotFound):
        await agent.resume(first.run_id, "approve", question=first.waiting_for.id)
    assert list(await agent.approvals()) == [second.waiting_for]
    assert (await agent.resume(first.run_id, "deny")).output == "Nothing was deleted."
    assert log == []


@pytest.mark.parametrize("second", ["the same model", "a fallback"])
async def test_a_model_that_fails_after_a_call_is_asked_again_and_the_call_is_not_made_again(
    second: str,
) -> None:
    log: Log = []
    script = (ToolCall("1", "charge", "{}"), ProviderUnavailable("Down."))
    answers = ScriptedProvider("Charged once.", name="scripted/second")
    if second == "a fallback":
        agent = Agent(ScriptedProvider(*script), fallback=[answers], tools=[charge], deps=log)
    else:
        agent = Agent(ScriptedProvider(*script, "Charged once."), tools=[charge], deps=log)
    assert (await agent.run("Charge the card.")).output == "Charged once."
    assert log == ["charged"]


@pytest.mark.parametrize("text", ["", "\n\n", "I will charge the card."])
async def test_text_before_a_call_does_not_end_a_stream(text: str) -> None:
    log: Log = []
    called = Reply(content=text, chunks=(text,), tool_calls=[ToolCall("1", "charge", "{}")])
    agent = Agent(ScriptedProvider(called, "Charged."), tools=[charge], deps=log)
    stream = agent.stream("Charge the card.")
    heard = "".join([event.content async for event in stream if isinstance(event, ModelDelta)])
    assert (stream.result.output, log) == ("Charged.", ["charged"])
    assert heard.endswith("Charged.")


async def test_calls_of_a_node_that_asks_in_a_loop_are_made_once_for_each_round() -> None:
    """The function begins again with each answer; what it has called comes from the record."""
    log: Log = []

    @tool
    def draft(n: int) -> str:
        """Writes a draft."""
        log.append(f"draft {n}")
        return f"draft {n}"

    @node("review", tools=[draft])
    async def review(state: Any, config: Any) -> str:
        for n in range(1, 10):
            [result] = await config.call_tools([ToolCall(str(n), "draft", f'{{"n": {n}}}')], state)
            if await interrupt(result.content) == "ok":
                return str(result.content)
        return "none"

    engine = PromptGraphEngine(PromptGraph("g", nodes=[review]), store="memory")
    result = await engine.ainvoke("Write.")
    for answer in ("shorter", "shorter", "ok"):
        [question] = result.interrupts
        result = await engine.resume(result.run_id, {question.id: answer})
    assert (result.output, log) == ("draft 3", ["draft 1", "draft 2", "draft 3"])
