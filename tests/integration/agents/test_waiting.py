"""Runs of agents from Python that wait for a person: asked, listed, decided, also by another program."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astromesh import Agent, CallerContext, ToolContext, tool
from astromesh.errors import (
    ApprovalRequired,
    AstromeshError,
    ConfigError,
    InvalidInput,
    NotWaiting,
    ProviderUnauthorized,
    RunNotFound,
)
from astromesh.events import RunWaiting
from astromesh.graph import FunctionNode, PromptGraph, PromptNode, interrupt
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall

PAY = ToolCall("1", "pay", '{"to": "Ada", "amount": 7}')


@tool(approval="required", effect="external")
def pay(to: str, amount: int, ctx: ToolContext[dict[str, int]]) -> str:
    """Pays."""
    ctx.deps[to] = ctx.deps.get(to, 0) + amount
    return f"paid {amount} to {to}"


def payer(*script: Any, store: str | None = "memory", **keys: Any) -> Agent[dict[str, int], str]:
    return Agent(ScriptedProvider(*script), tools=[pay], store=store, **keys)


async def test_a_run_waits_and_continues_with_the_decision() -> None:
    """It is no failure: nothing is raised until somebody asks for the answer."""
    agent = payer(PAY, "Done.")
    waiting = await agent.run("Pay Ada.", deps={})
    question = waiting.waiting_for
    assert question is not None
    assert (question.kind, question.name, question.arguments) == (
        "approval",
        "pay",
        {"to": "Ada", "amount": 7},
    )
    assert (waiting.ok, waiting.stop_reason, waiting.text) == (False, "waiting", "")
    with pytest.raises(ApprovalRequired, match="resume") as raised:
        _ = waiting.output
    assert (raised.value.run_id, raised.value.trace_id) == (waiting.run_id, waiting.trace_id)
    assert raised.value.waiting_for
    assert (question.agent, question.asked_at < question.expires_at) == ("agent", True)
    assert list(await agent.approvals()) == [question]

    accounts: dict[str, int] = {}
    result = await agent.resume(
        waiting.run_id, "approve", arguments={"to": "Ada", "amount": 9}, deps=accounts
    )
    assert (result.output, result.run_id, accounts) == ("Done.", waiting.run_id, {"Ada": 9})
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.usage.input_tokens
    assert list(await agent.approvals()) == []


async def test_a_denied_call_is_not_made() -> None:
    accounts: dict[str, int] = {}
    agent = payer(PAY, "I did not pay.", deps=accounts)
    waiting = await agent.run("Pay Ada.")
    assert (await agent.resume(waiting.run_id, "deny")).output == "I did not pay."
    assert accounts == {}


def test_another_program_with_the_store_continues(tmp_path: Path) -> None:
    """Whatever the first has done is not repeated; a program has an event loop of its own for each call."""
    store, accounts = f"sqlite:{tmp_path / 'runs.db'}", dict[str, int]()
    first = payer(PAY, store=store)
    waiting = first.run_sync("Pay Ada.", deps=accounts)
    second = payer("Done.", store=store)
    assert second.resume_sync(waiting.run_id, deps=accounts).output == "Done."
    assert accounts == {"Ada": 7}
    assert isinstance(second.resume_sync(waiting.run_id, on_error="return").error, NotWaiting)


async def test_a_second_question_waits_again() -> None:
    twice = [PAY, ToolCall("2", "pay", '{"to": "Eve", "amount": 1}')]
    accounts: dict[str, int] = {}
    agent = payer(*twice, "Both paid.", deps=accounts)
    waiting = await agent.run("Pay both.")
    waiting = await agent.resume(waiting.run_id)
    assert waiting.waiting_for is not None
    assert waiting.waiting_for.arguments == {"to": "Eve", "amount": 1}
    assert (await agent.resume(waiting.run_id)).output == "Both paid."
    assert accounts == {"Ada": 7, "Eve": 1}


async def test_questions_of_one_turn_are_decided_in_any_order() -> None:
    turn = [PAY, ToolCall("2", "pay", '{"to": "Eve", "amount": 1}')]
    accounts: dict[str, int] = {}
    agent = payer(turn, "Eve is paid.", deps=accounts)
    waiting = await agent.run("Pay both.")
    first, second = await agent.approvals()
    assert (first, [first.run_id, second.run_id]) == (waiting.waiting_for, [waiting.run_id] * 2)
    waiting = await agent.resume(second.run_id, "approve", question=second.id)
    assert waiting.waiting_for == first
    assert (await agent.resume(waiting.run_id, "deny")).output == "Eve is paid."
    assert accounts == {"Eve": 1}


async def test_the_stream_of_a_run_ends_with_the_question() -> None:
    agent = payer(PAY, "Done.", deps={})
    stream = agent.stream("Pay Ada.")
    events = [event async for event in stream]
    assert isinstance(events[-1], RunWaiting)
    assert events[-1].approval["name"] == "pay"
    assert stream.result.waiting_for is not None
    assert (await agent.resume(stream.result.run_id)).ok


async def test_conversations_go_on_after_the_decision() -> None:
    agent = payer(PAY, "Done.", "Seven.", deps={}, memory="memory")
    chat = agent.session("ada")
    waiting = await chat.run("Pay Ada.")
    result = await agent.resume(waiting.run_id)
    assert (result.output, result.session_id) == ("Done.", "ada")
    after = await chat.run("How much?")
    assert [m.content for m in after.messages] == ["Pay Ada.", "Done.", "How much?", "Seven."]


async def test_nodes_of_a_graph_ask_too() -> None:
    """An agent with a store has only runs that can wait."""

    async def order(state: Any) -> str:
        return f"size {await interrupt({'question': 'Which size?'})}"

    graph = PromptGraph("shop", nodes=[FunctionNode("order", order)])
    agent = Agent(ScriptedProvider(), pattern=graph, store="memory")
    waiting = await agent.run("A shirt.")
    assert waiting.waiting_for is not None
    assert (waiting.waiting_for.kind, waiting.waiting_for.text) == ("interrupt", "Which size?")
    assert (await agent.resume(waiting.run_id, "answer", answer="L")).output == "size L"
    assert (await Agent(ScriptedProvider("Hi."), store="memory").run("Hi")).output == "Hi."


async def test_ainvoke_returns_what_a_run_waits_for() -> None:
    agent = payer(PAY, "Done.", deps={})
    waiting = await agent.ainvoke("Pay Ada.")
    [question] = waiting.interrupts
    assert (waiting.report.stop_reason, question.kind, question.node) == ("waiting", "approval", "pay")
    assert (await agent.resume(waiting.run_id, question=question.id)).output == "Done."


async def test_a_stored_run_fails_with_its_own_error_and_ends_with_its_reader() -> None:
    """As a run without a store: the error of the provider is the cause, and leaving cancels."""
    refused = ProviderUnauthorized("The key is wrong.")
    with pytest.raises(AstromeshError, match="Check the API key") as failed:
        await Agent(ScriptedProvider(refused, repeat=True), store="memory").run("Hi")
    assert failed.value.__cause__ is refused

    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request: CompletionRequest) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    for leave in ("stream", "run"):
        begun.clear()
        cancelled.clear()
        agent = Agent(slow, store="memory")
        if leave == "stream":
            async with agent.stream("Hi") as stream:
                async for event in stream:
                    if event.type == "model.started":
                        break
        else:
            run = asyncio.create_task(agent.run("Hi"))
            await begun.wait()
            run.cancel()
            await asyncio.wait([run])
        await asyncio.wait_for(cancelled.wait(), 10)


async def test_what_cannot_be_resumed_is_said() -> None:
    agent = payer(PAY, "Done.", deps={})
    with pytest.raises(RunNotFound, match="run_none"):
        await agent.resume("run_none")
    waiting = await agent.run("Pay Ada.")
    with pytest.raises(InvalidInput, match="amount"):
        await agent.resume(waiting.run_id, arguments={"to": "Ada"})
    with pytest.raises(RunNotFound):
        await agent.resume(waiting.run_id, caller=CallerContext(user_id="eve"))
    assert (await agent.resume(waiting.run_id)).ok
    with pytest.raises(NotWaiting):
        await agent.resume(waiting.run_id)
    failed = await agent.resume(waiting.run_id, on_error="return")
    assert isinstance(failed.error, NotWaiting)


async def test_who_resumes_a_running_run_learns_when_another_process_would_continue_it() -> None:
    async def resume_itself(ctx: ToolContext[None]) -> str:
        failed = await agent.resume(ctx.run_id, on_error="return")
        return str(failed.error)

    agent = Agent(
        ScriptedProvider(ToolCall("1", "resume_itself", "{}"), "Done."), tools=[resume_itself], store="memory"
    )
    result = await agent.run("Hello")
    assert "it is running. If its process has died, one with this store continues it within" in str(
        result.messages
    )


def test_a_store_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="names no store"):
        payer(store="mysql://x")


async def test_waiting_runs_may_stand_in_postgresql(postgres_database: str) -> None:
    first = payer(PAY, store=postgres_database, deps={})
    waiting = await first.run("Pay Ada.")
    await first.close()
    accounts: dict[str, int] = {}
    second = payer("Done.", store=postgres_database, deps=accounts)
    assert (await second.resume(waiting.run_id)).output == "Done."
    assert accounts == {"Ada": 7}
    await second.close()


async def test_tools_of_the_nodes_of_a_graph_wait_too() -> None:
    graph = PromptGraph("shop", nodes=[PromptNode("p", tools=[pay])])
    agent = Agent(ScriptedProvider(PAY, "Done."), pattern=graph, store="memory")
    waiting = await agent.run("Pay Ada.", deps={})
    assert waiting.waiting_for is not None
    accounts: dict[str, int] = {}
    result = await agent.resume(waiting.run_id, "approve", deps=accounts)
    assert (result.text, accounts) == ("Done.", {"Ada": 7})


@pytest.mark.parametrize(("keys", "asks"), [("", True), (", approval: none", False)])
async def test_keys_of_a_function_hold_in_yaml_unless_its_block_has_them(
    keys: str, asks: bool, tmp_path: Path
) -> None:
    path = tmp_path / "payer.agent.yaml"
    path.write_text(
        "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: payer}\nspec:\n"
        "  model: {primary: {provider: openai, model: gpt-4o}}\n"
        f'  tools: [{{name: pay, type: internal, function: "{__name__}:pay"{keys}}}]\n'
    )
    accounts: dict[str, int] = {}
    agent = Agent.from_yaml(path, store="memory", deps=accounts)
    with agent.override(model=ScriptedProvider(PAY, "Done.")):
        result = await agent.run("Pay Ada.")
    assert (result.waiting_for is not None, accounts) == (asks, {} if asks else {"Ada": 7})
