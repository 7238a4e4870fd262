"""Accepted runs of one session over several processes: each policy as it is named; bounds of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.durable.base import IdempotencyKey, RunRow
from astromesh.durable.leases import REQUEST_SECONDS
from astromesh.errors import Interrupted, Overloaded, SessionBusy
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CompletionRequest, SessionKey
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

ME = Viewer("default", "anonymous")
PATIENCE = 30.0
Making = Callable[..., Any]


@pytest.fixture(params=("sqlite", "postgres"))
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Making:
    """`async with processes(script, **spec) as runtimes`: runtimes of one folder and one store of runs."""

    @asynccontextmanager
    async def make(
        script: Any, count: int = 2, clock: ManualClock | None = None, **spec: Any
    ) -> AsyncIterator[list[AgentRuntime]]:
        memory: dict[str, Any] = {"conversational": {"backend": request.param}}
        if request.param == "postgres":
            url = request.getfixturevalue("postgres_database")
            head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
            (tmp_path / "runtime.yaml").write_text(
                yaml.safe_dump({**head, "spec": {"storage": {"url": url}}})
            )
        folder = write(tmp_path, manifest("a", memory=memory, **spec))
        async with AsyncExitStack() as stack:
            made = []
            for _ in range(count):
                provider = ScriptedProvider(script, repeat=True)
                runtime = runtime_of(folder, provider, clock=clock)
                await stack.enter_async_context(runtime)
                await runtime.durable.start()
                made.append(runtime)
            yield made

    return make


async def accepted(runtime: AgentRuntime, query: str, session: str = "s") -> RunRow:
    return await runtime.runner.accept(runtime.agent("a"), RunRequest(query, session))


async def rests(runtime: AgentRuntime, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            run = await runtime.runs.get(run_id, ME)
            if run["status"] not in ("queued", "running"):
                return run
            await asyncio.sleep(0.01)


async def turns_of(runtime: AgentRuntime, session: str = "s") -> list[tuple[str, str]]:
    store = runtime.agent("a").memory.conversations
    assert store is not None
    key = SessionKey("default", "a", session, "anonymous")
    return [(t.role, t.content) for t in await store.page(key, limit=1000)]


class Stuck:
    """A model that answers at once, but for messages with `old` in them: those wait for `go`."""

    def __init__(self) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: CompletionRequest) -> str:
        if "old" in request.messages[-1].content:
            self.begun.set()
            await self.go.wait()
        return f"re: {request.messages[-1].content}"


# -- policies ------------------------------------------------------------------------------------------------


async def test_messages_that_several_processes_accept_within_the_window_become_one_run(processes):
    """One run_id, one turn; what comes later is a run of its own."""
    clock = ManualClock()
    async with processes(Stuck(), clock=clock, sessions={"concurrency": "merge"}) as (one, two):
        rows = [await accepted((one, two)[n % 2], f"m{n}") for n in range(5)]
        assert len({row.run_id for row in rows}) == 1
        assert (await two.runs.get(rows[0].run_id, ME))["status"] == "queued"
        clock.advance(0.6)
        run = await rests(two, rows[0].run_id)
        later = await accepted(two, "later")
        assert later.run_id != run["run_id"]
        assert (run["status"], run["result"]["response"]) == ("completed", "re: m0\nm1\nm2\nm3\nm4")
        assert await turns_of(one) == [
            ("user", "m0\nm1\nm2\nm3\nm4"),
            ("assistant", "re: m0\nm1\nm2\nm3\nm4"),
        ]


async def test_a_window_whose_process_leaves_is_another_ones(processes):
    """Accepted is accepted: the run begins elsewhere when its window is over."""
    clock = ManualClock()
    async with processes(Stuck(), clock=clock, sessions={"concurrency": "merge"}) as (one, two):
        row = await accepted(one, "m0")
        await one.close(grace=0.0)
        assert (await accepted(two, "m1")).run_id == row.run_id
        clock.advance(5.0)
        assert (await rests(two, row.run_id))["result"]["response"] == "re: m0\nm1"


async def test_a_message_is_refused_while_any_process_answers_one_of_its_session(processes):
    """`reject`: at once, over HTTP too (409); a duplicate of the running one is no second message."""
    model = Stuck()
    async with processes(model, sessions={"concurrency": "reject"}) as (one, two):
        old = await accepted(one, "old")
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        for runtime in (one, two):
            with pytest.raises(SessionBusy):
                await accepted(runtime, "new")
        model.go.set()
        assert (await rests(two, old.run_id))["status"] == "completed"
        assert (await rests(two, (await accepted(two, "new")).run_id))["status"] == "completed"


async def test_a_run_that_was_let_in_is_not_refused_later(processes):
    """`reject`: where a dead process still holds the session's lease, the run waits for it."""
    async with processes(Stuck(), sessions={"concurrency": "reject"}) as (one, _):
        leases = one.agent("a").memory.leases
        assert leases is not None
        assert leases.shared
        assert await leases.take(SessionKey("default", "a", "s", "anonymous"), "a dead process", 0.4)
        row = await accepted(one, "Hello")
        assert (await rests(one, row.run_id))["status"] == "completed"


async def test_a_newer_message_ends_the_run_of_another_process(processes):
    """`interrupt`: only the newest is answered, wherever the older ones are, and none comes back."""
    model = Stuck()
    async with processes(model, sessions={"concurrency": "interrupt"}) as (one, two):
        old = await accepted(one, "old")
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        newer = await accepted(two, "old, too")
        newest = await accepted(one, "new")
        states = [(await rests(two, row.run_id))["status"] for row in (old, newer, newest)]
        assert states == ["cancelled", "cancelled", "completed"]
        assert (await turns_of(two))[-2:] == [("user", "new"), ("assistant", "re: new")]


async def test_an_accepted_message_ends_a_plain_run_of_its_session(processes):
    """`interrupt`: the caller of the older one gets Interrupted."""
    model = Stuck()
    async with processes(model, sessions={"concurrency": "interrupt"}) as (one, two):
        old = asyncio.create_task(one.run("a", "old", "s"))
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        new = await accepted(two, "new")
        assert (await rests(two, new.run_id))["status"] == "completed"
        with pytest.raises(Interrupted):
            await old


async def test_an_accepted_run_is_cancelled_whoever_takes_its_place(processes):
    """`interrupt`: a plain message leaves it as an accepted one does, without an error."""
    model = Stuck()
    async with processes(model, sessions={"concurrency": "interrupt"}) as (one, two):
        old = await accepted(one, "old")
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        assert (await two.run("a", "new", "s")).response == "re: new"
        ended = await rests(two, old.run_id)
        assert (ended["status"], ended["error"]) == ("cancelled", None)


async def test_an_accepted_run_that_begins_after_a_newer_message_is_not_answered(processes):
    """`interrupt`: a message takes its place when it comes, however long it waits to begin."""
    model = Stuck()
    spec = {"sessions": {"concurrency": "interrupt"}, "queue": {"max_running": 1}}
    async with processes(model, **spec) as (one, two):
        busy = await accepted(one, "old", "another session")
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        older = await accepted(one, "older, not begun")
        assert (await two.run("a", "newest", "s")).response == "re: newest"
        model.go.set()
        states = [(await rests(two, row.run_id))["status"] for row in (busy, older)]
        assert states == ["completed", "cancelled"]
        assert await turns_of(one) == [("user", "newest"), ("assistant", "re: newest")]


async def test_an_accepted_run_that_begins_late_is_answered_if_it_is_the_newest(processes):
    """`interrupt`: its place is its own although the message before has ended meanwhile."""
    model = Stuck()
    spec = {"sessions": {"concurrency": "interrupt"}, "queue": {"max_running": 1}}
    async with processes(model, **spec) as (one, two):
        await accepted(one, "old", "another session")
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        assert (await two.run("a", "first", "s")).response == "re: first"
        newest = await accepted(one, "newest")
        model.go.set()
        assert (await rests(two, newest.run_id))["status"] == "completed"


async def test_a_repeated_request_takes_no_place(processes):
    """`interrupt`: it is the same message, so that its own run goes on, in either process."""
    model = Stuck()
    async with processes(model, sessions={"concurrency": "interrupt"}) as (one, two):
        key = IdempotencyKey("default", "anonymous", "route", "key", "hash", 2e9)
        rows = []
        for runtime in (one, two, one):
            request = RunRequest("old", "s")
            rows.append(await runtime.runner.accept(runtime.agent("a"), request, key=key))
            await asyncio.wait_for(model.begun.wait(), PATIENCE)
        assert len({row.run_id for row in rows}) == 1
        await asyncio.sleep(1.5 * REQUEST_SECONDS)  # as long as it takes to hear of a newer message
        model.go.set()
        assert (await rests(two, rows[0].run_id))["status"] == "completed"


# -- bounds --------------------------------------------------------------------------------------------------


class Counted:
    """A model that knows how many ask it at once; each goes on when `go` is set."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.changed, self.go = asyncio.Condition(), asyncio.Event()

    async def __call__(self, request: CompletionRequest) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        async with self.changed:
            self.changed.notify_all()
        await self.go.wait()
        self.now -= 1
        return "done"

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: self.now >= count)


async def test_no_more_runs_of_an_agent_go_on_than_may_over_all_processes(processes):
    """Twelve runs of twelve sessions, two processes, three at once; each that ends lets one begin."""
    model = Counted()
    async with processes(model, queue={"max_running": 3}) as both:
        rows = [await accepted(both[n % 2], "Hello", f"s-{n}") for n in range(12)]
        await model.reach(3)
        model.go.set()
        assert {(await rests(both[0], row.run_id))["status"] for row in rows} == {"completed"}
    assert model.most == 3


async def test_the_line_of_an_agent_is_bounded(processes):
    """Beyond `max_queued` runs are refused by name; there is room again when one begins."""
    model = Counted()
    async with processes(model, queue={"max_running": 1, "max_queued": 2}) as (one, two):
        first = await accepted(one, "Hello", "s-0")
        await model.reach(1)
        rows = [await accepted(both, "Hello", f"s-{n}") for n, both in enumerate((one, two), 1)]
        for runtime in (one, two):
            with pytest.raises(Overloaded, match="max_queued"):
                await accepted(runtime, "Hello", "s-x")
        model.go.set()
        assert {(await rests(two, row.run_id))["status"] for row in (first, *rows)} == {"completed"}
        assert (await rests(two, (await accepted(two, "Hello", "s-x")).run_id))["status"] == "completed"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    return lambda **spec: write(tmp_path, manifest("a", **spec))


async def test_plain_runs_wait_in_line_and_are_refused_where_it_is_full(folder):
    """Over HTTP 503 with Retry-After."""
    model = Counted()
    config = folder(queue={"max_running": 2, "max_queued": 2}, memory={})
    async with client_of(runtime_of(config, ScriptedProvider(model, repeat=True))) as client:

        def ask(n: int) -> asyncio.Task[Any]:
            body = {"query": "Hello", "session_id": f"s-{n}"}
            return asyncio.create_task(client.post("/v1/agents/a/run", json=body))

        running = [ask(n) for n in range(2)]
        await model.reach(2)
        more = [ask(n) for n in range(2, 5)]
        done, waiting = await asyncio.wait(more, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [task.result() for task in done]
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert "max_queued" in refused.json()["detail"]
        assert "retry-after" in refused.headers
        model.go.set()
        assert {(await task).status_code for task in (*running, *waiting)} == {200}
    assert model.most == 2


async def test_who_leaves_the_line_takes_no_slot(folder):
    model, clock = Counted(), ManualClock()
    config = folder(queue={"max_running": 1}, sessions={"queue_timeout_seconds": 5}, memory={})
    runtime = runtime_of(config, ScriptedProvider(model, repeat=True), clock=clock)
    async with runtime:
        first = asyncio.create_task(runtime.run("a", "Hello", "s-0"))
        await model.reach(1)
        gone = asyncio.create_task(runtime.run("a", "Hello", "s-1"))
        late = asyncio.create_task(runtime.run("a", "Hello", "s-2"))
        for _ in range(20):
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        clock.advance(6)
        with pytest.raises(Overloaded, match="no free slot"):
            await late
        last = asyncio.create_task(runtime.run("a", "Hello", "s-3"))
        model.go.set()
        assert [(await task).response for task in (first, last)] == ["done", "done"]


async def test_accepted_runs_have_the_priority_of_their_agent(folder, tmp_path):
    config = folder(queue={"priority": -5})
    async with runtime_of(config, ScriptedProvider("Hi", repeat=True)) as runtime:
        row = await accepted(runtime, "Hello")
        assert row.priority == -5
        await rests(runtime, row.run_id)


# -- runs that are accepted for later ------------------------------------------------------------------------


async def for_later(runtime: AgentRuntime, query: str, seconds: float) -> RunRow:
    request = RunRequest(query, "s", not_before=runtime.clock.now() + seconds)
    return await runtime.runner.accept(runtime.agent("a"), request)


@pytest.mark.parametrize("concurrency", ["enqueue", "reject", "interrupt", "merge"])
async def test_a_run_for_later_is_in_nobodys_way_before_its_time(processes, concurrency: str) -> None:
    """Its session goes on without it, and it neither ends nor joins what is there; a restart keeps it."""
    clock = ManualClock()
    async with processes(Stuck(), clock=clock, sessions={"concurrency": concurrency}) as (one, two):
        later = await for_later(one, "tomorrow", 86_400.0)
        now = await accepted(two, "now")
        clock.advance(1.0)
        assert (await rests(two, now.run_id))["result"]["response"] == "re: now"
        waits = await one.runs.get(later.run_id, ME)
        assert (waits["status"], waits["not_before"]) == ("queued", "2023-11-15T22:13:20Z")
        await one.close(grace=0.0)
        clock.advance(86_400.0)
        assert (await rests(two, later.run_id))["result"]["response"] == "re: tomorrow"
        assert [text for _, text in await turns_of(two)] == ["now", "re: now", "tomorrow", "re: tomorrow"]


async def test_a_run_for_later_takes_no_place_among_those_that_wait(processes) -> None:
    clock, model = ManualClock(), Stuck()
    async with processes(model, 1, clock=clock, queue={"max_queued": 1, "max_running": 1}) as (one,):
        for _ in range(3):
            await for_later(one, "tomorrow", 86_400.0)
        old = await accepted(one, "old")
        await asyncio.wait_for(model.begun.wait(), PATIENCE)
        waits = await accepted(one, "waits", "other")
        with pytest.raises(Overloaded):
            await accepted(one, "too many", "third")
        model.go.set()
        for run in (old, waits):
            assert (await rests(one, run.run_id))["status"] == "completed"


async def test_the_prompt_of_a_run_for_later_has_the_day_on_which_it_begins(processes) -> None:
    clock = ManualClock()
    seen: list[str] = []

    def says(request: CompletionRequest) -> str:
        seen.append(request.messages[0].content)
        return "done"

    prompts = {"system": "Today is {{ current_date }}."}
    async with processes(says, 1, clock=clock, prompts=prompts) as (one,):
        later = await for_later(one, "tomorrow", 86_400.0)
        clock.advance(2 * 86_400.0)
        run = await rests(one, later.run_id)
        assert (run["status"], seen) == ("completed", ["Today is 2023-11-16."])
        replayed = await one.time_travel.replay(later.run_id, ME)
        assert replayed["divergence"] is None


async def test_a_run_for_later_can_be_cancelled(processes) -> None:
    async with processes(Stuck(), 1, clock=ManualClock()) as (one,):
        later = await for_later(one, "tomorrow", 86_400.0)
        assert (await one.runs.cancel(later.run_id, ME))["status"] == "cancelled"


async def test_the_time_of_a_run_is_checked(tmp_path: Path) -> None:
    """At most 30 days ahead; a time that has passed is now; only durable runs have one."""
    write(tmp_path, manifest("a"))
    clock = ManualClock()
    async with client_of(runtime_of(tmp_path, ScriptedProvider("done", repeat=True), clock=clock)) as client:
        body = {"query": "hello", "session_id": "s"}
        for time, status in (
            ("2023-11-14T22:00:00Z", 202),
            ("2023-12-14T23:13:19+01:00", 202),
            ("2023-12-14T22:13:21Z", 422),
            ("2023-11-15T22:00:00", 422),
            ("tomorrow", 422),
            (1_700_000_000, 422),
            ("1700000000", 422),
        ):
            answer = await client.post("/v1/agents/a/runs", json={**body, "not_before": time})
            assert answer.status_code == status, (time, answer.text)
            if status == 422:
                assert "not_before" in answer.json()["detail"]
        plain = await client.post("/v1/agents/a/run", json={**body, "not_before": "2023-11-15T22:00:00Z"})
        assert plain.status_code == 422
