"""R8: `budgets.per_run` holds over branches, workers and nested runs, and ends a run as an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import ProviderUnavailable
from astromesh.graph.ledger import MIN_ANSWER_TOKENS
from astromesh.orchestration.patterns import UNFINISHED
from astromesh.runtime.pipeline import OUT_OF_TIME
from astromesh.runtime.records import RunRequest
from astromesh.testing import RecordingSink, RecordingTool, Reply, ScriptedProvider, plugin_of
from astromesh.tokens import FIRST_ANSWER_TOKENS as ANSWER_TOKENS
from astromesh.tokens import estimate_request
from astromesh.types import CompletionRequest, CompletionResult, ToolCall, Usage, attach_usage
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

RUN = "/v1/agents/helper/run"
BODY = {"query": "Hello", "session_id": "s-1"}
EIGHT = {
    "pattern": "parallel_fan_out",
    "branches": [{"name": f"b{n}"} for n in range(8)],
    "merge": "concat",
}


class Metered:
    """A model that counts its prompt as it is estimated, and wants to answer with `wanted` tokens.

    It obeys `max_tokens`. It answers when `waits` turns of the event loop have passed, so that calls overlap.
    """

    def __init__(self, wanted: int, usd_per_token: float = 0.0, waits: int = 5) -> None:
        self.wanted, self.usd, self.waits = wanted, usd_per_token, waits
        self.spent = self.active = self.most_active = 0

    async def __call__(self, request: CompletionRequest) -> CompletionResult:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        for _ in range(self.waits):
            await asyncio.sleep(0)
        self.active -= 1
        prompt, most = estimate_request(request), request.parameters.get("max_tokens", self.wanted)
        answer = min(self.wanted, most)
        self.spent += prompt + answer
        usage = Usage(prompt, answer, cost_usd=(prompt + answer) * self.usd)
        return CompletionResult("Hi", usage=usage, finish_reason="length" if answer == most else "stop")


class Priced(ScriptedProvider):
    """Each token costs a dollar, of the prompt and of the answer."""

    def estimated_cost(self, request: CompletionRequest) -> float:
        return float(estimate_request(request) + request.parameters.get("max_tokens", 256))


def spent(answer: Any) -> int:
    usage = answer.metadata["usage"]
    return int(usage["input_tokens"] + usage["output_tokens"])


@pytest.mark.parametrize("budget", [20, 100, 250, 1000, 3000])
@pytest.mark.parametrize("wanted", [5, 100, 10_000])
async def test_eight_branches_at_once_stay_within_the_tokens_of_the_run(tmp_path, budget, wanted) -> None:
    """The model counts prompts as they are estimated, so that nothing is spent beyond the budget."""
    folder = write(tmp_path, manifest(orchestration=EIGHT, budgets={"per_run": {"tokens": budget}}))
    model = Metered(wanted)
    async with runtime_of(folder, ScriptedProvider(model, repeat=True)) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
    assert spent(answer) == model.spent <= budget
    complete = [branch["ok"] for branch in answer.metadata["branches"]] == [True] * 8
    assert answer.metadata["stop_reason"] == ("completed" if complete else "budget")
    assert answer.metadata.get("budget") == (None if complete else "per_run.tokens")


async def test_branches_that_fit_together_run_at_once(tmp_path) -> None:
    folder = write(
        tmp_path, manifest(orchestration=EIGHT, budgets={"per_run": {"tokens": 9 * ANSWER_TOKENS}})
    )
    model = Metered(10)
    async with runtime_of(folder, ScriptedProvider(model, repeat=True)) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
    assert (answer.metadata["stop_reason"], model.most_active) == ("completed", 8)


async def test_eight_branches_at_once_stay_within_the_dollars_of_the_run(tmp_path) -> None:
    folder = write(tmp_path, manifest(orchestration=EIGHT, budgets={"per_run": {"cost_usd": 100}}))
    model = Metered(15, usd_per_token=1.0)
    async with runtime_of(folder, Priced(model, repeat=True)) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
    assert 0 < answer.metadata["usage"]["cost_usd"] <= 100
    assert (answer.metadata["stop_reason"], answer.metadata["budget"]) == ("budget", "per_run.cost_usd")


@pytest.mark.parametrize("budget", [200, 500, 2000])
async def test_four_workers_stay_within_the_tokens_of_the_run_above_them(tmp_path, budget) -> None:
    names = [f"worker-{n}" for n in range(4)]
    folder = write(
        tmp_path,
        manifest(
            orchestration={"pattern": "supervisor", "workers": names}, budgets={"per_run": {"tokens": budget}}
        ),
        *(manifest(name) for name in names),
    )
    model = Metered(150)

    async def call(request: CompletionRequest) -> CompletionResult:
        answer = await model(request)
        if not any(tool.name.startswith("worker") for tool in request.tools):
            return answer
        if any(m.role == "tool" for m in request.messages):
            return answer
        calls = tuple(
            ToolCall(f"c{n}", name, '{"task": "go", "query": "go"}') for n, name in enumerate(names)
        )
        return CompletionResult("", calls, answer.usage, finish_reason="tool_calls")

    async with runtime_of(folder, ScriptedProvider(call, repeat=True)) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
    assert spent(answer) == model.spent <= budget
    if budget < 2000:
        assert (answer.metadata["stop_reason"], answer.metadata["budget"]) == ("budget", "per_run.tokens")


@pytest.mark.parametrize(
    ("parameters", "budget", "limit"),
    [({}, 100_000, ANSWER_TOKENS), ({}, 200, None), ({"max_tokens": 50}, 100_000, 50)],
)
async def test_an_answer_is_limited_to_what_is_left(tmp_path, parameters, budget, limit) -> None:
    """By the agent's own max_tokens, else by the usual length, else by what the prompt leaves."""
    folder = write(tmp_path, manifest(budgets={"per_run": {"tokens": budget}}))
    provider = ScriptedProvider("Hi")
    if parameters:
        provider.capabilities = type(provider.capabilities)(answer_tokens=parameters["max_tokens"])
    async with runtime_of(folder, provider) as runtime:
        await runtime.run("helper", "Hello", "s-1")
    (request,) = provider.requests
    assert request.parameters["max_tokens"] == (limit or budget - estimate_request(request))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("room", [MIN_ANSWER_TOKENS - 1, MIN_ANSWER_TOKENS])
async def test_a_call_that_leaves_its_answer_too_little_is_not_begun(tmp_path, room, streamed) -> None:
    probe = ScriptedProvider("Hi")
    async with runtime_of(write(tmp_path / "probe", manifest()), probe) as runtime:
        await runtime.run("helper", "Hello", "s-1")
    budget = estimate_request(probe.requests[0]) + room
    folder = write(tmp_path, manifest(budgets={"per_run": {"tokens": budget}}))
    provider = ScriptedProvider("Hi")
    async with runtime_of(folder, provider) as runtime:
        sinks = (RecordingSink(),) if streamed else ()
        answer = await runtime.run("helper", "Hello", "s-1", sinks=sinks)
    if room == MIN_ANSWER_TOKENS:
        assert (answer.response, answer.metadata["stop_reason"]) == ("Hi", "completed")
        assert provider.requests[0].parameters["max_tokens"] == room
    else:
        assert (answer.response, answer.metadata["stop_reason"]) == (UNFINISHED, "budget")
        assert provider.requests == []


async def test_a_run_that_its_budget_ended_is_an_answer_that_names_it(tmp_path) -> None:
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})
    call = Reply("", (ToolCall("c1", "lookup", "{}"),), usage=Usage(400, 10))
    folder = write(
        tmp_path,
        manifest(tools=[{"name": "lookup", "type": "lookup"}], budgets={"per_run": {"tokens": 420}}),
    )
    runtime = runtime_of(folder, ScriptedProvider(call), plugins={"tools": {"lookup": plugin_of(tool)}})
    async with client_of(runtime) as client:
        answer = await client.post(RUN, json=BODY)
        row = (await client.get(f"/v1/runs/{answer.json()['run_id']}")).json()
    assert answer.status_code == 200
    found = answer.json()["metadata"]
    assert (found["stop_reason"], found["budget"]) == ("budget", "per_run.tokens")
    assert (row["status"], row["result"]["metadata"]["budget"]) == ("completed", "per_run.tokens")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_whose_time_is_used_up_answers_with_what_it_has(tmp_path, streamed) -> None:
    """The words that have left stay the answer; without any it is a fixed sentence."""
    folder = write(tmp_path, manifest(budgets={"per_run": {"wall_seconds": 0.2}}))
    hangs = Reply(chunks=["Half", " an"], delay=0.0, error=None)

    class Hanging(ScriptedProvider):
        async def complete(self, request: CompletionRequest) -> CompletionResult:
            await asyncio.Event().wait()
            raise AssertionError

        async def stream(self, request: CompletionRequest) -> Any:
            async for piece in super().stream(request):
                if isinstance(piece, CompletionResult):
                    await asyncio.Event().wait()
                yield piece

    async with runtime_of(folder, Hanging(hangs)) as runtime:
        sinks = (RecordingSink(),) if streamed else ()
        answer = await runtime.run("helper", "Hello", "s-1", sinks=sinks)
    assert answer.response == ("Half an" if streamed else OUT_OF_TIME)
    assert (answer.metadata["stop_reason"], answer.metadata["budget"]) == ("budget", "per_run.wall_seconds")


async def test_a_stored_budget_that_ends_a_run_is_named_too(tmp_path) -> None:
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})
    call = Reply("", (ToolCall("c1", "lookup", "{}"),), usage=Usage(400, 10))
    folder = write(
        tmp_path,
        manifest(tools=[{"name": "lookup", "type": "lookup"}], budgets={"per_session": {"tokens": 420}}),
    )
    plugins = {"tools": {"lookup": plugin_of(tool)}}
    async with runtime_of(folder, ScriptedProvider(call), plugins=plugins) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
    assert (answer.metadata["stop_reason"], answer.metadata["budget"]) == ("budget", "per_session.tokens")


@pytest.mark.parametrize("concurrent", [False, True])
async def test_a_tool_is_called_as_often_as_a_run_may_and_the_model_is_told(tmp_path, concurrent) -> None:
    """Another run begins to count anew."""
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})
    calls = [ToolCall(f"c{n}", "lookup", "{}") for n in range(3)]
    lines: list[Any] = [calls, "done"] if concurrent else [*calls, "done"]
    folder = write(tmp_path, manifest(tools=[{"name": "lookup", "type": "lookup", "max_calls_per_run": 2}]))
    provider = ScriptedProvider(*lines, *lines)
    async with runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(tool)}}) as runtime:
        for number in (1, 2):
            await runtime.run("helper", "Hello", f"s-{number}")
            assert len(tool.calls) == 2 * number
    told = [m.content for m in provider.requests[len(lines) - 1].messages if m.role == "tool"]
    assert sum("'lookup' at most 2 times" in text for text in told) == 1


async def test_a_resumed_run_counts_the_recorded_calls_of_a_tool(tmp_path: Path) -> None:
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})
    spec: Any = {"tools": [{"name": "lookup", "type": "lookup", "effect": "read", "max_calls_per_run": 1}]}
    folder = write(tmp_path, manifest(**spec))
    begun = asyncio.Event()

    async def hangs(_: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    plugins = {"tools": {"lookup": plugin_of(tool)}}
    again = ToolCall("c2", "lookup", "{}")
    one = runtime_of(folder, ScriptedProvider(ToolCall("c1", "lookup", "{}"), hangs), plugins=dict(plugins))
    await one.bootstrap()
    row = await one.runner.accept(one.agent("helper"), RunRequest("Hello", "s-1"))
    await asyncio.wait_for(begun.wait(), 30)
    await one.close(grace=0.0)
    async with runtime_of(folder, ScriptedProvider(again, "done"), plugins=dict(plugins)) as two:
        await two.durable.start()
        async with asyncio.timeout(30):
            while (found := await two.durable.store.get(row.run_id)) is None or found.status != "completed":
                await asyncio.sleep(0.01)
    assert len(tool.calls) == 1


class Breaking(ScriptedProvider):
    """Breaks off `breaks` times, each time after the whole answer that it wants, and reports what it cost."""

    def __init__(self, breaks: int, wanted: int = 200) -> None:
        super().__init__(repeat=True)
        self._breaks, self._wanted, self.spent, self.tries = breaks, wanted, 0, 0

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        prompt = estimate_request(request)
        answer = min(self._wanted, request.parameters.get("max_tokens", self._wanted))
        self.tries += 1
        self.spent += prompt + answer
        usage = Usage(prompt, answer)
        if self.tries > self._breaks:
            return CompletionResult("Hi", usage=usage)
        error = ProviderUnavailable("broke off")
        attach_usage(error, usage)
        raise error

    async def stream(self, request: CompletionRequest) -> Any:
        yield await self.complete(request)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("place", ["per_run", "per_session"])
@pytest.mark.parametrize("budget", [250, 500, 5000])
async def test_each_try_of_one_call_is_within_the_budget(tmp_path, budget, place, streamed) -> None:
    """What a try has cost is charged before the next one, which gets what is left or is not made."""
    folder = write(tmp_path, manifest(budgets={place: {"tokens": budget}}))
    model = Breaking(breaks=2)
    async with runtime_of(folder, model) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1", sinks=(RecordingSink(),) if streamed else ())
    assert spent(answer) == model.spent <= budget
    if budget > 250:
        assert (answer.response, answer.metadata["stop_reason"], model.tries) == ("Hi", "completed", 3)
    else:
        assert (answer.metadata["stop_reason"], answer.metadata["budget"]) == ("budget", f"{place}.tokens")


async def hangs(_: Any) -> str:
    await asyncio.Event().wait()
    return ""


async def test_what_is_left_of_a_stored_budget_of_time_ends_a_run(tmp_path: Path) -> None:
    """Though `orchestration.timeout_seconds` would leave it more."""
    folder = write(tmp_path, manifest(budgets={"per_session": {"wall_seconds": 0.5}}))
    async with runtime_of(folder, ScriptedProvider(hangs)) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
    assert (answer.response, answer.metadata["stop_reason"]) == (OUT_OF_TIME, "budget")
    assert answer.metadata["budget"] == "per_session.wall_seconds"


async def test_a_run_that_continues_has_what_is_left_of_its_time(tmp_path: Path) -> None:
    """It ends as an answer that names the budget."""
    tool = RecordingTool("send", lambda **_: "sent", parameters={"type": "object", "properties": {}})
    folder = write(
        tmp_path,
        manifest(
            tools=[{"name": "send", "type": "send", "approval": "required"}],
            budgets={"per_run": {"wall_seconds": 4}},
        ),
    )
    asks = Reply("", (ToolCall("c1", "send", "{}"),), delay=0.5)
    runtime = runtime_of(folder, ScriptedProvider(asks, hangs), plugins={"tools": {"send": plugin_of(tool)}})
    async with client_of(runtime) as client:
        path = f"/v1/runs/{(await client.post(RUN, json=BODY)).json()['run_id']}"
        assert (await client.post(f"{path}/resume", json={"decision": "approve"})).status_code == 200
        async with asyncio.timeout(60):
            while (run := (await client.get(path)).json())["status"] in ("queued", "running", "waiting"):
                await asyncio.sleep(0.05)
    assert (run["status"], run["error"]) == ("completed", None)
    assert run["result"]["metadata"]["budget"] == "per_run.wall_seconds"
