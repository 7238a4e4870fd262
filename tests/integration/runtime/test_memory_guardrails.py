"""What memory keeps beside the answers: it goes into later prompts, and the output rules hold for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from astromesh.durable.base import JournalStep
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import CompletionRequest, JsonObject, SessionKey, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

RULES: list[dict[str, Any]] = [
    {"type": "pii_detection", "action": "redact"},
    {"type": "content_filter", "forbidden_keywords": ["codename"], "action": "redact"},
]
SECRETS = ("ann@example.com", "4111111111111111", "codename")
EVENTS = "{% for e in episodic_events %}{{ e }};{% endfor %}"
SHORT: JsonObject = {"query": "mail ann@example.com\ncodename", "more": [4111111111111111]}


def asked(arguments: JsonObject) -> ScriptedProvider:
    return ScriptedProvider(ToolCall("c1", "lookup", json.dumps(arguments)), "Done.", "Again.")


async def remembered(path: Path, provider: ScriptedProvider, rules: list[dict[str, Any]]) -> JsonObject:
    """The tool call as it is kept; the second run's prompt says no more."""
    tool = RecordingTool("lookup", lambda query, **_: f"found: {query}", parameters={"type": "object"})
    spec: dict[str, Any] = {"tools": [{"name": "lookup", "type": "lookup", "effect": "read"}]}
    spec |= {"memory": {"episodic": {"backend": "in_memory"}}, "guardrails": {"output": rules}}
    write(path, manifest(prompts={"system": EVENTS}, **spec))
    async with runtime_of(path, provider, plugins={"tools": {"lookup": plugin_of(tool)}}) as runtime:
        await runtime.run("helper", "Who?", "s")
        episodic = runtime.agent("helper").memory.episodic
        assert episodic is not None
        kept = await episodic.store.recent(SessionKey("default", "helper", "s", "anonymous"), 20)
        await runtime.run("helper", "And now?", "s")
    call = next(event for event in kept if event["event"] == "tool_call")
    told = provider.requests[-1].messages[0].content
    assert "lookup" in told
    if rules:
        assert not [secret for secret in SECRETS if secret in told + json.dumps(kept)]
    return call


async def test_a_tool_call_is_kept_as_the_rules_leave_it(tmp_path: Path) -> None:
    """Arguments, texts and numbers of them, and the result."""
    call = await remembered(tmp_path, asked(SHORT), RULES)
    assert call["arguments"] == {"query": "mail [EMAIL]\n[REDACTED]", "more": ["[CREDIT_CARD]"]}
    assert call["result"] == "found: mail [EMAIL]\n[REDACTED]"


async def test_rules_that_block_leave_nothing_of_it(tmp_path: Path) -> None:
    call = await remembered(tmp_path, asked(SHORT), [{**rule, "action": "block"} for rule in RULES])
    assert call["ok"] and "mail" not in call["result"]


@pytest.mark.parametrize("room", range(470, 500, 5))
async def test_what_lies_at_the_cut_is_seen_whole(tmp_path: Path, room: int) -> None:
    """500 characters are kept; the rules see what is cut off, and line ends in arguments hide nothing."""
    said = {"query": "x" * room + "\ncodename 4111111111111111 " + "y" * 600}
    call = await remembered(tmp_path, asked(said), RULES)
    for kept in (call["arguments"], call["result"]):
        assert len(kept) == 500
        assert "411111" not in kept and "coden" not in kept


async def test_without_rules_it_is_kept_as_it_was(tmp_path: Path) -> None:
    call = await remembered(tmp_path, asked(SHORT), [])
    assert (call["arguments"], call["result"]) == (SHORT, "found: mail ann@example.com\ncodename")


@pytest.mark.parametrize("block", [False, True])
async def test_a_summary_is_kept_as_the_rules_leave_it(tmp_path: Path, *, block: bool) -> None:
    """Where a rule blocks it, its safe response stands there, and the log says so; nobody asks again."""
    memory = {"conversational": {"backend": "in_memory", "strategy": "summary", "keep_turns": 2, "every": 2}}
    rules = [{**rule, "action": "block"} for rule in RULES] if block else RULES
    write(tmp_path, manifest(memory=memory, guardrails={"output": rules}))
    summary = "She is ann@example.com, card 4111111111111111; codename."
    provider = ScriptedProvider(lambda request: summary if request.role == "summary" else "Yes.", repeat=True)
    async with runtime_of(tmp_path, provider) as runtime:
        agent, key = runtime.agent("helper"), SessionKey("default", "helper", "s", "anonymous")
        with capture_logs() as log:
            for query in ("One?", "Two?", "Three?"):
                await runtime.run("helper", query, "s")
                await agent.memory.wait_until_idle()
        assert agent.memory.conversations is not None
        kept = (await agent.memory.conversations.recall(key, 20)).summary
        await runtime.run("helper", "Four?", "s")
    assert kept is not None
    assert not [secret for secret in SECRETS if secret in kept.text]
    later = next(r for r in provider.requests if r.messages[-1].content == "Four?")
    assert kept.text in later.messages[0].content
    assert ("[EMAIL], card [CREDIT_CARD]; [REDACTED]" in kept.text) is not block
    assert [line["event"] for line in log].count("summary_withheld") == block


async def record(path: Path, *agents: JsonObject) -> tuple[JournalStep, ...]:
    """What an accepted run has left in its record when it has ended."""
    tool = RecordingTool("lookup", lambda query, **_: f"found: {query}", parameters={"type": "object"})
    write(path, *agents)
    called = ToolCall("c1", "lookup", json.dumps({"query": SECRET}))

    def say(request: CompletionRequest) -> ToolCall | str:
        if request.messages[-1].role == "tool":
            return f"So: {SECRET}"
        offered = [spec.name for spec in request.tools]
        return called if "lookup" in offered else ToolCall("c0", "below", '{"query": "Who?"}')

    provider = ScriptedProvider(say, repeat=True)
    async with client_of(
        runtime := runtime_of(path, provider, plugins={"tools": {"lookup": plugin_of(tool)}})
    ) as client:
        asked = await client.post("/v1/agents/helper/runs", json={"query": "Who?", "session_id": "s"})
        place = f"/v1/runs/{asked.json()['run_id']}"
        async with asyncio.timeout(30):
            while (shown := (await client.get(place)).json())["status"] != "completed":
                if shown["status"] == "waiting":
                    await client.post(f"{place}/resume", json={"decision": "approve"})
                await asyncio.sleep(0.01)
        return await runtime.durable.store.steps(shown["run_id"])


LOOKUP = {"name": "lookup", "type": "lookup", "effect": "read"}
SECRET = "ann@example.com codename"


def heard(steps: tuple[JournalStep, ...]) -> list[object]:
    """What models and tools said in them."""
    return [step.output for step in steps if step.kind in ("model", "tool")]


def texts(steps: tuple[JournalStep, ...]) -> str:
    """Everything that is stored of the steps."""
    return json.dumps([step._asdict() for step in steps])


async def test_the_record_of_a_run_that_has_ended_has_no_raw_texts(tmp_path: Path) -> None:
    """They are there to take the run up again; the last transaction stores what the rules leave of them."""
    steps = await record(tmp_path, manifest(tools=[LOOKUP], guardrails={"output": RULES}))
    assert len(heard(steps)) == 3 and None not in heard(steps)
    assert "[EMAIL] [REDACTED]" in texts(steps)
    assert not [secret for secret in SECRET.split() if secret in texts(steps)]


async def test_the_record_of_a_run_that_waited_has_none_either(tmp_path: Path) -> None:
    """What an earlier segment has left is redacted, too; what the person was asked about stays."""
    tool = {**LOOKUP, "effect": "write", "approval": "required"}
    steps = await record(tmp_path, manifest(tools=[tool], guardrails={"output": RULES}))
    assert len(heard(steps)) == 3 and "ann@" not in json.dumps(heard(steps))
    assert [step.output["decision"] for step in steps if step.kind == "wait" and step.output] == ["approve"]


async def test_the_record_has_none_of_an_agent_below_either(tmp_path: Path) -> None:
    """The agent above has no rules: those below it are asked for by the place of their steps."""
    below = manifest("below", tools=[LOOKUP], guardrails={"output": RULES})
    above = manifest(tools=[{"name": "below", "type": "agent", "agent": "below"}])
    steps = await record(tmp_path, above, below)
    inside = [step for step in steps if "/run:below" in step.path]
    assert len(heard(steps)) == 6 and len(heard(tuple(inside))) == 3
    assert "ann@" not in texts(tuple(inside)) and "[EMAIL]" in texts(tuple(inside))


async def test_without_rules_the_record_stays_as_it_is(tmp_path: Path) -> None:
    steps = await record(tmp_path, manifest(tools=[LOOKUP]))
    assert None not in heard(steps)
