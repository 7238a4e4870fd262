"""Tools that a client executes: over chat completions with the `openai` package, and over `/run`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from websockets.asyncio.client import connect

from astromesh.testing import ManualClock, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall, Usage
from tests.integration.agents_folder import manifest, runtime_of, served, write

USER: Any = [{"role": "user", "content": "What is the weather?"}]
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "The time."}}
OWN = {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
ROME = ToolCall("c1", "weather", '{"city": "Rome"}')
LIMA = ToolCall("c2", "weather", '{"city": "Lima"}')


class House(NamedTuple):
    provider: ScriptedProvider
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    async def create(self, messages: Any = USER, tools: Any = (WEATHER,), **more: Any) -> Any:
        return await self.openai.chat.completions.create(
            model="helper", messages=messages, tools=list(tools), **more
        )

    async def runs(self) -> list[dict[str, Any]]:
        return list((await self.http.get("/runs")).json()["runs"])


@asynccontextmanager
async def house_of(path: Path, *script: Any, clock: Any = None, **spec: Any) -> AsyncIterator[House]:
    provider = ScriptedProvider(*script)
    folder = write(path, manifest(**{"tools": [OWN], **spec}))
    runtime = runtime_of(folder, provider, **({"clock": clock} if clock else {}))
    async with served(runtime) as at:
        url = f"http://{at}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            yield House(provider, client, http)


def with_results(answer: Any, *results: str, first: Any = USER) -> list[Any]:
    """The messages of the next request, as the documentation of OpenAI's API has them."""
    message = answer.choices[0].message
    tools = [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(message.tool_calls, results, strict=False)
    ]
    return [*first, message.model_dump(exclude_none=True), *tools]


def conversation(request: CompletionRequest) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in request.messages if m.role != "system"]


async def test_a_call_goes_to_the_client_and_its_result_continues_the_run(tmp_path: Path) -> None:
    own = ToolCall("c9", "lookup", '{"query": "x"}')
    first = Reply("I look.", tool_calls=[own, ROME], usage=Usage(10, 2))
    async with house_of(tmp_path, first, Reply("Sunny.", usage=Usage(30, 4))) as house:
        asked = await house.create()
        choice = asked.choices[0]
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert (call.type, call.function.name) == ("function", "weather")
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        assert (asked.usage.prompt_tokens, asked.usage.completion_tokens) == (10, 2)
        answer = await house.create(with_results(asked, "22 degrees"))
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Sunny.", "stop")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (30, 4)
        assert answer.id != asked.id
        assert answer.astromesh["run_id"] == asked.astromesh["run_id"]
        assert answer.astromesh["tools_called"] == ["lookup", "weather"]
        (run,) = await house.runs()
        assert run["status"] == "completed"
        (events,) = [(await house.http.get(f"/runs/{run['run_id']}/events")).text]
    assert [t.name for t in house.provider.requests[0].tools] == ["lookup", "weather"]
    last = house.provider.requests[1].messages[-1]
    assert (last.role, last.content, last.tool_call_id) == ("tool", "22 degrees", "c1")
    finished = [json.loads(line[6:]) for line in events.split("\n") if '"name":"weather","ok"' in line]
    assert [one["untrusted"] for one in finished] == [True]


async def test_calls_of_a_stream_are_deltas_as_openai_sends_them(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME, LIMA], Reply(chunks=("Both ", "sunny."))) as house:
        more: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in await house.create(**more)]
        deltas = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or ()]
        named = {d.index: (d.id, d.type, d.function.name) for d in deltas if d.id}
        written = {i: "".join(d.function.arguments or "" for d in deltas if d.index == i) for i in named}
        assert [name for _, _, name in named.values()] == ["weather", "weather"]
        assert [json.loads(text)["city"] for text in written.values()] == ["Rome", "Lima"]
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
        assert chunks[-1].usage is not None
        calls = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": written[index]}}
            for index, (i, _, name) in named.items()
        ]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "22"} for call in calls]
        messages = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        chunks = [chunk async for chunk in await house.create(messages, **more)]
        said = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
        assert said == ["Both ", "sunny."]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert len({chunk.id for chunk in chunks}) == 1


async def test_without_parallel_calls_they_are_handed_out_one_by_one(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME, LIMA], "Done.") as house:
        first = await house.create(parallel_tool_calls=False)
        assert len(first.choices[0].message.tool_calls) == 1
        messages = with_results(first, "22")
        second = await house.create(messages, parallel_tool_calls=False)
        (call,) = second.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Lima"}
        last = await house.create(with_results(second, "18", first=messages), parallel_tool_calls=False)
        assert last.choices[0].message.content == "Done."
    results = [m.content for m in house.provider.requests[-1].messages if m.role == "tool"]
    assert results == ["22", "18"]


@pytest.mark.parametrize(
    ("choice", "seen"),
    [
        ("required", ["required", "auto"]),
        ({"type": "function", "function": {"name": "weather"}}, ["weather", "auto"]),
        ("auto", ["auto", "auto"]),
    ],
)
async def test_a_choice_is_that_of_the_next_call(tmp_path: Path, choice: Any, seen: Sequence[str]) -> None:
    async with house_of(tmp_path, [ROME], "Done.") as house:
        asked = await house.create(tool_choice=choice)
        await house.create(with_results(asked, "22"))
    assert [request.tool_choice for request in house.provider.requests] == seen


async def test_the_choice_of_the_next_request_is_followed(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME], "Done.") as house:
        asked = await house.create()
        await house.create(with_results(asked, "22"), tool_choice="none")
    assert [request.tool_choice for request in house.provider.requests] == ["auto", "none"]


async def test_with_the_choice_none_the_clients_tools_are_not_offered(tmp_path: Path) -> None:
    async with house_of(tmp_path, "Hello.") as house:
        await house.create(tool_choice="none")
    assert [tool.name for tool in house.provider.requests[0].tools] == ["lookup"]


FOREIGN: Any = [
    *USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": ROME.arguments}}
    ]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "22"},
]  # fmt: skip


async def test_a_result_that_no_run_waits_for_starts_a_run_from_the_messages(tmp_path: Path) -> None:
    async with house_of(tmp_path, "Sunny.", "And now?") as house:
        answer = await house.create(FOREIGN)
        assert answer.choices[0].message.content == "Sunny."
        again = [*FOREIGN, {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "Now?"}]
        await house.create(again)
    first, second = house.provider.requests
    assert conversation(first) == [("user", "What is the weather?"), ("assistant", ""), ("tool", "22")]
    assert first.messages[-2].tool_calls == (ToolCall("toolu_1", "weather", '{"city": "Rome"}'),)
    assert (first.messages[-1].tool_call_id, first.messages[-1].name) == ("toolu_1", "weather")
    assert conversation(second)[-2:] == [("assistant", "Sunny."), ("user", "Now?")]


async def test_a_run_whose_client_does_not_answer_ends_and_its_id_has_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    async with house_of(tmp_path, [ROME], "From the messages.", clock=clock) as house:
        asked = await house.create()
        clock.advance(601)
        answer = await house.create(with_results(asked, "22"))
        assert answer.choices[0].message.content == "From the messages."
        assert answer.astromesh["run_id"] != asked.astromesh["run_id"]
        run: dict[str, Any] = {"status": "waiting"}
        while run["status"] in ("waiting", "queued", "running"):
            clock.advance(1)
            await asyncio.sleep(0.02)
            run = (await house.http.get(f"/runs/{asked.astromesh['run_id']}")).json()
        counted = (await house.http.get(f"/runs/{run['run_id']}/events")).text
    assert (run["status"], run["error"]["code"]) == ("cancelled", "client_tool_expired")
    assert "event: run.cancelled" in counted
    assert len(house.provider.requests) == 2


def wrong(messages: Any = USER, tools: Any = (WEATHER,), **more: Any) -> dict[str, Any]:
    return {"messages": messages, "tools": list(tools), **more}


CALL = FOREIGN[1]
BAD: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "no result": (wrong([*USER, CALL]), 400, "invalid_input", "Missing: toolu_1"),
    "a question before the result": (wrong([*USER, CALL, *USER]), 400, "invalid_input", "Missing: toolu_1"),
    "a result of no call": (wrong([*USER, FOREIGN[2]]), 400, "invalid_input", "no open call 'toolu_1'"),
    "a choice of nothing": (wrong(tools=(), tool_choice="required"), 400, "invalid_input", "no tools"),
    "a choice of no tool": (
        wrong(tool_choice={"type": "function", "function": {"name": "clock"}}),
        400, "invalid_input", "'clock'",
    ),
    "a name twice": (wrong(tools=(WEATHER, WEATHER)), 400, "invalid_input", "two tools named 'weather'"),
    "a name of the agent's": (
        wrong(tools=({"type": "function", "function": {"name": "lookup"}},)),
        422, "tool_name_taken", "lookup",
    ),
    "no schema": (
        wrong(tools=({"type": "function", "function": {"name": "f", "parameters": {"type": "no"}}},)),
        400, "invalid_input", "not a JSON Schema",
    ),
    "a tool of another kind": (wrong(tools=({"type": "custom"},)), 400, "invalid_input", "tools"),
    "the old functions": (wrong(functions=[{"name": "f"}]), 400, "invalid_input", "functions"),
}  # fmt: skip


async def test_what_cannot_be_is_refused_in_openais_form(tmp_path: Path, subtests: pytest.Subtests) -> None:
    async with house_of(tmp_path) as house:
        for name, (body, status, code, word) in BAD.items():
            with subtests.test(name):
                answer = await house.http.post("/chat/completions", json={"model": "helper", **body})
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (status, code)
                assert word in error["message"]
    assert house.provider.requests == []


async def test_an_agent_may_take_no_tools_of_clients(tmp_path: Path) -> None:
    async with house_of(tmp_path, "Hello.", client_tools="deny") as house:
        with pytest.raises(openai.UnprocessableEntityError, match=r"client_tools: allow") as refused:
            await house.create()
        assert refused.value.code == "not_overridable"
        body = {"query": "x", "session_id": "s", "client_tools": [WEATHER["function"]]}
        answer = await house.http.post("/agents/helper/run", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "not_overridable")
        await house.create(tools=[], messages=USER)


async def test_arguments_and_results_pass_the_rules_of_the_agent(tmp_path: Path) -> None:
    """What a model may not say leaves in no tool call, and what a client may not say comes in no result."""
    pii = {"type": "pii_detection", "action": "redact"}
    topic = {"type": "topic_filter", "forbidden_topics": ["violence"], "message": "No."}
    rules = {"input": [pii, topic], "output": [pii]}
    mail = ToolCall("c1", "weather", '{"city": "joe@x.com"}')
    async with house_of(tmp_path, [mail], "Done.", guardrails=rules) as house:
        asked = await house.create()
        (call,) = asked.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "[EMAIL]"}
        with pytest.raises(openai.UnprocessableEntityError, match=r"No\."):
            await house.create(with_results(asked, "violence"))
        answer = await house.create(with_results(asked, "Ask ann@x.com"))
        assert answer.choices[0].message.content == "Done."
    assert house.provider.requests[-1].messages[-1].content == "Ask [EMAIL]"


async def test_arguments_that_do_not_fit_go_back_to_the_model(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ToolCall("c0", "weather", "{}")], [ROME]) as house:
        asked = await house.create()
        assert json.loads(asked.choices[0].message.tool_calls[0].function.arguments) == {"city": "Rome"}
    assert "city" in house.provider.requests[1].messages[-1].content


async def test_a_model_that_uses_one_id_again_is_answered_for_each_call(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME], [ToolCall("c1", "weather", '{"city": "Lima"}')], "Done.") as house:
        first = await house.create()
        messages = with_results(first, "22")
        second = await house.create(messages)
        assert second.choices[0].message.tool_calls[0].id != first.choices[0].message.tool_calls[0].id
        last = await house.create(with_results(second, "18", first=messages))
        assert last.choices[0].message.content == "Done."
        assert last.astromesh["run_id"] == first.astromesh["run_id"]
    results = [m.content for m in house.provider.requests[-1].messages if m.role == "tool"]
    assert results == ["22", "18"]


async def test_a_call_waits_for_a_persons_approval_of_another_one(tmp_path: Path) -> None:
    """The client's call is handed out, and what still waits for a person is said after its result."""
    own = {**OWN, "approval": "required"}
    script = [[ToolCall("c9", "lookup", '{"query": "x"}'), ROME], "Done."]
    async with house_of(tmp_path, *script, tools=[own]) as house:
        asked = await house.create()
        assert [c.function.name for c in asked.choices[0].message.tool_calls] == ["weather"]
        with pytest.raises(openai.ConflictError, match="person") as waits:
            await house.create(with_results(asked, "22"))
        assert waits.value.code == "approval_required"
        (approval,) = (await house.http.get("/approvals")).json()["approvals"]
        run = f"/runs/{asked.astromesh['run_id']}"
        await house.http.post(f"{run}/resume", json={"decision": "approve", "id": approval["id"]})
        await house.http.get(f"{run}/events")
        assert (await house.http.get(run)).json()["result"]["response"] == "Done."


async def test_a_session_keeps_the_question_and_the_answer_alone(tmp_path: Path) -> None:
    memory = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
    async with house_of(tmp_path, [ROME], "Sunny.", "Bye.", memory=memory) as house:
        asked = await house.create(user="u")
        await house.create(with_results(asked, "22"), user="u")
        turns = (await house.http.get("/agents/helper/sessions/u")).json()["turns"]
        assert [turn["content"] for turn in turns] == ["What is the weather?", "Sunny."]
        await house.create([{"role": "user", "content": "Thanks."}], user="u")
    assert [m.content for m in house.provider.requests[-1].messages[1:]] == [
        "What is the weather?", "Sunny.", "Thanks.",
    ]  # fmt: skip


async def test_a_repeated_request_gets_the_same_call(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME]) as house:
        more: Any = {"extra_headers": {"idempotency-key": "k"}}
        first, second = await house.create(**more), await house.create(**more)
        assert first.choices[0].message.tool_calls == second.choices[0].message.tool_calls
    assert len(house.provider.requests) == 1


async def test_a_new_question_in_the_session_does_not_wait_for_the_client(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME], "Never mind.") as house:
        await house.create(user="u")
        answer = await house.create([{"role": "user", "content": "Forget it."}], user="u")
    assert answer.choices[0].message.content == "Never mind."


# -- /run ----------------------------------------------------------------------------------------------------


async def test_a_run_answers_202_and_goes_on_with_the_answer(tmp_path: Path) -> None:
    rain = ToolCall("call_3", "weather", '{"city": "Oslo"}')
    async with house_of(tmp_path, [ROME, LIMA, rain], "Done.") as house:
        body = {"query": "Weather?", "session_id": "s", "client_tools": [WEATHER["function"]]}
        waits = await house.http.post("/agents/helper/run", json=body)
        assert waits.status_code == 202
        asked = waits.json()["waiting_for"]
        assert (asked["kind"], asked["name"], asked["arguments"]) == (
            "client_tool",
            "weather",
            {"city": "Rome"},
        )
        run = f"/runs/{waits.json()['run_id']}"
        assert (await house.http.get("/approvals")).json()["approvals"] == []
        assert (await house.http.post(f"{run}/resume", json={"id": asked["id"]})).status_code == 422
        denied = await house.http.post(f"{run}/resume", json={"id": asked["id"], "decision": "approve"})
        assert denied.status_code == 422
        await house.http.post(f"{run}/resume", json={"id": asked["id"], "answer": {"degrees": 22}})
        other = asked["others"][0]["id"]
        await house.http.post(f"{run}/resume", json={"id": other, "decision": "deny"})
        last = asked["others"][1]["id"]
        nothing = await house.http.post(f"{run}/resume", json={"id": last, "decision": "answer"})
        assert (nothing.status_code, nothing.json()["param"]) == (422, "answer")
        null = await house.http.post(f"{run}/resume", json={"id": last, "answer": None})
        assert null.status_code == 200, null.text
        events = (await house.http.get(f"{run}/events")).text
        state = (await house.http.get(run)).json()
    assert state["result"]["response"] == "Done."
    assert [d["decision"] for d in state["decisions"]] == ["answer", "deny", "answer"]
    results = [m.content for m in house.provider.requests[-1].messages if m.role == "tool"]
    assert results[0] == '{"degrees":22}'
    assert "refused" in results[1]
    assert results[2] == "null"
    assert "event: run.waiting" in events


async def test_the_run_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME]) as house:
        asked = await house.create()
    async with house_of(tmp_path, "Sunny.") as house:
        answer = await house.create(with_results(asked, "22"))
        assert answer.astromesh["run_id"] == asked.astromesh["run_id"]
    assert answer.choices[0].message.content == "Sunny."


async def test_the_result_of_somebody_else_continues_nothing(tmp_path: Path) -> None:
    """The run of another agent, too, is none that the request can name."""
    async with house_of(tmp_path, [ROME], "Mine.") as house:
        asked = await house.create()
        messages = with_results(asked, "22")
        call = messages[1]["tool_calls"][0]
        call["id"] = messages[2]["tool_call_id"] = call["id"][:-1] + "x"
        answer = await house.create(messages)
        assert answer.astromesh["run_id"] != asked.astromesh["run_id"]
        (waiting,) = [run for run in await house.runs() if run["status"] == "waiting"]
        assert waiting["run_id"] == asked.astromesh["run_id"]


async def test_the_events_of_a_run_end_where_it_waits(tmp_path: Path) -> None:
    async with house_of(tmp_path, [ROME]) as house:
        body = {"query": "Weather?", "session_id": "s", "client_tools": [WEATHER["function"]]}
        headers = {"accept": "text/event-stream"}
        events = (await house.http.post("/agents/helper/run", json=body, headers=headers)).text
    last = events.strip().split("\n\n")[-1].split("\n")
    assert last[1] == "event: run.waiting"
    waits = json.loads(last[2].removeprefix("data: "))
    assert waits["approval"]["kind"] == "client_tool"
    assert waits["usage"]["input_tokens"] > 0


async def test_a_frame_brings_tools_and_the_socket_hears_of_the_answer(tmp_path: Path) -> None:
    frame = {"query": "Weather?", "session_id": "s", "client_tools": [WEATHER["function"]]}
    async with house_of(tmp_path, [ROME], "Sunny.") as house:
        url = str(house.http.base_url).replace("http", "ws", 1) + "ws/agent/helper"
        async with connect(url, open_timeout=60) as socket:
            await socket.send(json.dumps(frame))
            while (told := json.loads(await socket.recv()))["type"] != "waiting":
                pass
            answer = {"id": told["approval"]["id"], "answer": "22"}
            run = f"/runs/{told['run_id']}"
            assert (await house.http.post(f"{run}/resume", json=answer)).status_code == 200
            await socket.send(json.dumps({"type": "resume", "run_id": told["run_id"], "after": told["seq"]}))
            while (told := json.loads(await socket.recv()))["type"] != "done":
                pass
    assert told["response"] == "Sunny."
