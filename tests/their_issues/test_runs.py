"""Cancels, sessions and concurrent runs.

docs/their-issues.md names the reports of other projects.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from astromesh import Agent, ToolContext, tool
from astromesh.errors import NotWaiting
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall

SAVE = ToolCall("1", "save", "{}")


@dataclass
class Cards:
    """What one caller's run has: the name of its card, and what was saved."""

    name: str
    saved: list[str] = field(default_factory=list)


async def test_a_tool_that_swallows_a_cancel_does_not_complete_its_run() -> None:
    begun, model = asyncio.Event(), ScriptedProvider(SAVE, "It completed.")

    @tool
    async def save() -> str:
        """Saves, and hides the cancel."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved in spite of it"
        return ""

    run = asyncio.create_task(Agent(model, tools=[save]).run("Save."))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert len(model.requests) == 1


async def test_a_session_goes_on_after_a_cancel_in_the_middle_of_a_call() -> None:
    """No call without a result is left for the next request."""
    begun, model = asyncio.Event(), ScriptedProvider(SAVE, "Here I am.")

    @tool
    async def save() -> str:
        """Saves, for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    chat = Agent(model, tools=[save], memory="memory").session("ada")
    run = asyncio.create_task(chat.run("Save."))
    await begun.wait()
    run.cancel()
    await asyncio.wait([run])
    assert (await chat.run("Are you there?")).output == "Here I am."
    sent = model.requests[1].messages
    called = [call.id for message in sent for call in message.tool_calls or ()]
    assert called == [message.tool_call_id for message in sent if message.role == "tool"]


async def refusal(agent: Agent, run_id: str) -> str:
    """Why a run cannot be resumed: it says in which state it is."""
    with pytest.raises(NotWaiting) as refused:
        await agent.resume(run_id)
    return str(refused.value)


async def test_a_run_that_continues_after_an_approval_is_cancelled_like_any_other() -> None:
    begun, cancelled, model = asyncio.Event(), asyncio.Event(), ScriptedProvider(SAVE, "It completed.")

    @tool(approval="required")
    async def save() -> str:
        """Saves, for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    agent = Agent(model, tools=[save], store="memory")
    waiting = await agent.run("Save.")
    resumed = asyncio.create_task(agent.resume(waiting.run_id))
    await begun.wait()
    resumed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resumed
    await cancelled.wait()
    async with asyncio.timeout(60):
        while "is running" in (said := await refusal(agent, waiting.run_id)):
            await asyncio.sleep(0.01)
    assert "cancelled" in said
    assert len(model.requests) == 1


async def test_runs_at_once_of_one_agent_keep_their_own_data_and_turns() -> None:
    """Twenty callers; every tool runs only when all twenty runs are inside it."""
    barrier = asyncio.Barrier(20)

    @tool
    async def save(ctx: ToolContext[Cards]) -> str:
        """Saves the card of the caller."""
        await barrier.wait()
        ctx.deps.saved.append(f"{ctx.deps.name} in {ctx.session.session_id}")
        return ctx.deps.name

    def model(request: CompletionRequest) -> str | ToolCall:
        last = request.messages[-1]
        return f"Saved {last.content}." if last.role == "tool" else SAVE

    agent = Agent(ScriptedProvider(model, repeat=True), tools=[save], memory="memory")
    callers = [Cards(f"card {n}") for n in range(20)]
    results = await asyncio.gather(
        *(agent.session(f"s{n}").run(f"Save {n}.", deps=one) for n, one in enumerate(callers))
    )
    assert [one.saved for one in callers] == [[f"card {n} in s{n}"] for n in range(20)]
    assert [result.output for result in results] == [f"Saved card {n}." for n in range(20)]
