"""What carries the rules out: slots, cancellation, time limits, records, events, history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from astromesh.errors import InvalidInput, QueueFull
from astromesh.testing import ManualClock, RecordingSink
from astromesh.types import JsonObject
from astromesh.workflow import Engine, TaskResult
from tests.unit.workflow import operations
from tests.unit.workflow.samples import project, run, states

A, B, C = ({"op": f"add_{letter}"} for letter in "abc")
FORK = "s>b b>x b>y x>m y>m m>e"
SPLIT = "s>p p>x p>x#2 x>m x#2>m m>e"


@pytest.fixture(autouse=True)
def fresh_gates() -> None:
    operations.GATES.clear()
    operations.ARRIVED.clear()


async def arrived(*names: str) -> None:
    """Waits until stages stand at their gates."""
    async with asyncio.timeout(30):
        while not set(names) <= set(operations.ARRIVED):
            await asyncio.sleep(0)


class ListedRecords:
    """A TaskLog that lists what it is given."""

    def __init__(self) -> None:
        self.records: list[JsonObject] = []
        self.commits: list[int] = []

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        await asyncio.sleep(0)
        self.records += [orjson.loads(orjson.dumps(record)) for record in records]
        self.commits.append(len(records))


# -- concurrency ---------------------------------------------------------------------------------------------


async def test_clones_run_at_the_same_time() -> None:
    """Both are inside their stage before either ends."""
    work = asyncio.create_task(run(FORK, {"x": {"op": "hold_a"}, "y": {"op": "hold_b"}}))
    await arrived("a", "b")
    operations.GATES["b"].set()
    operations.GATES["a"].set()
    assert (await work).output == ["a", "b"]


async def test_e55_a_forked_task_holds_no_slot() -> None:
    """With a single slot, forks within forks still end."""
    edges = "s>b b>x b>b2 b2>u b2>v x>m u>m v>m m>e"
    one = {"scheduler": {"max_stage_concurrency": 1}}
    assert (await run(edges, {"x": A, "u": B, "v": C}, scheduler=one)).output == ["a", "b", "c"]


async def test_no_more_stages_run_at_once_than_there_are_slots() -> None:
    limits = {"scheduler": {"max_stage_concurrency": 3}}
    result = await run(SPLIT, {"x": {"op": "crowd"}}, list(range(20)), scheduler=limits)
    assert result.status == "success" and max(result.output) == 3


class Doors:
    """A gate that holds some stages of every Task until it is opened."""

    def __init__(self, *stages: str) -> None:
        self._stages, self.opened, self.held = stages, asyncio.Event(), list[str]()

    def applies(self, task: str, stage: str) -> bool:
        return stage in self._stages

    async def __call__(self, task: str, stage: str, input: Any, context: Any) -> None:
        self.held.append(task)
        await self.opened.wait()


async def held_at(doors: Doors, count: int) -> None:
    async with asyncio.timeout(30):
        while len(doors.held) < count:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_what_waits_holds_no_slot_and_no_place() -> None:
    """Of Tasks that wait there are more than may run, and another one runs beside them."""
    doors = Doors("x")
    limits = {"scheduler": {"max_stage_concurrency": 1, "max_concurrency": 1}}
    edges, nodes = "s>d d>x:wait d>y:go x>m y>m m>e", {"x": A, "y": B}
    async with Engine(project(edges, nodes, scheduler=limits), gate=doors) as engine:
        waiting = [engine.submit("wait") for _ in range(3)]
        await held_at(doors, 3)
        beside = await engine.run("go")
        assert all(engine.is_idle(task.task_id) for task in waiting) and engine.stages_in_progress == 0
        doors.opened.set()
        results = [await task.result() for task in waiting]
        assert engine.stages_in_progress == 0
    assert beside.output == ["gob"] and [result.output for result in results] == [["waita"]] * 3


async def test_the_clock_of_a_task_stands_while_all_of_it_waits() -> None:
    """While another of its stages runs, it goes on."""
    clock, limits = ManualClock(), {"scheduler": {"task_timeout_s": 60.0}}
    doors = Doors("x")
    async with Engine(
        project("s>x x>y y>e", {"x": A, "y": B}, scheduler=limits), gate=doors, clock=clock
    ) as engine:
        task = engine.submit("")
        await held_at(doors, 1)
        for _ in range(10):
            clock.advance(3600.0)
            await asyncio.sleep(0)
        assert not task.done
        doors.opened.set()
        assert (await task.result()).output == "ab"
    doors = Doors("x")
    nodes = {"x": A, "y": {"op": "hold_a"}}
    async with Engine(project(FORK, nodes, scheduler=limits), gate=doors, clock=clock) as engine:
        task = engine.submit("")
        await held_at(doors, 1)
        await arrived("a")
        for _ in range(10):
            clock.advance(3600.0)
            await asyncio.sleep(0)
        result = await task.result()
    assert result.error and result.error["code"] == "timeout"


async def test_a_task_that_waits_is_cancelled_and_leaves_its_slots_free() -> None:
    doors = Doors("x")
    limits = {"scheduler": {"max_stage_concurrency": 1, "max_concurrency": 1}}
    async with Engine(project("s>x x>e", {"x": A}, scheduler=limits), gate=doors) as engine:
        task = engine.submit("")
        await held_at(doors, 1)
        task.cancel()
        assert (await task.result()).error == {"code": "cancelled", "message": "The Task was cancelled."}
        doors.opened.set()
        results = await asyncio.gather(*(engine.run("-") for _ in range(3)))
    assert [result.output for result in results] == ["-a"] * 3


async def test_at_one_slot_the_whole_trace_is_the_same_every_time() -> None:
    """A hundred runs of a split, a branch and a decision: identical trace, but for times."""
    edges = "s>p p>x p>x#2 x>d x#2>m d>m:one d>y:two y>m m>b b>u b>v u>m2 v>m2 m2>e"
    nodes = {"x": {"op": "echo"}, "d": {"selection_key": "edge"}, "u": {"op": "sync_echo"}}
    items = [{"edge": "one" if i % 3 else "two"} for i in range(9)]
    engine = Engine(
        project(edges, nodes, scheduler={"scheduler": {"max_stage_concurrency": 1}}), new_id=lambda: "T"
    )
    first = None
    for _ in range(100):
        trace = [_timeless(entry.to_json()) for entry in (await engine.run(items)).trace]
        first = first or trace
        assert trace == first
    assert first and len(first) == 24


async def test_at_many_slots_paths_and_outputs_by_lineage_are_the_same() -> None:
    engine = Engine(project(SPLIT, {"x": {"op": "sync_echo"}}), new_id=lambda: "T")
    found = [_by_lineage(await engine.run(list(range(12)))) for _ in range(20)]
    assert all(one == found[0] for one in found)


async def test_e55_tasks_queue_and_a_full_queue_refuses() -> None:
    limits = {"scheduler": {"max_concurrency": 1, "max_queue_size": 1}}
    engine = Engine(project("s>x x>e", {"x": {"op": "hold_a"}}, scheduler=limits))
    first = engine.submit("1")
    await arrived("a")
    second = engine.submit("2")
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        engine.submit("3")
    operations.GATES["a"].set()
    assert [(await one.result()).output for one in (first, second)] == ["1a", "2a"]


async def test_without_a_scheduler_no_task_waits_for_another() -> None:
    limits = {"scheduler": {"enabled": False, "max_concurrency": 1, "max_queue_size": 1}}
    engine = Engine(project("s>d d>x:hold d>y:go x>e y>e", {"x": {"op": "hold_a"}}, scheduler=limits))
    first = engine.submit("hold")
    await arrived("a")
    assert (await engine.run("go")).status == "success"
    operations.GATES["a"].set()
    assert (await first.result()).output == "holda"


async def test_submitted_tasks_are_isolated() -> None:
    engine = Engine(project("s>x x>e", {"x": A}, scheduler={"scheduler": {"max_queue_size": 50}}))
    tasks = [engine.submit(str(i)) for i in range(20)]
    results = [await task.result() for task in tasks]
    assert [result.output for result in results] == [f"{i}a" for i in range(20)]
    assert len({result.task_id for result in results}) == 20


# -- cancelling and time -------------------------------------------------------------------------------------


async def test_e19_the_winner_cancels_what_is_under_way() -> None:
    """The sibling waits for ever; it is cancelled within its await."""
    result = await run("s>b b>x b>y x>e y>e2", {"x": {"op": "for_ever"}, "y": B})
    assert result.output == "b" and states(result)["/b:x"] == "cancelled"


async def test_e50_cancelling_the_root_cascades_and_fires_no_merge() -> None:
    engine = Engine(project(FORK, {"x": {"op": "for_ever"}, "y": B}), new_id=lambda: "T")
    task = engine.submit()
    await arrived("for_ever")
    task.cancel()
    result = await task.result()
    assert (result.status, result.error and result.error["code"]) == ("failure", "cancelled")
    assert states(result) == {"": "cancelled", "/b:x": "cancelled", "/b:y": "cancelled"}
    assert "m" not in result.path


async def test_e50_a_caller_that_goes_away_stops_its_run_and_gives_its_slots_back() -> None:
    limits = {"scheduler": {"max_stage_concurrency": 1}}
    engine = Engine(project("s>d d>x:wait d>y:go x>e y>e", {"x": {"op": "for_ever"}}, scheduler=limits))
    caller = asyncio.create_task(engine.run("wait"))
    await arrived("for_ever")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await engine.run("go")).status == "success"


async def test_e49_a_stage_has_a_time_limit() -> None:
    result = await run("s>x x>e", {"x": {"op": "for_ever", "timeout_s": 0.01}})
    assert result.status == "failure" and result.error and result.error["code"] == "timeout"


async def test_e49_a_task_has_a_time_limit() -> None:
    clock = ManualClock()
    engine = Engine(project("s>x x>e", {"x": {"op": "for_ever"}}), clock=clock)
    task = engine.submit()
    await arrived("for_ever")
    clock.advance(900)
    result = await task.result()
    assert result.error and result.error["code"] == "timeout" and states(result) == {"": "cancelled"}


# -- inputs and outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a": b"bytes"}, 2**70])
async def test_e61_what_is_no_json_is_refused_before_there_is_a_task(value: Any) -> None:
    log = ListedRecords()
    with pytest.raises(InvalidInput):
        await run("s>e", input=value, log=log)
    assert log.records == []


async def test_e61_an_empty_input_is_valid_unless_the_schema_forbids_it() -> None:
    assert (await run("s>e", input=None)).status == "success"
    refused = await run("s>e", {"s": {"schema_in": {"type": "string", "minLength": 1}}}, "")
    assert refused.error and refused.error["code"] == "invalid_input"


async def test_e47_an_output_that_does_not_fit_fails_the_stage() -> None:
    result = await run("s>x x>e", {"x": {**A, "schema_out": {"type": "integer"}}}, "-")
    assert result.error and result.error["code"] == "invalid_output"
    assert result.trace[-1].schema_out == "inline"


@pytest.mark.parametrize("op", ["not_json", "half_an_emoji"])
async def test_an_output_that_is_no_json_fails_the_stage(op: str) -> None:
    result = await run("s>x x>e", {"x": {"op": op}})
    assert result.error and result.error["code"] == "invalid_output"


async def test_an_operation_that_cancels_its_own_task_fails_its_stage() -> None:
    result = await asyncio.wait_for(run("s>x x>e", {"x": {"op": "cancel_itself"}}), 20)
    error = {"code": "operation_error", "message": "CancelledError", "stage": "x"}
    assert (result.status, result.error) == ("failure", error)
    going_on = {"x": {"op": "cancel_itself", "continue_on_failure": True}}
    assert (await asyncio.wait_for(run("s>x x>e", going_on), 20)).status == "partial"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_number_that_json_does_not_have_fails_the_stage(number: str) -> None:
    """And is not null to the next one; a null is a value."""
    failed = await run("s>x x>e", {"x": {"op": "nan"}}, number)
    assert failed.error and failed.error["code"] == "invalid_output"
    assert failed.history["x"][0].output is None and len(failed.path) == 2
    assert "rates.2" in failed.error["message"]
    fine = await run("s>x x>e", {"x": {"op": "nan"}}, "1.5")
    assert fine.output == {"rates": [1.0, None, 1.5]}
    with pytest.raises(InvalidInput, match="NaN"):
        await run("s>x x>e", {"x": A}, [float(number)])


async def test_e11_an_explicit_start_must_be_one() -> None:
    with pytest.raises(InvalidInput, match="'x' is not a start"):
        await run("s>x x>e", start="x")


async def test_synchronous_operations_do_not_hold_the_event_loop() -> None:
    assert (await run("s>x x>e", {"x": {"op": "sync_echo"}}, {"n": 1})).output == {"n": 1}


# -- history and events --------------------------------------------------------------------------------------


async def test_e31_occurrences_share_the_node_and_have_entries_of_their_own() -> None:
    result = await run("s>b b>x b>x#2 x>m x#2>m m>e", {"x": A})
    assert [entry.stage for entry in result.history["x"]] == ["x", "x#2"]
    assert result.output == ["a", "a"]


async def test_e51_entries_are_numbered_without_gaps_and_clones_join_their_lineage() -> None:
    result = await run(FORK, {"x": A, "y": B}, "-")
    assert [entry.seq for entry in result.trace] == [1, 2, 3, 4, 5, 6]
    assert [entry.stage for entry in result.full_history("/b:y")] == ["s", "b", "y"]
    assert [entry.stage for entry in result.full_history("")] == ["s", "b", "m", "e"]


async def test_history_retention_bounds_what_a_task_keeps_of_its_own() -> None:
    """The trace of the run stays whole."""
    result = await run("s>x x>y y>e", history_retention="last:1")
    assert len(result.trace) == 4


async def test_events_tell_the_run_from_its_start_to_its_end() -> None:
    sink = RecordingSink()
    engine = Engine(project("s>d d>b:fork d>z b>x b>y x>m y>m m>e z>e", {}), new_id=lambda: "T")
    await engine.run("fork", sinks=[sink])
    types = [event.type for event in sink.events]
    assert types[0] == "task.started" and types[-1] == "task.finished"
    assert [t for t in types if t in ("decision.taken", "task.cloned", "merge.fired")] == [
        "decision.taken",
        "task.cloned",
        "merge.fired",
    ]
    assert types.count("stage.started") == types.count("stage.finished") == 7
    assert {event.run_id for event in sink.events} == {"T"}


# -- records -------------------------------------------------------------------------------------------------


async def test_e56_a_stage_counts_when_its_record_is_committed() -> None:
    """The first record begins the run, the last ends it; between stand all entries, in the order of `seq`."""
    log = ListedRecords()
    result = await run(FORK, {"x": A, "y": B}, "-", log=log)
    counted = [record for record in log.records if record["type"] != "start"]
    assert [record["type"] for record in counted] == ["begin", *["stage"] * 6, "end"]
    assert [r["entry"]["stage_id"] for r in counted[1:-1]] == list(result.path)


async def test_e56_the_start_of_a_stage_is_committed_before_its_operation_runs() -> None:
    """Only stages with an operation or agent have a start: nothing else can end the process."""
    log = ListedRecords()
    operations.RECORDS = log.records
    await run("s>x x>y y>e", {"x": {"op": "last_record"}, "y": {"op": "last_record"}}, "-", log=log)
    told = [(record["type"], record.get("stage", "")) for record in log.records]
    assert told == [
        ("begin", ""), ("stage", ""), ("start", "x"), ("stage", ""), ("start", "y"), ("stage", ""),
        ("stage", ""), ("end", ""),
    ]  # fmt: skip
    outputs = [r["entry"]["output"] for r in log.records if r["type"] == "stage"][1:3]
    assert outputs == [["start", "x"], ["start", "y"]]


async def test_operations_receive_what_names_their_execution() -> None:
    """The idempotency key is the same in every attempt, and different for every stage of every Task."""
    nodes: dict[str, Any] = {"x": {"op": "named"}, "y": {"op": "named"}}
    log = ListedRecords()
    whole = await run("s>x x>y y>e", nodes, "-", log=log)
    x, y = (entry.output for entry in whole.trace[1:3])
    assert (x["task_id"], x["stage_id"], x["attempt"]) == ("T", "x", 1)
    assert (y["task_id"], y["stage_id"], y["attempt"]) == ("T", "y", 1)
    assert x["idempotency_key"] != y["idempotency_key"]
    place = next(n for n, record in enumerate(log.records) if record.get("stage") == "y")
    again = await Engine(project("s>x x>y y>e", nodes), log=ListedRecords()).resume(log.records[: place + 1])
    assert again.trace[2].output == {**y, "attempt": 2}
    clones = await run(FORK, {"x": {"op": "named"}, "y": {"op": "named"}}, "-")
    assert {one["task_id"] for one in clones.output} == {"T/b:x", "T/b:y"}


async def test_a_stage_sees_no_context_variable_that_a_stage_of_another_task_has_set() -> None:
    result = await run(SPLIT, {"x": {"op": "mark"}}, [*range(100)])
    assert result.output == [None] * 100


@pytest.mark.parametrize(
    "edges", [FORK, SPLIT, "s>d d>x:one d>y:two x>m y>m m>e", "s>b b>x b>y b>z x>m y>m m>e z>e2"]
)
async def test_e56_resumed_anywhere_a_run_ends_as_it_would_have(edges: str) -> None:
    """From each prefix of its records, only what is missing runs again, and the result is the same."""
    inputs: Any = {FORK: "-", SPLIT: [1, "bad", 3]}.get(edges, "one")
    nodes = {"x": {"op": "fail_if_bad"}}
    log = ListedRecords()
    whole = await run(edges, nodes, inputs, log=log)
    for kept in range(1, len(log.records)):
        again = ListedRecords()
        engine = Engine(project(edges, nodes), log=again, new_id=lambda: "other")
        result = await engine.resume(log.records[:kept])
        assert (result.task_id, result.status, result.output) == ("T", whole.status, whole.output)
        assert _by_lineage(result) == _by_lineage(whole)
        counted = [*log.records[:kept], *again.records]
        stages = sum(record["type"] == "stage" for record in counted)
        assert stages == len(whole.trace), "what had counted did not run again"


async def test_e56_a_stage_that_is_not_said_to_be_idempotent_is_named_when_it_runs_again() -> None:
    nodes: dict[str, Any] = {"x": {"op": "echo"}, "y": {"op": "echo", "idempotent": True}}
    log = ListedRecords()
    await run("s>x x>y y>e", nodes, log=log)
    named = {}
    for kept in range(1, len(log.records)):
        with capture_logs() as logs:
            await Engine(project("s>x x>y y>e", nodes)).resume(log.records[:kept])
        last = log.records[kept - 1]
        named[last["type"], last.get("stage", "")] = [
            line["stage"] for line in logs if line["event"] == "stage_may_run_twice"
        ]
    assert named == {("begin", ""): [], ("stage", ""): [], ("start", "x"): ["x"], ("start", "y"): []}


async def test_e56_a_cancelled_run_stays_cancelled() -> None:
    log = ListedRecords()
    engine = Engine(project(FORK, {"x": {"op": "for_ever"}, "y": B}), log=log, new_id=lambda: "T")
    task = engine.submit()
    await arrived("for_ever")
    task.cancel()
    await task.result()
    records = [record for record in log.records if record["type"] != "end"]
    result = await Engine(project(FORK, {"x": {"op": "for_ever"}, "y": B})).resume(records)
    assert result.error and result.error["code"] == "cancelled"


@pytest.mark.parametrize("durable", [False, True])
async def test_e50_a_run_cancelled_before_its_first_stage_never_begins(durable: bool) -> None:
    """While its first record is committed, or its models are opened."""

    class Late(ListedRecords):
        async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
            if records[0]["type"] == "begin":
                assert engine.cancel(task_id)
            await super().commit(task_id, records)

    engine = Engine(project("s>x x>e", {"x": {"op": "for_ever"}}), log=Late() if durable else None)
    task = engine.submit()
    if not durable:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task.result()
        return
    result = await task.result()
    assert result.error and result.error["code"] == "cancelled" and "x" not in result.path


async def test_stages_that_end_together_are_committed_together() -> None:
    log = ListedRecords()
    await run(SPLIT, {}, list(range(40)), log=log, scheduler={"scheduler": {"max_stage_concurrency": 40}})
    stages = sum(record["type"] == "stage" for record in log.records)
    assert stages == 4 + 40 and len(log.commits) < 20


async def test_a_log_that_fails_ends_the_run_with_its_error() -> None:
    class Broken(ListedRecords):
        async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
            if records[0]["type"] == "stage":
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await run(FORK, log=Broken())


def _timeless(entry: JsonObject) -> JsonObject:
    text = orjson.dumps({k: v for k, v in entry.items() if k not in ("started_at", "finished_at")})
    return _without_times(orjson.loads(text))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in ("started_at", "finished_at")}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _by_lineage(result: TaskResult) -> Any:
    return sorted(
        (
            t["path"],
            t["state"],
            t["status"],
            orjson.dumps(_without_times(t["output"])),
            tuple(t["merged_from"]),
        )
        for t in result.tasks
    )
