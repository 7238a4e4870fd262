"""supervisor and swarm: agents that run agents."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import ProviderUnauthorized
from astromesh.orchestration.supervisor import MAX_TASKS
from astromesh.testing import RecordingSink, Reply
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest
from tests.integration.orchestration.pattern_cases import CASES, LOOK, QUESTION, Case, by_words, runtime_for

BODY = {"query": QUESTION, "session_id": "s"}
UNFINISHED = "I could not finish this within the limits that are set for me."
DOWN = ProviderUnauthorized("no")
MEMORY = {"conversational": {"backend": "sqlite"}}


# -- supervisor --------------------------------------------------------------------------------------------

LEAD = CASES["supervisor"]
BOTH = [ToolCall("1", "tea-agent", '{"task": "tea?"}'), ToolCall("2", "coffee-agent", '{"task": "coffee?"}')]


async def test_independent_workers_run_at_once_up_to_the_limit(tmp_path: Path) -> None:
    """Two at a time with `max_parallel: 2`, one after another with 1."""
    for most in (1, 2):
        running = highest = 0

        async def work(request: Any) -> str:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(0.02)
            running -= 1
            return "3"

        runtime, _ = runtime_for(
            tmp_path / str(most), LEAD, [BOTH, work, work, "done"], orchestration={"max_parallel": most}
        )
        async with runtime:
            answer = await runtime.run("helper", QUESTION, "s")
        assert answer.response == "done"
        assert highest == most


async def test_workers_are_whole_agents_in_the_same_trace(tmp_path: Path) -> None:
    """With their own prompt and session, below the call that started them."""
    runtime, provider = runtime_for(tmp_path, LEAD, LEAD.script)
    async with client_of(runtime) as client:
        done = (await client.post("/v1/agents/helper/run", json=BODY)).json()
        trace = (await client.get(f"/v1/traces/{done['metadata']['trace_id']}")).json()
    assert provider.requests[1].messages[0].content == "You are tea-agent. Knows tea."
    assert provider.requests[1].messages[-1].content == "price of tea"
    spans = {span["span_id"]: span for span in trace["spans"]}
    (nested,) = [s for s in trace["spans"] if s["attributes"].get("agent") == "tea-agent"]
    assert spans[nested["parent_id"]]["attributes"]["name"] == "tea-agent"
    assert done["metadata"]["delegations"] == [{"agent": "tea-agent", "ok": True}]
    assert done["metadata"]["tools_called"] == ["tea-agent"]


async def test_the_supervisor_hears_of_a_worker_that_failed(tmp_path: Path) -> None:
    """The other one's result counts all the same."""
    line = by_words(**{"coffee?": DOWN, "tea?": "tea is 3"})
    runtime, provider = runtime_for(tmp_path, LEAD, [BOTH, line, line, "only tea: 3"])
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "only tea: 3"
    tea, coffee = provider.requests[-1].messages[-2:]
    assert tea.content == "tea is 3"
    assert "coffee-agent" in coffee.content and "all_providers_failed" in coffee.content
    assert {d["agent"]: d["ok"] for d in answer.metadata["delegations"]} == {
        "tea-agent": True,
        "coffee-agent": False,
    }


async def test_delegations_in_words_run_in_their_order(tmp_path: Path) -> None:
    """The second task waits for the first and is told its result."""
    said = (
        'I plan: {"delegate": [{"worker": "tea-agent", "task": "tea?"}, '
        '{"worker": "coffee-agent", "task": "compare", "after": [1]}]}'
    )
    runtime, provider = runtime_for(tmp_path, LEAD, [said, "tea is 3", "coffee is 4", "done"])
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == "done"
    assert provider.requests[2].messages[-1].content == "compare\n\n## What is known\ntea is 3"
    assert [m.role for m in provider.requests[3].messages] == ["system", "user", "assistant", "tool", "tool"]


async def test_words_that_delegate_nothing_go_to_the_worker_they_fit(tmp_path: Path) -> None:
    """The whole question, to the one it shares words with; nobody where the model says so."""
    runtime, provider = runtime_for(tmp_path / "fit", LEAD, ["hm", "tea is 3", "Tea costs 3."])
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == "Tea costs 3."
    assert provider.requests[1].messages[0].content.startswith("You are tea-agent")
    assert provider.requests[1].messages[-1].content == QUESTION
    runtime, provider = runtime_for(tmp_path / "none", LEAD, ['{"delegate": []}', "Hello!"])
    async with runtime:
        assert (await runtime.run("helper", "Hi", "s")).response == "Hello!"


async def test_the_supervisor_may_delegate_again_so_often_and_no_more(tmp_path: Path) -> None:
    """`max_iterations: 2`: it is asked for the answer twice; what it asks for then, nobody would read."""
    again = ToolCall("d2", "tea-agent", '{"task": "again"}')
    script = ["hm", "tea 1", again, "tea 2", Reply("one more look", [again])]
    runtime, provider = runtime_for(tmp_path, LEAD, script, orchestration={"max_iterations": 2})
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.metadata["stop_reason"], answer.response) == ("max_iterations", "one more look")
    assert len(provider.requests) == len(script)


def delegating(*tasks: str, worker: str = "tea-agent") -> str:
    return json.dumps({"delegate": [{"worker": worker, "task": task} for task in tasks]})


@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```", "I need more: {}"])
async def test_a_supervisor_that_only_writes_delegates_again_too(tmp_path: Path, fence: str) -> None:
    """Its delegations are no answer and no token; how to delegate stands in what it is told."""
    script = [delegating("green"), "green is 3", fence.format(delegating("black")), "black is 4", "3 and 4."]
    runtime, provider = runtime_for(tmp_path, LEAD, script)
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == sink.text() == "3 and 4."
    assert [d["agent"] for d in answer.metadata["delegations"]] == ["tea-agent", "tea-agent"]
    assert provider.requests[3].messages[-1].content == "black"
    assert '{"delegate": [' in provider.requests[2].messages[0].content
    assert [m.content for m in provider.requests[4].messages if m.role == "tool"] == [
        "green is 3",
        "black is 4",
    ]


@pytest.mark.parametrize(
    "nothing", ['{"delegate": []}', '{"delegate": [{"worker": "tea-agent"}]}', '{"delegate": 1}']
)
async def test_json_that_delegates_nothing_is_no_answer_either(tmp_path: Path, nothing: str) -> None:
    """The supervisor is asked again."""
    runtime, _ = runtime_for(tmp_path, LEAD, [delegating("green"), "green is 3", nothing, "It is 3."])
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == sink.text() == "It is 3."
    assert len(answer.metadata["delegations"]) == 1


async def test_an_answer_may_speak_of_delegation(tmp_path: Path) -> None:
    said = 'Write {"delegate": true} into the file.'
    runtime, _ = runtime_for(tmp_path, LEAD, [delegating("green"), "green is 3", said])
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == said


async def test_at_its_limit_a_delegation_in_words_is_not_made_and_not_shown(tmp_path: Path) -> None:
    script = [delegating("green"), "green is 3", delegating("black")]
    runtime, provider = runtime_for(tmp_path, LEAD, script, orchestration={"max_iterations": 1})
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.response, answer.metadata["stop_reason"]) == (UNFINISHED, "max_iterations")
    assert len(provider.requests) == len(script)


@pytest.mark.parametrize("by_tool", [False, True])
async def test_one_answer_starts_so_many_workers_and_no_more(tmp_path: Path, by_tool: bool) -> None:
    """`MAX_TASKS`; the supervisor is told what was not done."""
    calls = [ToolCall(f"d{i}", "tea-agent", f'{{"task": "t{i}"}}') for i in range(MAX_TASKS + 5)]
    asked: Any = calls if by_tool else delegating(*(f"t{i}" for i in range(MAX_TASKS + 5)))
    runtime, provider = runtime_for(tmp_path, LEAD, [asked, *["3"] * MAX_TASKS, "All 3."])
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "All 3."
    assert len(answer.metadata["delegations"]) == MAX_TASKS
    assert "delegated" in provider.requests[-1].messages[-1].content


async def test_max_iterations_bounds_each_worker(tmp_path: Path) -> None:
    """A worker that would go on has answered what it could; its supervisor goes on."""
    script = ["hm", Reply("looking", [LOOK]), "Tea: unknown."]
    runtime, provider = runtime_for(tmp_path, LEAD, script, orchestration={"max_iterations": 1})
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == "Tea: unknown."
    assert provider.requests[-1].messages[-1].content == "looking"


async def test_one_worker_can_do_two_tasks_at_once(tmp_path: Path) -> None:
    """Each in a session of its own, so that neither waits for nor sees the other."""
    tasks = [ToolCall("1", "tea-agent", '{"task": "green"}'), ToolCall("2", "tea-agent", '{"task": "black"}')]
    worker = manifest("tea-agent", memory=MEMORY, sessions={"concurrency": "reject"})
    case = Case({"pattern": "supervisor", "workers": ["tea-agent"]}, (), "", frozenset(), 0, (worker,), {})
    line = by_words(green="3", black="4")
    runtime, provider = runtime_for(tmp_path, case, [tasks, line, line, "done"])
    async with client_of(runtime) as client:
        done = await client.post("/v1/agents/helper/run", json=BODY)
        sessions = (await client.get("/v1/agents/tea-agent/sessions")).json()["sessions"]
    assert done.json()["response"] == "done"
    assert sorted(m.content for m in provider.requests[-1].messages if m.role == "tool") == ["3", "4"]
    assert sorted(s["session_id"] for s in sessions) == ["s/tea-agent", "s/tea-agent-2"]


# -- swarm -------------------------------------------------------------------------------------------------

SWARM = CASES["swarm"]


async def test_the_conversation_is_handed_over_whole(tmp_path: Path) -> None:
    """History, question and message; who had it is not offered again, who answers is named."""
    runtime, provider = runtime_for(tmp_path, SWARM, ["Hello, coffee here.", *SWARM.script], memory=MEMORY)
    async with runtime:
        await runtime.run("helper", "Hi", "s")
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.metadata["answered_by"] == "tea-agent"
    assert answer.metadata["handoffs"] == [{"from": "coffee-agent", "to": "tea-agent"}]
    assert answer.metadata["tools_called"] == ["lookup"]
    first, second = provider.requests[1], provider.requests[2]
    assert [m.content for m in second.messages[1:]] == ["Hi", "Hello, coffee here.", QUESTION]
    assert "wants tea" in second.messages[0].content
    assert second.messages[0].content.startswith("You are tea-agent")
    assert "handoff_to_tea-agent" in [t.name for t in first.tools]
    assert [t.name for t in second.tools] == ["lookup"]


async def test_a_hand_off_in_words_is_never_seen(tmp_path: Path) -> None:
    """Models without tools hand over by JSON, which streams to nobody and is stored nowhere."""
    runtime, _ = runtime_for(tmp_path, SWARM, ['{"handoff": "tea-agent"}', "Tea costs 3."])
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == sink.text() == "Tea costs 3."


async def test_what_an_agent_says_before_it_hands_over_is_a_step_of_its_own(tmp_path: Path) -> None:
    """As with tools: no part of the response."""
    handing = Reply("One moment.", [ToolCall("h", "handoff_to_tea-agent", "{}")])
    runtime, _ = runtime_for(tmp_path, SWARM, [handing, "Tea costs 3."])
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == "Tea costs 3."
    steps = {d["step"]: "" for d in sink.data("model.delta")}
    for delta in sink.data("model.delta"):
        steps[delta["step"]] += delta["content"]
    assert list(steps.values()) == ["One moment.", "Tea costs 3."]


async def test_a_chat_client_gets_the_response_and_nothing_that_was_said_before_the_hand_over(
    tmp_path: Path,
) -> None:
    """A client joins the chunks and cannot take text back."""
    handing = Reply("", [ToolCall("h", "handoff_to_tea-agent", "{}")], chunks=["One ", "moment."])
    looking = Reply("", [ToolCall("l", "lookup", '{"query": "x"}')], chunks=["Let me ", "look."])
    runtime, _ = runtime_for(tmp_path, SWARM, [handing, looking, Reply(chunks=["Tea ", "costs 3."])])
    body = {"model": "helper", "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    async with client_of(runtime) as client:
        told = (await client.post("/v1/chat/completions", json=body)).text
    chunks = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
    said = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert [text for text in said if text] == ["Tea ", "costs 3."]


@pytest.mark.parametrize("most", [0, 1, 3])
async def test_hand_offs_are_bounded_and_nobody_gets_it_twice(tmp_path: Path, most: int) -> None:
    """Three agents who all want to get rid of it: `max_handoffs` or all others, then the last one has it."""
    names = ["a", "b", "c"]
    case = Case(
        {"pattern": "swarm", "agents": names, "max_handoffs": most}, (), "", frozenset(), 0,
        [manifest(name) for name in names], {},
    )  # fmt: skip

    def anywhere(request: Any) -> Any:
        offered = [t.name for t in request.tools]
        return ToolCall("h", offered[-1], "{}") if offered else "mine, then"

    runtime, provider = runtime_for(tmp_path, case, [anywhere] * 4)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "mine, then"
    assert len(provider.requests) == 1 + min(most, 2)
    assert len(answer.metadata["handoffs"]) == min(most, 2)


@pytest.mark.parametrize("to", ["coffee-agent", "tea-agent", "nobody at all"])
async def test_who_hands_over_to_nobody_is_asked_for_the_answer(tmp_path: Path, to: str) -> None:
    """To who had it, to itself, to nobody: the message was meant for no reader."""
    nowhere = json.dumps({"handoff": to, "message": "SECRET note"})
    runtime, provider = runtime_for(tmp_path, SWARM, ['{"handoff": "tea-agent"}', nowhere, "Tea costs 3."])
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == sink.text() == "Tea costs 3."
    assert answer.metadata["stop_reason"] == "completed"
    assert answer.metadata["answered_by"] == "tea-agent"
    assert len(answer.metadata["handoffs"]) == 1
    assert "Answer the user yourself" in provider.requests[-1].messages[0].content


async def test_who_will_not_answer_is_not_asked_for_ever(tmp_path: Path) -> None:
    """Once more; then a fixed sentence stands for the answer, never the JSON or its message."""
    back = '{"handoff": "coffee-agent", "message": "SECRET note"}'
    runtime, provider = runtime_for(tmp_path, SWARM, [back, back])
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert (answer.response, answer.metadata["stop_reason"]) == (UNFINISHED, "max_iterations")
    assert sink.text() == UNFINISHED
    assert len(provider.requests) == 2


async def test_guardrails_of_the_agent_and_of_the_swarm_hold_for_its_stream(tmp_path: Path) -> None:
    """What either rule redacts is never seen, in the stream or in the answer."""
    rule = {"type": "content_filter", "action": "redact"}
    agent = manifest("a", guardrails={"output": [{**rule, "forbidden_keywords": ["secret"]}]})
    case = Case({"pattern": "swarm", "agents": ["a"]}, (), "", frozenset(), 0, (agent,), {})
    own = {"output": [{**rule, "forbidden_keywords": ["private"]}]}
    runtime, _ = runtime_for(tmp_path, case, ["a secret and a private thing"], guardrails=own)
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == sink.text() == "a [REDACTED] and a [REDACTED] thing"


async def test_a_swarms_agent_keeps_no_turns_of_its_own(tmp_path: Path) -> None:
    """The conversation is the swarm's; a second copy could only differ."""
    agent = manifest("a", memory=MEMORY)
    case = Case({"pattern": "swarm", "agents": ["a"]}, (), "", frozenset(), 0, (agent,), {"memory": MEMORY})
    runtime, _ = runtime_for(tmp_path, case, ["hello"])
    async with client_of(runtime) as client:
        await client.post("/v1/agents/helper/run", json=BODY)
        kept = [
            (await client.get(f"/v1/agents/{name}/sessions")).json()["sessions"] for name in ("a", "helper")
        ]
    assert [len(sessions) for sessions in kept] == [0, 1]


# -- the next message of a swarm's session -----------------------------------------------------------------

TO_TEA = ToolCall("h1", "handoff_to_tea-agent", '{"message": "wants tea"}')
TO_COFFEE = ToolCall("h2", "handoff_to_coffee-agent", "{}")


def asked_agents(provider: Any) -> list[str]:
    """Which agents were asked, in order."""
    return [
        request.messages[0].content.split(".")[0].removeprefix("You are ") for request in provider.requests
    ]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("backend", ["in_memory", "sqlite"])
async def test_the_next_message_begins_with_the_agent_that_answered_last(
    tmp_path: Path, backend: str, durable: bool
) -> None:
    memory = {"conversational": {"backend": backend}}
    script = [TO_TEA, "Tea costs 3.", "Green tea costs 4.", TO_COFFEE, "Coffee costs 2.", "Yes.", "Hello."]
    runtime, provider = runtime_for(tmp_path, SWARM, script, memory=memory)
    answered = []
    async with client_of(runtime) as client:
        for session in ("s", "s", "s", "s", "other"):
            body = {"query": QUESTION, "session_id": session}
            if durable:
                accepted = (await client.post("/v1/agents/helper/runs", json=body)).json()
                async with asyncio.timeout(30):
                    path = f"/v1/runs/{accepted['run_id']}"
                    while not (run := (await client.get(path)).json())["finished_at"]:
                        await asyncio.sleep(0.01)
                answered.append(run["result"]["metadata"]["answered_by"])
            else:
                done = await client.post("/v1/agents/helper/run", json=body)
                answered.append(done.json()["metadata"]["answered_by"])
    assert answered == ["tea-agent", "tea-agent", "coffee-agent", "coffee-agent", "coffee-agent"]
    tea, coffee = "tea-agent", "coffee-agent"
    assert asked_agents(provider) == [coffee, tea, tea, tea, coffee, coffee, coffee]


async def test_it_does_so_after_a_restart(tmp_path: Path) -> None:
    first, _ = runtime_for(tmp_path, SWARM, [TO_TEA, "Tea costs 3."], memory=MEMORY)
    async with first:
        await first.run("helper", QUESTION, "s")
    second, provider = runtime_for(tmp_path, SWARM, ["Green tea costs 4."], memory=MEMORY)
    async with second:
        again = await second.run("helper", QUESTION, "s")
    assert asked_agents(provider) == ["tea-agent"]
    assert (again.metadata["answered_by"], again.metadata["handoffs"]) == ("tea-agent", [])


async def test_it_may_hand_over_as_often_as_a_first_message(tmp_path: Path) -> None:
    """The way to the agent that begins is no hand-off."""
    runtime, provider = runtime_for(
        tmp_path, SWARM, [TO_TEA, "3", TO_COFFEE, "2"], memory=MEMORY, orchestration={"max_handoffs": 1}
    )
    async with runtime:
        await runtime.run("helper", QUESTION, "s")
        again = await runtime.run("helper", QUESTION, "s")
    assert again.metadata["handoffs"] == [{"from": "tea-agent", "to": "coffee-agent"}]
    assert len(provider.requests) == 4
