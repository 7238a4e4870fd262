"""Runs as callers see them: state, list, event log, cancel, clients that leave, sessions that are busy."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from astromesh.errors import ProviderRateLimited, ProviderUnavailable
from astromesh.testing import ManualClock, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall, Usage
from tests.integration.agents_folder import client_of, manifest, runtime_of, served, write

SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
BODY = {"query": "go", "session_id": "s"}
RUN = "/v1/agents/helper/run"


class Gate:
    """A model that says `begun`, then waits to be let go; counts who came in and who was thrown out."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = 0
        self.queries: list[str] = []

    async def __call__(self, request: CompletionRequest) -> str:
        self.queries.append(request.messages[-1].content)
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"


def events_of(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def helper(folder: Path, **spec: Any) -> Path:
    return write(folder, manifest(**{"memory": SQLITE, **spec}))


async def newest(client: httpx.AsyncClient) -> str:
    """The id of the newest run, as soon as there is one."""
    while not (found := (await client.get("/v1/runs")).json()["runs"]):
        await asyncio.sleep(0)
    return str(found[0]["run_id"])


# -- state and list ------------------------------------------------------------------------------------------


async def test_a_run_is_found_while_it_goes_on_and_when_it_has_ended(tmp_path: Path) -> None:
    gate = Gate()
    async with client_of(runtime_of(helper(tmp_path), ScriptedProvider(gate))) as client:
        call = asyncio.create_task(client.post(RUN, json=BODY))
        await gate.entered.wait()
        path = f"/v1/runs/{await newest(client)}"
        before = (await client.get(path)).json()
        gate.go.set()
        answer = (await call).json()
        after = (await client.get(path)).json()
    assert (before["status"], before["finished_at"], before["result"]) == ("running", None, None)
    assert set(before) == {
        "run_id", "agent", "session_id", "status", "created_at", "finished_at", "result", "error", "usage",
        "attempts", "waiting_for", "metadata", "tags",
    }  # fmt: skip
    assert (after["status"], after["result"], after["error"]) == ("completed", answer, None)
    assert after["usage"] == answer["metadata"]["usage"]
    assert after["created_at"] <= after["finished_at"]


async def test_a_failed_run_says_why_with_the_codes_of_http(tmp_path: Path) -> None:
    provider = ScriptedProvider(ProviderUnavailable("down"), repeat=True)
    runtime = runtime_of(helper(tmp_path), provider)
    async with client_of(runtime) as client:
        failed = (await client.post(RUN, json=BODY)).json()
        state = (await client.get(f"/v1/runs/{failed['run_id']}")).json()
    assert state["status"] == "failed"
    (error,) = state["result"]["metadata"]["errors"]
    assert (error["node"], error["type"]) == ("react", "AllProvidersFailed")
    assert state["error"] == {"code": failed["code"], "detail": failed["detail"]}
    assert [a["error"] for a in state["attempts"]] == ["provider_unavailable"] * 3


@pytest.mark.parametrize("key", [None, "one"])
async def test_a_model_that_limits_its_rate_is_503_with_its_own_time_to_wait(
    tmp_path: Path, key: str | None
) -> None:
    """The time is a floor. Who asks again before it is over gets what is left."""
    busy = ProviderRateLimited("busy", status=429, retry_after=90)
    runtime = runtime_of(helper(tmp_path), ScriptedProvider(busy, "Hi"))
    headers = {} if key is None else {"idempotency-key": key}
    async with client_of(runtime) as client:
        first, second = [await client.post(RUN, json=BODY, headers=headers) for _ in range(2)]
    for answer in (first, second):
        assert (answer.status_code, answer.json()["code"]) == (503, "providers_rate_limited")
        assert 80 < int(answer.headers["retry-after"]) <= 109
    assert [answer.json()["failures"][0]["status"] for answer in (first, second)] == [429, 429]


#: seconds after which an id sorts behind the one before
OTHER_MILLISECOND = 0.003


async def test_runs_are_listed_by_agent_session_and_status_newest_first(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest("one"), manifest("two"))
    provider = ScriptedProvider(Reply("a", usage=Usage(10, 1)), Reply("b", usage=Usage(20, 2)), "c")
    async with client_of(runtime_of(folder, provider)) as client:
        for agent, session in (("one", "s"), ("one", "t"), ("two", "s")):
            await client.post(f"/v1/agents/{agent}/run", json={"query": "q", "session_id": session})
            await asyncio.sleep(OTHER_MILLISECOND)

        async def listed(**params: str) -> Any:
            found = (await client.get("/v1/runs", params=params)).json()
            return [(r["agent"], r["session_id"]) for r in found["runs"]], found["usage"]["input_tokens"]

        assert (await listed())[0] == [("two", "s"), ("one", "t"), ("one", "s")]
        assert await listed(agent="one") == ([("one", "t"), ("one", "s")], 30)
        assert await listed(agent="one", session="s") == ([("one", "s")], 10)
        assert (await listed(status="failed"))[0] == []
        assert (await listed(limit="1"))[0] == [("two", "s")]
        now = datetime.now(UTC)
        before, behind = (now - timedelta(minutes=5)).isoformat(), (now + timedelta(minutes=5)).isoformat()
        assert len((await listed(created_after=before, created_before=behind))[0]) == 3
        for none in ({"created_after": behind}, {"created_before": before}, {"created_before": "0001-01-01"}):
            assert await listed(**none) == ([], 0)
        assert await listed(min_cost_usd="1") == await listed(min_duration_ms="600000") == ([], 0)
        odd = {"status": "odd", "created_after": "soon", "min_cost_usd": "-1", "min_duration_ms": "inf"}
        for name, value in odd.items():
            assert (await client.get("/v1/runs", params={name: value})).status_code == 422
        assert (await client.get("/v1/runs", params={"created_before": "0.5"})).status_code == 422


async def test_lists_have_pages(tmp_path: Path) -> None:
    pages: list[list[str]] = []
    after: str | None = ""
    of_traces: str | None = ""
    async with client_of(runtime_of(helper(tmp_path), ScriptedProvider("a", repeat=True))) as client:
        for n in range(5):
            await client.post("/v1/agents/helper/run", json={"query": "q", "session_id": f"s{n}"})
            await asyncio.sleep(OTHER_MILLISECOND)
        usage = (await client.get("/v1/runs")).json()["usage"]
        while after is not None:
            page = (await client.get("/v1/runs", params={"limit": "2", "after": after})).json()
            traces = (await client.get("/v1/traces", params={"limit": "2", "after": of_traces})).json()
            of_traces = traces["next"]
            assert (of_traces is None) == (page["next"] is None)
            assert [one["run_id"] for one in traces["traces"]] == [one["run_id"] for one in page["runs"]]
            pages.append([one["session_id"] for one in page["runs"]])
            assert page["usage"] == usage
            after = page["next"]
    assert pages == [["s4", "s3"], ["s2", "s1"], ["s0"]]


async def test_what_is_no_longer_kept_is_410_and_what_never_was_404(tmp_path: Path) -> None:
    clock = ManualClock()
    runtime = runtime_of(helper(tmp_path), ScriptedProvider("ok", repeat=True), clock=clock)
    async with client_of(runtime) as client:
        run_id = (await client.post(RUN, json=BODY)).json()["run_id"]
        clock.advance(299)
        kept = await client.get(f"/v1/runs/{run_id}/events")
        clock.advance(2)
        late = await client.get(f"/v1/runs/{run_id}/events")
        state = await client.get(f"/v1/runs/{run_id}")
        for n in range(1000):
            await runtime.run("helper", "q", f"s{n}")
        dropped = await client.get(f"/v1/runs/{run_id}/events")
        stored = await client.get(f"/v1/runs/{run_id}")
        never = await client.get("/v1/runs/run_0/events")
    assert kept.status_code == 200
    assert (late.status_code, late.json()["code"]) == (410, "events_gone")
    assert state.json()["status"] == "completed"
    assert (dropped.status_code, dropped.json()["code"]) == (410, "events_gone")
    assert (stored.json()["status"], stored.json()["result"]["response"]) == ("completed", "ok")
    assert (never.status_code, never.json()["code"]) == (404, "run_not_found")


# -- the event log -------------------------------------------------------------------------------------------


async def test_the_log_is_what_the_stream_was_and_resumes_behind_every_event(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "It is known, by and large.")
    tools = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
    async with client_of(runtime_of(helper(tmp_path, tools=tools), provider)) as client:
        live = events_of((await client.post(RUN, json=BODY, headers={"accept": "text/event-stream"})).text)
        path = f"/v1/runs/{live[0][2]['run_id']}/events"
        assert [kind for _, kind, _ in live].count("model.delta") == 6
        for cut in range(len(live)):
            rest = await client.get(path, headers={"last-event-id": str(cut)})
            assert live[:cut] + events_of(rest.text) == live
        complete = await client.get(path, headers={"last-event-id": str(len(live))})
        assert (complete.status_code, complete.content) == (204, b"")
        beyond = await client.get(path, headers={"last-event-id": str(len(live) + 1)})
        assert (beyond.status_code, beyond.json()["code"]) == (422, "invalid_input")
        wrong = await client.get(path, headers={"last-event-id": "x"})
    assert wrong.status_code == 422


async def test_a_reader_who_comes_late_hears_the_rest_as_it_happens(tmp_path: Path) -> None:
    gate = Gate()
    runtime = runtime_of(helper(tmp_path), ScriptedProvider(gate))
    async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        call = asyncio.create_task(client.post(RUN, json=BODY))
        await gate.entered.wait()
        run_id = await newest(client)
        async with client.stream("GET", f"/v1/runs/{run_id}/events") as tail:
            pieces = tail.aiter_text()
            first = await anext(pieces)
            gate.go.set()
            rest = "".join([piece async for piece in pieces])
        assert (await call).status_code == 200
    assert events_of(first)[0][1] == "run.started"
    assert events_of(rest)[-1][1] == "run.completed"
    assert [i for i, _, _ in events_of(first + rest)] == list(range(1, len(events_of(first + rest)) + 1))


async def test_a_socket_resumes_a_run_that_another_socket_began(tmp_path: Path) -> None:
    gate = Gate()
    runtime = runtime_of(helper(tmp_path, on_disconnect="continue"), ScriptedProvider(gate))
    async with served(runtime) as at:
        url = f"ws://{at}/v1/ws/agent/helper"
        async with connect(url, open_timeout=60) as socket:
            await socket.send(json.dumps(BODY))
            started = json.loads(await socket.recv())
            await gate.entered.wait()
        async with connect(url, open_timeout=60) as socket:
            resume = {"type": "resume", "run_id": started["run_id"], "after": started["seq"]}
            await socket.send(json.dumps(resume))
            await socket.send(json.dumps(resume))  # a second one takes the place of the first
            await socket.send('{"type": "ping"}')
            assert json.loads(await socket.recv()) == {"type": "pong"}
            gate.go.set()
            got = [json.loads(await socket.recv())]
            while got[-1]["type"] != "done":
                got.append(json.loads(await socket.recv()))
            await socket.send('{"type": "resume", "run_id": "run_0"}')
            error = json.loads(await socket.recv())
            await socket.send(json.dumps({**resume, "after": 0}))
            again = [json.loads(await socket.recv()) for _ in range(len(got) + 1)]
    assert [f["type"] for f in got] == ["token", "done"]
    assert {f["run_id"] for f in got} == {started["run_id"]}
    assert (error["type"], error["code"]) == ("error", "run_not_found")
    assert again == [started, *got]


# -- cancel --------------------------------------------------------------------------------------------------


async def test_cancel_ends_the_run_keeps_its_text_and_tells_the_caller(tmp_path: Path) -> None:
    async def says(request: CompletionRequest) -> Reply:
        return Reply(chunks=("Half ", "of ", *["it "] * 1000), delay=0.02)

    provider = ScriptedProvider(says, "next")
    runtime = runtime_of(helper(tmp_path), provider)
    async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        streaming = {"accept": "text/event-stream"}
        async with client.stream("POST", RUN, json=BODY, headers=streaming) as stream:
            pieces, seen = stream.aiter_text(), ""
            while "of " not in seen:
                seen += await anext(pieces)
            run_id = events_of(seen[: seen.rindex("\n\n")])[0][2]["run_id"]
            state = (await client.post(f"/v1/runs/{run_id}/cancel")).json()
            closed = provider.closed_streams
            seen += "".join([piece async for piece in pieces])
        again = (await client.post(f"/v1/runs/{run_id}/cancel")).json()
        turns = (await client.get("/v1/agents/helper/sessions/s")).json()["turns"]
        following = await client.post(RUN, json=BODY)
    last = events_of(seen)[-1]
    assert last[1] == "run.cancelled"
    assert closed == 1
    assert state["status"] == "cancelled"
    assert state["result"] == {key: last[2][key] for key in ("response", "metadata")}
    said = state["result"]["response"]
    assert said.startswith("Half of ")
    assert again == state
    assert [(t["content"], t.get("status")) for t in turns] == [("go", None), (said, "partial")]
    assert following.json()["response"] == "next"


async def test_the_caller_of_a_cancelled_run_gets_409(tmp_path: Path) -> None:
    gate = Gate()
    async with client_of(runtime_of(helper(tmp_path), ScriptedProvider(gate))) as client:
        call = asyncio.create_task(client.post(RUN, json=BODY))
        await gate.entered.wait()
        run_id = await newest(client)
        state = (await client.post(f"/v1/runs/{run_id}/cancel")).json()
        answer = await call
        history = await client.get("/v1/agents/helper/sessions/s")
    assert (state["status"], set(state["result"])) == ("cancelled", {"metadata"})
    assert [visit["node"] for visit in state["result"]["metadata"]["nodes_visited"]] == ["react"]
    assert (answer.status_code, answer.json()["code"]) == (409, "interrupted")
    assert answer.json()["run_id"] == run_id
    assert gate.cancelled == 1
    assert history.status_code == 404


def nested(folder: Path) -> Path:
    tools = [{"name": f"ask{n}", "type": "agent", "agent": "below"} for n in (1, 2)]
    return write(folder, manifest("helper", tools=tools), manifest("below"))


async def test_cancel_reaches_every_nested_run_and_nothing_starts_after_it(tmp_path: Path) -> None:
    gate = Gate()
    calls = [ToolCall(f"c{n}", f"ask{n}", '{"query": "below"}') for n in (1, 2)]
    provider = ScriptedProvider(calls, gate, gate, "never said")
    async with client_of(runtime_of(nested(tmp_path), provider)) as client:
        call = asyncio.create_task(client.post(RUN, json=BODY))
        while len(gate.queries) < 2:
            await asyncio.sleep(0)
        runs = (await client.get("/v1/runs")).json()["runs"]
        state = await client.post(f"/v1/runs/{runs[-1]['run_id']}/cancel")
        asked = len(provider.requests)
        gate.go.set()
        await call
        after = (await client.get("/v1/runs")).json()["runs"]
    assert [r["agent"] for r in runs] == ["below", "below", "helper"]
    assert state.json()["status"] == "cancelled"
    assert [r["status"] for r in after] == ["cancelled"] * 3
    assert gate.cancelled == 2
    assert len(provider.requests) == asked == 3


async def test_cancel_of_a_nested_run_is_a_failed_tool_call_of_the_outer_one(tmp_path: Path) -> None:
    gate = Gate()
    provider = ScriptedProvider(ToolCall("c1", "ask1", '{"query": "below"}'), gate, "without it")
    async with client_of(runtime_of(nested(tmp_path), provider)) as client:
        call = asyncio.create_task(client.post(RUN, json=BODY))
        await gate.entered.wait()
        state = (await client.post(f"/v1/runs/{await newest(client)}/cancel")).json()
        answer = (await call).json()
    assert (state["agent"], state["status"]) == ("below", "cancelled")
    assert answer["response"] == "without it"
    assert "interrupted" in provider.requests[-1].messages[-1].content


# -- clients that leave --------------------------------------------------------------------------------------


async def leaves(at: str, gate: Gate, transport: str) -> None:
    """A client that goes away as soon as its run asks the model."""
    if transport == "websocket":
        async with connect(f"ws://{at}/v1/ws/agent/helper", open_timeout=60) as socket:
            await socket.send(json.dumps(BODY))
            await gate.entered.wait()
        return
    headers = {"accept": "text/event-stream"} if transport == "sse" else {}
    async with httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        call = asyncio.create_task(client.post(RUN, json=BODY, headers=headers))
        await gate.entered.wait()
        call.cancel()
        await asyncio.wait([call])


@pytest.mark.parametrize("transport", ["json", "sse", "websocket"])
async def test_on_disconnect_continue_finishes_the_run(tmp_path: Path, transport: str) -> None:
    gate = Gate()
    runtime = runtime_of(helper(tmp_path, on_disconnect="continue"), ScriptedProvider(gate))
    async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        await leaves(at, gate, transport)
        gate.go.set()
        path = f"/v1/runs/{await newest(client)}"
        while (state := (await client.get(path)).json())["status"] == "running":
            await asyncio.sleep(0.01)
        turns = (await client.get("/v1/agents/helper/sessions/s")).json()["turns"]
    assert (state["status"], gate.cancelled) == ("completed", 0)
    assert [t["content"] for t in turns] == ["go", "done"]


@pytest.mark.parametrize("transport", ["json", "sse", "websocket"])
async def test_on_disconnect_cancel_ends_the_run(tmp_path: Path, transport: str) -> None:
    gate = Gate()
    runtime = runtime_of(helper(tmp_path, on_disconnect="cancel"), ScriptedProvider(gate))
    async with served(runtime) as at, httpx.AsyncClient(base_url=f"http://{at}", timeout=60) as client:
        await leaves(at, gate, transport)
        path = f"/v1/runs/{await newest(client)}"
        while (state := (await client.get(path)).json())["status"] == "running":
            await asyncio.sleep(0.01)
    assert (state["status"], gate.cancelled) == ("cancelled", 1)


# -- sessions that are busy ----------------------------------------------------------------------------------


async def two(folder: Path, **sessions: Any) -> tuple[Gate, list[httpx.Response], list[dict[str, Any]]]:
    """Two messages to one session, the second while the model works on the first."""
    gate = Gate()
    runtime = runtime_of(helper(folder, sessions=sessions), ScriptedProvider(gate, repeat=True))
    async with client_of(runtime) as client:
        older = asyncio.create_task(client.post(RUN, json={"query": "one", "session_id": "s"}))
        if sessions["concurrency"] != "merge":
            await gate.entered.wait()
        newer = asyncio.create_task(client.post(RUN, json={"query": "two", "session_id": "s"}))
        if sessions["concurrency"] in ("reject", "interrupt"):
            await asyncio.wait([older, newer], return_when=asyncio.FIRST_COMPLETED)
        elif sessions.get("queue_timeout_seconds"):
            await asyncio.wait([newer])
        gate.go.set()
        answers = [await older, await newer]
        turns = (await client.get("/v1/agents/helper/sessions/s")).json()["turns"]
    return gate, answers, turns


def codes(answers: list[httpx.Response]) -> list[Any]:
    return [(a.status_code, a.json().get("code")) for a in answers]


async def test_reject_answers_409_to_the_newer_message(tmp_path: Path) -> None:
    _, answers, turns = await two(tmp_path, concurrency="reject")
    assert codes(answers) == [(200, None), (409, "session_busy")]
    assert [t["content"] for t in turns] == ["one", "done"]


async def test_interrupt_answers_409_to_the_older_message(tmp_path: Path) -> None:
    gate, answers, turns = await two(tmp_path, concurrency="interrupt")
    assert codes(answers) == [(409, "interrupted"), (200, None)]
    assert gate.cancelled == 1
    assert [t["content"] for t in turns] == ["two", "done"]


async def test_enqueue_answers_both_in_order(tmp_path: Path) -> None:
    _, answers, turns = await two(tmp_path, concurrency="enqueue")
    assert codes(answers) == [(200, None)] * 2
    assert [t["content"] for t in turns] == ["one", "done", "two", "done"]


async def test_enqueue_gives_up_after_its_time_with_409(tmp_path: Path) -> None:
    _, answers, turns = await two(tmp_path, concurrency="enqueue", queue_timeout_seconds=0.05)
    assert codes(answers) == [(200, None), (409, "session_busy")]
    assert [t["content"] for t in turns] == ["one", "done"]


async def test_merge_is_one_run_with_one_id_for_all(tmp_path: Path) -> None:
    gate, answers, turns = await two(tmp_path, concurrency="merge", merge_window_ms=50)
    assert codes(answers) == [(200, None)] * 2
    assert answers[0].json() == answers[1].json()
    assert gate.queries == ["one\ntwo"]
    assert [t["content"] for t in turns] == ["one\ntwo", "done"]


async def test_streams_that_merge_hear_the_same_run_from_its_first_event_on(tmp_path: Path) -> None:
    sessions = {"concurrency": "merge", "merge_window_ms": 50}
    provider = ScriptedProvider("said once")
    async with client_of(runtime_of(helper(tmp_path, sessions=sessions), provider)) as client:
        calls = [client.post(RUN, json=BODY, headers={"accept": "text/event-stream"}) for _ in range(3)]
        streams = [events_of(a.text) for a in await asyncio.gather(*calls)]
        listed = (await client.get("/v1/runs")).json()["runs"]
    assert streams[0] == streams[1] == streams[2]
    assert streams[0][0][1] == "run.started"
    assert [r["run_id"] for r in listed] == [streams[0][0][2]["run_id"]]
    assert len(provider.requests) == 1


async def test_cancel_of_a_merged_run_tells_all_its_callers(tmp_path: Path) -> None:
    gate = Gate()
    sessions = {"concurrency": "merge", "merge_window_ms": 20}
    async with client_of(runtime_of(helper(tmp_path, sessions=sessions), ScriptedProvider(gate))) as client:
        calls = [asyncio.create_task(client.post(RUN, json=BODY)) for _ in range(2)]
        await gate.entered.wait()
        state = (await client.post(f"/v1/runs/{await newest(client)}/cancel")).json()
        answers = [await call for call in calls]
    assert state["status"] == "cancelled"
    assert codes(answers) == [(409, "interrupted")] * 2


# -- what a run cost -----------------------------------------------------------------------------------------


async def test_usage_is_that_of_the_run_with_those_below_it(tmp_path: Path) -> None:
    provider = ScriptedProvider(
        Reply(tool_calls=(ToolCall("c1", "ask1", '{"query": "x"}'),), usage=Usage(100, 10, 0, 0.5)),
        Reply("below", usage=Usage(1000, 5, 0, 0.25)),
        Reply("above", usage=Usage(200, 20, 0, 1.0)),
    )
    async with client_of(runtime_of(nested(tmp_path), provider)) as client:
        answer = (await client.post(RUN, json=BODY)).json()
        below, above = (await client.get("/v1/runs")).json()["runs"]
        total = (await client.get("/v1/runs")).json()["usage"]
        metrics = (await client.get("/metrics")).text
    expected = {"input_tokens": 1300, "output_tokens": 35, "cached_tokens": 0, "cost_usd": 1.75}
    assert answer["metadata"]["usage"] == above["usage"] == total == expected
    assert answer["metadata"]["tokens_used"] == 1335
    assert (below["usage"]["input_tokens"], below["usage"]["cost_usd"]) == (1000, 0.25)
    assert 'astromesh_agent_cost_usd_total{agent="helper"} 1.75' in metrics
    assert 'astromesh_agent_cost_usd_total{agent="below"} 0.25' in metrics
