"""Durable runs in one process after the other: what is recorded is not done again, what waits is a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from msgspec.structs import replace

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunRow, SegmentClaim
from astromesh.durable.leases import LEASE_SECONDS
from astromesh.durable.sql_runs import Commit
from astromesh.durable.sqlite import SqliteRuns
from astromesh.errors import NotWaiting, StoreUnavailable
from astromesh.memory.backends.sqlite import SqliteConversations
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.runs import Decision
from astromesh.storage.queries import Transaction
from astromesh.testing import ManualClock, RecordingSink, RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0
MEMORY = {"conversational": {"backend": "sqlite"}}
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def lookup(answer: Any = lambda query: f"found {query}") -> RecordingTool:
    return RecordingTool("lookup", answer, parameters=QUERY)


def tool(**more: Any) -> dict[str, Any]:
    return {"name": "lookup", "type": "lookup", "effect": "read", **more}


@asynccontextmanager
async def working(
    folder: Path, provider: ScriptedProvider, used: RecordingTool, clock: ManualClock | None = None
) -> AsyncIterator[AgentRuntime]:
    """A process that works on runs; when it leaves it hands over what is not done."""
    runtime = runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(used)}}, clock=clock)
    await runtime.bootstrap()
    await runtime.durable.start()
    try:
        yield runtime
    finally:
        await runtime.close(grace=0.0)


async def rests(runtime: AgentRuntime, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            run = await runtime.runs.get(run_id, ME)
            if run["status"] not in ("queued", "running"):
                return run
            await asyncio.sleep(0.01)


async def begun(runtime: AgentRuntime, row: RunRow, calls: int) -> None:
    """Returns when it is on disk that the run has begun so many model calls."""
    async with asyncio.timeout(PATIENCE):
        while calls > len([s for s in await runtime.durable.store.steps(row.run_id) if s.kind == "model"]):
            await asyncio.sleep(0.01)


async def accepted(runtime: AgentRuntime, query: str = "Hello", name: str = "helper") -> RunRow:
    return await runtime.runner.accept(runtime.agent(name), RunRequest(query, "s-1"))


def tool_results(request: CompletionRequest) -> list[str]:
    return [m.content for m in request.messages if m.role == "tool"]


def asks(*queries: str) -> list[ToolCall]:
    return [ToolCall(f"call_{q}", "lookup", f'{{"query": "{q}"}}') for q in queries]


# -- the record ----------------------------------------------------------------------------------------------


async def test_a_run_that_cannot_be_stored_fails_and_the_next_one_of_its_session_begins(tmp_path):
    """Half of a surrogate pair, which a model in Python may return, has no form in UTF-8."""
    model = ScriptedProvider("half of \ud83d", "whole")
    async with working(write(tmp_path, manifest()), model, lookup()) as runtime:
        rows = [await accepted(runtime), await accepted(runtime)]
        ended = [await rests(runtime, row.run_id) for row in rows]
    assert [one["status"] for one in ended] == ["failed", "completed"]
    assert "cannot be stored" in ended[0]["error"]["detail"]


async def test_a_run_goes_on_in_another_process_behind_its_last_finished_step(tmp_path):
    """Finished calls are not made again, nothing is said twice, and usage, steps and metadata are whole."""
    folder = write(tmp_path, manifest(tools=[tool()], memory=MEMORY))
    stuck, first, second = asyncio.Event(), lookup(), lookup()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return "never"

    async with working(folder, ScriptedProvider(asks("a", "b"), hangs), first) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        await begun(one, row, 2)
    async with working(folder, provider := ScriptedProvider("all done"), second) as two:
        run = await rests(two, row.run_id)
        events = await two.durable.store.events(row.run_id)
    assert (run["status"], run["result"]["response"]) == ("completed", "all done")
    assert (len(first.calls), second.calls) == (2, [])
    assert tool_results(provider.requests[0]) == ["found a", "found b"]
    about = run["result"]["metadata"]
    assert (about["tools_called"], about["iterations"]) == (["lookup", "lookup"], 2)
    assert about["usage"]["input_tokens"] > provider.requests[0].messages[0].content.count(" ")
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    names = [e.type for e in events]
    for once in ("run.started", "memory.loaded", "model.restarted", "memory.persisted", "run.completed"):
        assert names.count(once) == 1, once
    assert names.count("tool.started") == names.count("tool.finished") == names.count("model.started") == 2


async def test_a_worker_whose_clock_jumps_or_whose_store_was_away_keeps_its_runs(tmp_path):
    """Its own lease has lapsed by then, and its sweep looks for lapsed leases."""
    folder, clock = write(tmp_path, manifest()), ManualClock()
    stuck, gate = asyncio.Event(), asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await gate.wait()
        return "Here."

    async with working(folder, ScriptedProvider(hangs), lookup(), clock) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        clock.advance(LEASE_SECONDS + 1)
        await one.durable.sweep(one.durable.worker)
        found = await one.durable.store.get(row.run_id)
        assert found is not None and (found.status, found.segment) == ("running", 1)
        gate.set()
        assert (await rests(one, row.run_id))["status"] == "completed"


async def test_a_run_that_another_worker_has_taken_is_not_in_progress_here_any_more(tmp_path):
    folder = write(tmp_path, manifest())
    stuck, gate = asyncio.Event(), asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await gate.wait()
        return "too late"

    def in_progress() -> float:
        readings, _ = one.metrics.read()
        return next(found[()] for reading, found in readings if reading.name == "runs_in_progress")

    async with working(folder, ScriptedProvider(hangs), lookup()) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        assert in_progress() == 1
        store = one.durable.store
        await store.overdue(-1.0)
        assert await store.claim(row.run_id, 2, "another worker") is not None
        gate.set()
        async with asyncio.timeout(PATIENCE):
            while one.runner.active.count:
                await asyncio.sleep(0.01)
        assert in_progress() == 0


@pytest.mark.parametrize("finished", range(6))
async def test_concurrent_branches_keep_their_own_results(tmp_path, finished):  # noqa: C901
    """R17: two branches of three steps, the same tool and ids, cut anywhere and taken up in another order."""
    branches = [{"name": name, "prompt": f"You are branch {name}."} for name in ("A", "B")]
    pattern = {"pattern": "parallel_fan_out", "parallel_fan_out": {"branches": branches, "merge": "concat"}}
    folder = write(tmp_path, manifest(tools=[tool()], orchestration=pattern))

    def branch_of(request: CompletionRequest) -> str:
        return "A" if any("You are branch A." in m.content for m in request.messages) else "B"

    def says(request: CompletionRequest) -> Any:
        name, done = branch_of(request), tool_results(request)
        assert done == [f"found {name}{n}" for n in range(len(done))], done
        if len(done) == 2:
            return f"{name} has {' and '.join(done)}"
        return [ToolCall(f"call_{len(done)}", "lookup", f'{{"query": "{name}{len(done)}"}}')]

    calls: list[Any] = []
    cut = asyncio.Event()

    async def until_cut(request: CompletionRequest) -> Any:
        if len(calls) >= finished:
            cut.set()
            await asyncio.Event().wait()
        calls.append(branch_of(request))
        return says(request)

    gone_ahead = asyncio.Event()

    async def other_way_round(request: CompletionRequest) -> Any:
        if branch_of(request) == "A" and not finished % 2:
            await asyncio.wait_for(gone_ahead.wait(), PATIENCE)
        if branch_of(request) == "B" and len(tool_results(request)) == 2:
            gone_ahead.set()
        return says(request)

    async with working(folder, ScriptedProvider(until_cut, repeat=True), lookup()) as one:
        row = await accepted(one)
        await asyncio.wait_for(cut.wait(), PATIENCE)
    if {"A", "B"} == set(calls) and calls.count("B") == 3:
        gone_ahead.set()
    async with working(folder, ScriptedProvider(other_way_round, repeat=True), lookup()) as two:
        run = await rests(two, row.run_id)
    assert run["status"] == "completed", run["error"]
    for name in "AB":
        assert f"{name} has found {name}0 and found {name}1" in run["result"]["response"]


async def test_a_run_that_asks_something_else_than_its_record_fails_and_names_the_place(tmp_path):
    folder = write(tmp_path, manifest(tools=[tool()]))
    stuck = asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return ""

    async with working(folder, ScriptedProvider(asks("a"), hangs), lookup()) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        await begun(one, row, 1)
        steps = await one.durable.store.steps(row.run_id)
    async with tampered(folder, steps, row) as two:
        run = await rests(two, row.run_id)
    assert (run["status"], run["error"]["code"]) == ("failed", "divergence")
    assert "'react'" in run["error"]["detail"]


@asynccontextmanager
async def tampered(folder: Path, steps: Any, row: RunRow) -> AsyncIterator[AgentRuntime]:
    """A process that finds another request in the record of the first model call."""
    runtime = runtime_of(folder, ScriptedProvider("x"), plugins={"tools": {"lookup": plugin_of(lookup())}})
    await runtime.bootstrap()
    store = await runtime.durable.open()
    claimed = await store.claim(row.run_id, 2, "tamperer")
    assert claimed is not None
    changed = [s._replace(request_hash="0" * 64) for s in steps if s.kind == "model" and s.n == 1]
    await store.commit(SegmentClaim(row.run_id, 2, "tamperer"), steps=changed)
    await store.release_worker("tamperer")
    await runtime.durable.start()
    try:
        yield runtime
    finally:
        await runtime.close(grace=0.0)


async def test_a_run_ends_under_the_manifest_it_began_with(tmp_path):
    """R16: its prompt stays the one of its acceptance, also where the agent's file has changed or gone."""
    folder = write(tmp_path, manifest(prompts={"system": "You are the old one."}))
    stuck = asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return ""

    async with working(folder, ScriptedProvider(hangs), lookup()) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
    file = folder / "agents" / "helper.agent.yaml"
    file.write_text(yaml.safe_dump(manifest(prompts={"system": "You are the new one."})))
    async with working(folder, provider := ScriptedProvider("old answer", "new answer"), lookup()) as two:
        run = await rests(two, row.run_id)
        later = await rests(two, (await accepted(two, "And now?")).run_id)
    assert [r.messages[0].content for r in provider.requests] == [
        "You are the old one.",
        "You are the new one.",
    ]
    assert (run["result"]["response"], later["result"]["response"]) == ("old answer", "new answer")


async def test_a_run_goes_on_with_the_graph_and_the_agents_that_it_began_with(tmp_path):
    """R16: both files are other ones, or gone, when it is taken up; a new run has the new ones."""

    def graph(*names: str) -> dict[str, Any]:
        common = {"kind": "prompt", "inject_tools": True, "max_iterations": 5}
        nodes = [{"name": n, "instructions": f"You are {n}.", **common} for n in names]
        nodes[-1] = {**nodes[-1], "is_terminal": True}
        edges = [{"from": a, "to": b} for a, b in pairwise(names)]
        head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "plan"}}
        return {**head, "spec": {"name": "plan", "entry": names[0], "nodes": nodes, "edges": edges}}

    def files(*names: str, below: str) -> None:
        (folder / "graphs").mkdir(exist_ok=True)
        (folder / "graphs" / "plan.graph.yaml").write_text(yaml.safe_dump(graph(*names)))
        write(folder, manifest("clerk", prompts={"system": below}))

    asks_clerk = {"name": "clerk", "type": "agent", "agent": "clerk", "effect": "read"}
    pattern = {"pattern": "graph", "graph": "plan"}
    folder = write(tmp_path, manifest("outer", orchestration=pattern, tools=[asks_clerk]))
    files("first", "second", below="You are the old clerk.")
    stuck = asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return ""

    async with working(folder, ScriptedProvider("one", hangs), lookup()) as one:
        row = await accepted(one, name="outer")
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        await begun(one, row, 2)
    files("other", below="You are the new clerk.")
    asked = [ToolCall("call_1", "clerk", '{"query": "Well?"}')]
    script = ScriptedProvider(asked, "old clerk", "two", asked, "new clerk", "three")
    async with working(folder, script, lookup()) as two:
        run = await rests(two, row.run_id)
        later = await rests(two, (await accepted(two, "And now?", name="outer")).run_id)
    assert (run["status"], run["result"]["response"]) == ("completed", "two")
    assert (later["status"], later["result"]["response"]) == ("completed", "three")
    told = ["\n".join(m.content for m in r.messages) for r in script.requests]
    for text, wanted in zip(
        told, ("You are second.", "old clerk", "second", "other", "new clerk", "other"), strict=True
    ):
        assert wanted in text, told


async def test_a_record_of_a_newer_astromesh_is_left_to_a_newer_astromesh(tmp_path):
    """R16: it is neither failed nor begun here; it stays queued for whoever can read it."""
    provider = ScriptedProvider("Hi")
    async with working(write(tmp_path, manifest()), provider, lookup()) as runtime:
        row = await accepted(runtime)
        await rests(runtime, row.run_id)
        store = runtime.durable.store
        kept = await store.get(row.run_id)
        assert kept is not None
        newer = replace(
            kept, run_id="run_newer", status="queued", segment=1, worker="", finished_at=0.0, result=None,
            request={**row.request, "journal": 99},
        )  # fmt: skip
        await store.accept(newer)
        begun = asyncio.create_task(runtime.durable.work("run_newer", 1))
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await store.get("run_newer")
                assert found is not None
                if found.segment > 1:
                    break
                await asyncio.sleep(0.01)
        begun.cancel()
        assert (found.status, found.error) == ("queued", None)
        assert await store.events("run_newer") == ()
    assert len(provider.requests) == 1


@pytest.mark.parametrize("method", ["recall", "append"])
async def test_a_store_of_turns_that_is_away_delays_an_accepted_run(tmp_path, method):
    """R7: neither at the beginning nor at the end does it fail; what was done is not done again."""
    away = [StoreUnavailable("The store is away.")] * 2

    class Leaving(SqliteConversations):
        """A store that is away at first."""

        async def recall(self, *given: Any, **more: Any) -> Any:
            if method == "recall" and away:
                raise away.pop()
            return await super().recall(*given, **more)

        async def append(self, *given: Any, **more: Any) -> Any:
            if method == "append" and away:
                raise away.pop()
            return await super().append(*given, **more)

    folder = write(tmp_path, manifest(memory=MEMORY))
    stores = {"conversation_stores": {"sqlite": Leaving}}
    async with runtime_of(folder, ScriptedProvider("Hi"), plugins=stores) as runtime:
        row = await accepted(runtime)
        run = await rests(runtime, row.run_id)
        events = await runtime.durable.store.events(row.run_id)
    assert (away, run["status"], run["result"]["response"]) == ([], "completed", "Hi")
    names = [e.type for e in events]
    assert names.count("run.started") == names.count("model.started") == names.count("run.completed") == 1


# -- following -----------------------------------------------------------------------------------------------


async def test_a_reader_resumes_behind_any_event_in_any_process(tmp_path):
    """R3: what was read before and after the cut is the whole log, live and afterwards."""
    folder = write(tmp_path, manifest())
    async with working(folder, ScriptedProvider("one two three", repeat=True), lookup()) as one:
        live = RecordingSink()
        row = await accepted(one)
        await one.runs.follow(row.run_id, ME, 0, live)
        await rests(one, row.run_id)
        async with asyncio.timeout(PATIENCE):
            while not live.events or live.events[-1].type != "run.completed":
                await asyncio.sleep(0.01)
    async with working(folder, ScriptedProvider(), lookup()) as two:
        for cut in range(len(live.events) + 1):
            rest = RecordingSink()
            assert await two.runs.follow(row.run_id, ME, cut, rest) is None
            assert [e.seq for e in live.events[:cut] + rest.events] == list(range(1, len(live.events) + 1))


async def test_a_run_is_cancelled_from_a_process_that_does_not_work_on_it(tmp_path):
    folder = write(tmp_path, manifest())
    stuck = asyncio.Event()

    async def hangs(_: CompletionRequest) -> str:
        stuck.set()
        await asyncio.Event().wait()
        return ""

    async with working(folder, ScriptedProvider(hangs), lookup()) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
        other = runtime_of(folder, ScriptedProvider(), plugins={"tools": {"lookup": plugin_of(lookup())}})
        await other.bootstrap()
        await other.durable.open()
        run = await other.runs.cancel(row.run_id, ME)
        await other.close(grace=0.0)
        last = (await one.durable.store.events(row.run_id))[-1]
    assert (run["status"], last.type) == ("cancelled", "run.cancelled")


# -- people --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def api(
    folder: Path, provider: ScriptedProvider, used: RecordingTool
) -> AsyncIterator[httpx.AsyncClient]:
    runtime = runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(used)}})
    async with client_of(runtime) as client:
        yield client


async def test_a_call_that_needs_approval_pauses_its_run_over_a_restart(tmp_path):
    """202 with what it waits for; the approval, with other arguments, comes to another process."""
    folder = write(tmp_path, manifest(tools=[tool(effect="write", approval="required")], memory=MEMORY))
    body = {"query": "Do it", "session_id": "s-1"}
    first, second = lookup(), lookup()
    async with api(folder, ScriptedProvider(asks("a")), first) as client:
        answer = await client.post("/v1/agents/helper/run", json=body)
        waiting = answer.json()
        assert (answer.status_code, waiting["status"]) == (202, "waiting")
        assert (waiting["waiting_for"]["kind"], waiting["waiting_for"]["arguments"]) == (
            "approval",
            {"query": "a"},
        )
    path = f"/v1/runs/{waiting['run_id']}"
    async with api(folder, provider := ScriptedProvider("done"), second) as client:
        listed = await until(client, "/v1/approvals", lambda found: found["approvals"])
        assert [a["run_id"] for a in listed["approvals"]] == [waiting["run_id"]]
        decision = {"decision": "approve", "arguments": {"query": "b"}}
        assert (await client.post(f"{path}/resume", json=decision)).status_code == 200
        again = await client.post(f"{path}/resume", json=decision)
        run = await until(client, path, lambda found: found["status"] == "completed")
        assert (again.status_code, again.json()["code"]) == (409, "not_waiting")
        assert (await client.get("/v1/approvals")).json()["approvals"] == []
    assert (first.calls, second.calls) == ([], [{"query": "b"}])
    assert (run["result"]["response"], tool_results(provider.requests[0])) == ("done", ["found b"])


async def test_only_calls_that_a_rule_names_are_put_to_a_person(tmp_path):
    """Of two calls of one turn the one is made at once, the other one pauses the run."""
    rule = {"when": "query == 'b'"}
    folder = write(tmp_path, manifest(tools=[tool(effect="write", approval=rule)]))
    async with working(folder, ScriptedProvider(asks("a", "b"), "done"), used := lookup()) as runtime:
        row = await accepted(runtime)
        waiting = await rests(runtime, row.run_id)
        assert (waiting["waiting_for"]["arguments"], used.calls) == ({"query": "b"}, [{"query": "a"}])
        await runtime.runs.resume(row.run_id, ME, CallerContext("ann"), Decision("approve"))
        assert (await rests(runtime, row.run_id))["status"] == "completed"
    assert used.calls == [{"query": "a"}, {"query": "b"}]


@pytest.mark.parametrize(
    ("said", "told"), [(Decision("deny"), "A person has denied"), (Decision("answer", answer="42"), "42")]
)
async def test_a_refused_call_is_not_made_and_who_decided_is_kept(tmp_path, said, told):
    folder = write(tmp_path, manifest(tools=[tool(effect="write", approval="required")]))
    provider = ScriptedProvider(asks("a"), "understood")
    async with working(folder, provider, used := lookup()) as runtime:
        row = await accepted(runtime)
        assert (await rests(runtime, row.run_id))["status"] == "waiting"
        await runtime.runs.resume(row.run_id, ME, CallerContext("ann"), said)
        run = await rests(runtime, row.run_id)
        steps = await runtime.durable.store.steps(row.run_id)
        with pytest.raises(NotWaiting):
            await runtime.runs.resume(row.run_id, ME, CallerContext("bob"), said)
    assert (run["status"], used.calls) == ("completed", [])
    assert tool_results(provider.requests[1])[0].startswith(told)
    assert [s.output["by"] for s in steps if s.kind == "wait" and s.output] == ["ann"]


async def test_a_waiting_run_has_no_task(tmp_path):
    folder = write(tmp_path, manifest(tools=[tool(approval="required")]))
    async with working(folder, ScriptedProvider(asks("a"), repeat=True), lookup()) as runtime:
        await asyncio.sleep(0.1)  # the periodic jobs pause, which is a task each
        before = len(asyncio.all_tasks())
        rows = [
            await runtime.runner.accept(runtime.agent("helper"), RunRequest("Hello", f"s-{n}"))
            for n in range(20)
        ]
        for row in rows:
            assert (await rests(runtime, row.run_id))["status"] == "waiting"
        async with asyncio.timeout(PATIENCE):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)


async def until(client: httpx.AsyncClient, path: str, found: Callable[[Any], Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.get(path)
            if answer.status_code == 200 and found(answer.json()):
                return answer.json()
            await asyncio.sleep(0.02)


# -- graphs --------------------------------------------------------------------------------------------------

LETTER: dict[str, Any] = {
    "entry": "write",
    "nodes": [
        {"name": "write", "kind": "prompt", "instructions": "Write."},
        {"name": "review", "kind": "human", "instructions": "May this be sent?", "output_key": "letter"},
        {"name": "send", "kind": "prompt", "instructions": "Send.", "input_keys": ["letter"]},
    ],
    "edges": [{"from": "write", "to": "review"}, {"from": "review", "to": "send"}],
}


def with_graph(folder: Path, **review: Any) -> Path:
    """Agent `helper` runs the graph; `outer` has `helper` as a tool."""
    spec = {**LETTER, "nodes": [{**n, **(review if n["name"] == "review" else {})} for n in LETTER["nodes"]]}
    (folder / "graphs").mkdir(parents=True)
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "letter"}, "spec": spec}
    (folder / "graphs" / "letter.graph.yaml").write_text(yaml.safe_dump(head))
    nested = [{"name": "ask", "type": "agent", "agent": "helper"}]
    return write(
        folder,
        manifest(orchestration={"pattern": "graph", "graph": "letter"}, memory=MEMORY),
        manifest("outer", tools=nested),
    )


@pytest.mark.parametrize(
    ("decision", "response", "reason", "calls"),
    [
        ({"decision": "approve"}, "sent", "completed", 1),
        ({"decision": "answer", "answer": "a better letter"}, "sent", "completed", 1),
        ({"decision": "deny"}, "A person has not approved this, so I stopped here.", "human_denied", 0),
    ],
)
async def test_a_human_node_pauses_its_run_over_a_restart(tmp_path, decision, response, reason, calls):
    """The draft is shown; what was written before is not written again; a denied draft is not the answer."""
    folder, used = with_graph(tmp_path), lookup()
    body = {"query": "Write to Ann", "session_id": "s-1"}
    async with api(folder, ScriptedProvider("a draft"), used) as client:
        answer = await client.post("/v1/agents/helper/run", json=body)
    waiting = answer.json()
    assert (answer.status_code, waiting["status"]) == (202, "waiting")
    asked = waiting["waiting_for"]
    assert (asked["kind"], asked["name"], asked["question"], asked["arguments"]) == (
        "human", "review", "May this be sent?", "a draft",
    )  # fmt: skip
    path = f"/v1/runs/{waiting['run_id']}"
    async with api(folder, provider := ScriptedProvider(*["sent"] * calls), used) as client:
        listed = await until(client, "/v1/approvals", lambda found: found["approvals"])
        assert [(a["run_id"], a["name"]) for a in listed["approvals"]] == [(waiting["run_id"], "review")]
        assert (await client.post(f"{path}/resume", json=decision)).status_code == 200
        run = await until(client, path, lambda found: found["finished_at"])
    assert (run["status"], run["result"]["response"]) == ("completed", response)
    assert (run["result"]["metadata"]["stop_reason"], len(provider.requests)) == (reason, calls)
    if "answer" in decision:
        assert "a better letter" in str(provider.requests[0].messages)


async def test_a_human_node_that_nobody_answers_in_time_ends_its_run(tmp_path):
    folder, clock = with_graph(tmp_path, approval_timeout=3600), ManualClock()
    async with working(folder, ScriptedProvider("a draft"), lookup(), clock) as runtime:
        row = await accepted(runtime)
        assert (await rests(runtime, row.run_id))["waiting_for"]["name"] == "review"
        clock.advance(3601)
        async with asyncio.timeout(PATIENCE):
            while (run := await runtime.runs.get(row.run_id, ME))["status"] != "completed":
                await asyncio.sleep(0.02)
    assert run["result"]["metadata"]["stop_reason"] == "human_timeout"


async def test_a_human_node_of_a_nested_run_pauses_the_whole_tree(tmp_path):
    """The outer run waits as a row; with the decision both go on where they were."""
    folder = with_graph(tmp_path)
    provider = ScriptedProvider([ToolCall("c", "ask", '{"query": "Write"}')], "a draft", "sent", "all done")
    async with working(folder, provider, lookup()) as runtime:
        row = await accepted(runtime, name="outer")
        waiting = await rests(runtime, row.run_id)
        assert (waiting["status"], waiting["waiting_for"]["kind"]) == ("waiting", "human")
        await runtime.runs.resume(row.run_id, ME, CallerContext("ann"), Decision("approve"))
        run = await rests(runtime, row.run_id)
    assert (run["status"], run["result"]["response"]) == ("completed", "all done")
    assert (tool_results(provider.requests[3]), len(provider.requests)) == (["sent"], 4)


async def test_each_death_in_a_call_is_a_question_of_its_own(tmp_path):
    """A decision to repeat a call allows one call, not one for each later death."""
    folder = write(tmp_path, manifest(tools=[tool(effect="write")], memory=MEMORY))
    calls, stuck = [], asyncio.Event()

    async def hangs(query: str) -> str:
        calls.append(query)
        stuck.set()
        await asyncio.Event().wait()
        return "never"

    async with working(folder, ScriptedProvider(asks("a")), lookup(hangs)) as one:
        row = await accepted(one)
        await asyncio.wait_for(stuck.wait(), PATIENCE)
    for death in (1, 2):
        stuck.clear()
        async with working(folder, ScriptedProvider(), lookup(hangs)) as process:
            run = await rests(process, row.run_id)
            assert (run["status"], run["waiting_for"]["kind"], len(calls)) == (
                "waiting",
                "unknown_outcome",
                death,
            )
            await process.runs.resume(row.run_id, ME, CallerContext(), Decision("approve"))
            await asyncio.wait_for(stuck.wait(), PATIENCE)
    assert calls == ["a"] * 3


class Refusing(SqliteRuns):
    """A store that cannot write one text."""

    async def _commit_all(self, commits: Sequence[Commit], tx: Transaction) -> Sequence[bool]:
        if any("unstorable" in str(step.output) for commit in commits for step in commit.steps):
            raise ValueError("the store has no place for this")
        return await super()._commit_all(commits, tx)


async def test_a_step_that_cannot_be_stored_ends_its_run_and_no_other(tmp_path):
    """The run fails at once and keeps its events; the next one completes."""
    folder = write(tmp_path, manifest(tools=[tool()]))
    provider = ScriptedProvider(asks("x"), "hello")
    plugins = {
        "run_stores": {"sqlite": Refusing},
        "tools": {"lookup": plugin_of(lookup(lambda query: "unstorable"))},
    }
    runtime = runtime_of(folder, provider, plugins=plugins)
    await runtime.bootstrap()
    await runtime.durable.start()
    broken = await rests(runtime, (await accepted(runtime)).run_id)
    whole = await rests(runtime, (await accepted(runtime)).run_id)
    events = await runtime.durable.store.events(broken["run_id"])
    await runtime.close(grace=0.0)
    assert (broken["status"], broken["error"]["code"]) == ("failed", "internal")
    assert (whole["status"], whole["result"]["response"]) == ("completed", "hello")
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "run.failed"
