"""What results have, of failed runs too; messages, models and event loops that a program brings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from astromesh import Agent
from astromesh.errors import AllProvidersFailed, ProviderTimeout, ProviderUnavailable
from astromesh.graph import FunctionNode, PromptGraph
from astromesh.providers.base import Capabilities
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import Attachment, CompletionRequest, CompletionResult, Message, ToolCall, Usage

LOOK_UP = ToolCall("1", "look_up", "{}")


def look_up() -> str:
    """Looks something up."""
    return "found"


# -- runs that fail ------------------------------------------------------------------------------------------


async def test_a_failed_run_has_its_conversation_its_cost_and_the_failed_tries() -> None:
    broken = Reply("Half an ", chunks=("Half an ",), error=ProviderUnavailable("It broke."))
    agent = Agent(ScriptedProvider(LOOK_UP, broken), tools=[look_up], memory="memory")
    stream = agent.stream("Hi", session_id="s", on_error="return")
    [event async for event in stream]
    failed = stream.result
    assert (failed.text, failed.stop_reason, failed.session_id) == ("Half an ", "failed", "s")
    assert isinstance(failed.error, AllProvidersFailed)
    assert (failed.error.run_id, failed.error.trace_id) == (failed.run_id, failed.trace_id)
    assert [message.role for message in failed.messages] == ["user", "assistant", "tool", "assistant"]
    assert failed.messages[-1] == Message("assistant", "Half an ")
    assert failed.usage.input_tokens > 0
    [attempt] = failed.metadata["attempts"]
    assert (attempt["provider"], attempt["error"]) == ("scripted/test-model", "provider_unavailable")
    assert [one["node"] for one in failed.metadata["errors"]] == ["react"]


async def test_an_answer_that_no_model_has_given_is_the_last_message() -> None:
    graph = PromptGraph("made", nodes=[FunctionNode("make", lambda state: "made")])
    result = await Agent(ScriptedProvider(), pattern=graph).run("Hi")
    assert list(result.messages) == [Message("user", "Hi"), Message("assistant", "made")]
    assert result.usage == Usage()


async def test_a_refused_run_has_what_was_asked() -> None:
    def polite(text: str) -> bool | None:
        return False if "!" in text else None

    before = [Message("user", "Hi"), Message("assistant", "Hello.")]
    agent = Agent(ScriptedProvider(), guardrails=[polite])
    refused = await agent.run("Well!", history=before, on_error="return")
    assert list(refused.messages) == [*before, Message("user", "Well!")]
    assert (refused.text, refused.usage) == ("", Usage())


# -- conversations that a program passes ---------------------------------------------------------------------

PICTURE = Attachment(data="R0lGODlh", media_type="image/gif")


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (
            [Message("assistant", "Hello"), Message("user", "Look", attachments=(PICTURE,))],
            [("assistant", "Hello", 0), ("user", "Look", 1)],
        ),
        (
            [Message("user", "Look", attachments=(PICTURE,)), Message("assistant", "Well?")],
            [("user", "Look", 1), ("assistant", "Well?", 0), ("user", "", 0)],
        ),
    ],
)
async def test_messages_keep_their_order_and_their_attachments(
    given: list[Message], asked: list[Any]
) -> None:
    model = ScriptedProvider("A dog.")
    result = await Agent(model, memory="memory").ainvoke(given)
    messages = model.requests[0].messages
    assert [(one.role, one.content, len(one.attachments)) for one in messages] == asked
    assert [one.content for one in result.messages] == [*(text for _, text, _ in asked), "A dog."]


async def test_a_failed_ainvoke_reports_its_error_and_what_its_nodes_have_done() -> None:
    slow = ScriptedProvider(LOOK_UP, ProviderTimeout("It took too long."))
    failed = await Agent(slow, tools=[look_up]).ainvoke("Hi")
    assert "It took too long." in failed.report.error
    assert (failed.output, failed.report.stop_reason) == (None, "failed")
    assert set(failed.report.nodes_visited) == {"react"}
    strict = Agent(ScriptedProvider("a"), guardrails=[{"type": "max_length", "max_chars": 1}])
    refused = await strict.ainvoke("Hi")
    assert (refused.messages, refused.report.stop_reason) == ([], "critical_error")
    assert "too long" in refused.report.error


async def test_the_output_of_ainvoke_is_what_the_output_rules_leave_of_it() -> None:
    """Data of a graph, which no rule changes, stays data."""
    model = ScriptedProvider("Write to eve@example.org.")
    agent = Agent(model, guardrails=[{"type": "pii_detection", "action": "redact"}])
    assert (await agent.ainvoke("Hi")).output == "Write to [EMAIL]."
    graph = PromptGraph("made", nodes=[FunctionNode("make", lambda state: {"n": 1})])
    assert (await Agent(model, pattern=graph).ainvoke("Hi")).output == {"n": 1}
    typed = Agent(ScriptedProvider('{"n": 1}'), output_type=dict[str, int])
    assert (await typed.ainvoke("Hi")).output == {"n": 1}


# -- models of a program -------------------------------------------------------------------------------------


class OwnModel:
    """A model of a program. It has no more than it must."""

    def __init__(self, **more: Any) -> None:
        vars(self).update(more)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        raise ProviderTimeout("It took too long.")


@pytest.mark.parametrize(
    ("more", "name", "written"),
    [
        ({}, "OwnModel", "OwnModel"),
        ({"name": ""}, "OwnModel", "OwnModel"),
        ({"name": "house/fast"}, "house/fast", "fast"),
        ({"name": "house/fast", "model": "faster"}, "house/fast", "faster"),
    ],
)
async def test_a_model_of_a_program_is_known_by_its_name(
    more: dict[str, str], name: str, written: str
) -> None:
    model: Any = OwnModel(capabilities=Capabilities(streaming=False), **more)
    agent = Agent(model)
    failed = await agent.run("Hi", on_error="return")
    assert [one["provider"] for one in failed.metadata["attempts"]] == [name]
    text = agent.to_yaml()
    assert f"# provider: the Python object {name} cannot" in text and f"model: {written}\n" in text


async def test_the_estimates_of_models_of_a_program_count() -> None:
    """One without any counts as free."""

    class Priced(OwnModel):
        async def complete(self, request: CompletionRequest) -> CompletionResult:
            return CompletionResult(self.name, provider="house", model=self.name)

        name = "free"

    plain = Capabilities(streaming=False)
    free: Any = Priced(capabilities=plain)
    cheap: Any = Priced(capabilities=plain, name="cheap", estimated_cost=lambda request: 1)
    dear: Any = Priced(capabilities=plain, name="dear", estimated_cost=lambda request: 2)
    for others, answers in (([cheap], "cheap"), ([cheap, free], "free")):
        agent = Agent(dear, fallback=others, routing="cost_optimized")
        assert (await agent.run("Hi")).text == answers


# -- event loops ---------------------------------------------------------------------------------------------


def test_runs_within_with_share_one_event_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def model(request: CompletionRequest) -> str:
        loops.append(asyncio.get_running_loop())
        return "a"

    with Agent(model) as agent:
        agent.run_sync("q")
        agent.run_sync("q")
        assert not loops[0].is_closed()
    agent.run_sync("q")
    assert loops[0] is loops[1] and loops[2] is not loops[0]
    assert loops[0].is_closed()
