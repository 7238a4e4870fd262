"""One suite for every store of Tasks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astromesh.durable.base import DeliveryQuery, StoredCallback
from astromesh.durable.tasks import (
    Artifact,
    ArtifactFilter,
    TaskChange,
    TaskControl,
    TaskRow,
    TaskStore,
    TaskWait,
)
from astromesh.errors import LeaseLost
from astromesh.plugins import Plugins
from astromesh.testing import ManualClock
from astromesh.types import ManifestSnapshot
from tests.platform.stores import deps_of

NOW = 1_700_000_000.0
BEGIN = {"type": "begin", "task_id": "t1", "workflow": "w", "start": "s", "input": "λ\x00"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture(params=("sqlite", "postgres"))
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[TaskStore]:
    deps = deps_of(request, clock, tmp_path)
    opened = await Plugins().open("task_stores", request.param, {}, deps)
    yield opened
    await opened.close()
    await deps.resources.close()


def task(name: str = "t1", **more) -> TaskRow:
    row = TaskRow(
        name, "acme", "ann", "w", "s", "queued", NOW, "f" * 64, "0" * 32, True, {"user_id": "ann"},
        {"note": "λ"}, "w1", NOW + 15,
    )  # fmt: skip
    return replace(row, **more)


def artifact(task_id: str, n: int, type: Any = "output", node: str = "a", at: float = NOW) -> Artifact:
    return Artifact(task_id, n, type, "", node, f"{node}#1", at, "f" * 64, {"text": "λ\x00", "n": n})


async def test_an_accepted_task_is_there_as_it_was_given(store):
    await store.accept(task(), [BEGIN])
    assert await store.get("t1") == task()
    assert await store.records("t1") == (BEGIN,)
    assert await store.get("t2") is None


async def test_records_and_artifacts_are_kept_in_order_and_the_end_once(store):
    await store.accept(task(), [BEGIN])
    stage = {"type": "stage", "entry": {"stage_id": "a"}}
    await store.commit(TaskChange("t1", "w1", 2, [stage, {**stage, "n": 2}], [artifact("t1", 1)]))
    assert (await store.get("t1")).status == "running"
    assert await store.records("t1", 1) == (stage, {**stage, "n": 2})
    end: Any = ("partial", {"output": 1, "error": None}, NOW + 2)
    await store.commit(TaskChange("t1", "w1", 4, [{"type": "end"}], [artifact("t1", 2)], end))
    row = await store.get("t1")
    assert (row.status, row.result, row.finished_at, row.worker) == (*end, "")
    with pytest.raises(LeaseLost):
        await store.commit(TaskChange("t1", "w1", 5, [stage]))
    assert len(await store.records("t1")) == 4


async def test_a_task_with_many_records_is_stored_in_one_transaction(store):
    """Databases write many rows by few statements."""
    records: list[Any] = [BEGIN, *({"type": "stage", "n": n} for n in range(100))]
    await store.accept(task(), records, [artifact("t1", n) for n in range(100)])
    assert await store.records("t1") == tuple(records)
    await store.commit(TaskChange("t1", "w1", 102, records[1:], [artifact("t1", n) for n in range(50, 150)]))
    assert len(await store.artifacts("acme", None, ArtifactFilter("t1"))) == 150


async def test_the_end_of_a_task_replaces_stored_steps_of_runs(store):
    raw = {"type": "step", "path": "@a/run:helper:a#1/react", "output": {"content": "raw " * 2000}}
    await store.accept(task(), [BEGIN, raw])
    assert await store.records("t1", 1) == (raw,)
    end: Any = ("success", {"output": 1, "error": None}, NOW + 2)
    clean = {**raw, "output": {"content": {"$payload": "clean"}}}
    await store.commit(TaskChange("t1", "w1", 3, [{"type": "end"}], end=end, replaced={2: clean}))
    assert await store.records("t1") == (BEGIN, clean, {"type": "end"})


@pytest.mark.parametrize(
    ("status", "cancelled", "event"),
    [("success", False, "completed"), ("partial", False, "completed"), ("failure", False, "failed"),
     ("failure", True, "cancelled")],
)  # fmt: skip
async def test_the_end_of_a_task_and_its_questions_make_deliveries_due(
    store, status: str, cancelled: bool, event: str
):
    all_events = ("completed", "failed", "cancelled", "waiting")
    callback = StoredCallback("https://example.com/hook", all_events, b"\x00encrypted")
    await store.accept(task(), [BEGIN], callback=callback)
    await store.accept(task("t2"), [BEGIN], callback=callback._replace(events=("waiting",)))
    await store.accept(task("t3"), [BEGIN])
    assert await store.callbacks_expected()
    await store.wait("w1", TaskWait("t1", "", "x", "", "pause", NOW, 0.0, {}))  # the inspector's
    question = TaskWait("t1", "", "x", "q", "human", NOW, 0.0, {"text": "?"})
    await store.wait("w1", question)
    await store.wait("w1", question)
    if cancelled:
        await store.cancel("t1")
    end: Any = (status, {"output": "λ\x00", "error": None}, NOW + 2)
    for name in ("t1", "t2", "t3"):
        await store.commit(TaskChange(name, "w1", 2, [{"type": "end"}], end=end))
    taken = sorted(await store.take_callbacks(NOW, NOW + 60, 10))
    assert [(one.run_id, one.event, one.attempts) for one in taken] == [
        ("t1", "waiting", 1), ("t1", event, 1),
    ]  # fmt: skip
    assert taken[0].id == 2**52
    assert await store.callback(taken[0].callback) == callback
    assert await store.take_callbacks(NOW + 59, NOW + 120, 10) == ()
    await store.end_callback_attempt(taken[0].id, "delivered", 0.0, 204, "")
    await store.end_callback_attempt(taken[1].id, "dead", 0.0, 503, "no")
    assert not await store.callbacks_expected()
    dead, done = await store.callbacks(DeliveryQuery("acme", "ann", run_id="t1"))
    assert (dead.agent, dead.event, dead.state, done.state) == ("w", event, "dead", "delivered")
    assert await store.callbacks(DeliveryQuery("other", None)) == ()
    assert not await store.retry_callback(dead.id, "acme", "bob")
    assert await store.retry_callback(dead.id, "acme", "ann")
    assert [one.id for one in await store.take_callbacks(NOW, NOW + 60, 10)] == [dead.id]
    assert await store.erase_owner("acme", "ann") == 3
    assert await store.callbacks(DeliveryQuery("acme", None)) == ()
    assert await store.callback(taken[0].callback) is None


async def test_queues_count_open_tasks_by_workflow(store):
    await store.accept(task(created_at=NOW - 5), [BEGIN])
    await store.accept(task("t2"), [BEGIN])
    await store.commit(TaskChange("t2", "w1", 2, [{"type": "stage"}]))
    await store.accept(task("t3", workflow="v"), [BEGIN])
    end: Any = ("success", {"output": 1, "error": None}, NOW)
    await store.accept(task("t4"), [BEGIN])
    await store.commit(TaskChange("t4", "w1", 2, [{"type": "end"}], end=end))
    await store.accept(task("t5"), [BEGIN])
    wait = TaskWait("t5", "", "x", "q", "human", NOW, 0.0, {"text": "?"})
    await store.wait("w1", wait)
    assert await store.queues() == (("v", 1, 0, 0, NOW), ("w", 1, 1, 1, NOW - 5))
    await store.answer(wait, {"decision": "approved"})
    assert await store.queues() == (("v", 1, 0, 0, NOW), ("w", 1, 2, 0, NOW - 5))


async def test_only_the_holder_of_a_task_is_heard(store):
    """Of two processes that work on one Task, what the older one commits is refused."""
    await store.accept(task(), [BEGIN])
    assert [row.task_id for row in await store.take("w2", ["w1"], NOW + 15, 10)] == ["t1"]
    with pytest.raises(LeaseLost):
        await store.commit(TaskChange("t1", "w1", 2, [{"type": "stage"}], [artifact("t1", 1)]))
    assert await store.records("t1") == (BEGIN,)
    assert await store.artifacts("acme", None, ArtifactFilter("t1")) == ()
    await store.commit(TaskChange("t1", "w2", 2, [{"type": "stage"}]))


async def test_a_task_is_taken_over_when_its_lease_is_over_and_by_one_worker_only(store, clock):
    for n in range(3):
        await store.accept(task(f"t{n}", created_at=NOW - n), [BEGIN])
    await store.accept(task("note", durable=False), [BEGIN])
    assert await store.take("w2", [], NOW + 30, 10) == ()
    await store.heartbeat("w1", NOW + 20)
    clock.advance(16)
    assert await store.take("w2", [], NOW + 30, 10) == ()
    clock.advance(5)
    taken = await asyncio.gather(*(store.take(f"x{n}", [], NOW + 60, 10) for n in range(5)))
    assert sorted(row.task_id for rows in taken for row in rows) == ["t0", "t1", "t2"]


async def test_a_sign_of_life_is_for_the_tasks_that_are_worked_on_and_others_are_free_in_time(store, clock):
    """For their own holder, too: it does not know that it has them."""
    for name in ("t1", "t2"):
        await store.accept(task(name), [BEGIN])
    await store.cancel("t2")
    await store.heartbeat("w1", NOW + 60, ["t1"])
    assert await store.controls("w1") == (TaskControl("t2", 0, True, None),)
    clock.advance(16)
    assert [row.task_id for row in await store.take("w1", [], NOW + 60, 10)] == ["t2"]
    await store.heartbeat("w1", 0.0)
    assert {row.task_id for row in await store.take("w2", [], NOW + 60, 10)} == {"t1", "t2"}


async def test_what_is_committed_again_because_its_answer_was_lost_is_there_once(store):
    await store.accept(task(), [BEGIN])
    stage = {"type": "stage", "entry": {"stage_id": "a"}}
    for _ in range(2):
        await store.commit(TaskChange("t1", "w1", 2, [stage], [artifact("t1", 1)]))
    assert await store.records("t1") == (BEGIN, stage)
    assert await store.artifacts("acme", None, ArtifactFilter("t1")) == (artifact("t1", 1),)


async def test_a_cancel_reaches_the_holder(store):
    await store.accept(task(), [BEGIN])
    assert await store.cancel("t1")
    assert await store.controls("w1") == (TaskControl("t1", 0, True, None),)
    assert not await store.cancel("t2")


async def test_artifacts_are_found_by_task_node_type_and_time_and_only_by_those_who_may(store):
    one = [artifact("t1", 1), artifact("t1", 2, "tool", "b", NOW + 1)]
    await store.accept(task("t1"), [BEGIN], one)
    await store.accept(task("t2", owner="bob"), [BEGIN], [artifact("t2", 1, at=NOW + 2)])
    assert await store.artifacts("acme", None, ArtifactFilter("t1")) == tuple(one)
    assert [a.task_id for a in await store.artifacts("acme", None, ArtifactFilter())] == ["t1", "t1", "t2"]
    assert [a.task_id for a in await store.artifacts("acme", "bob", ArtifactFilter())] == ["t2"]
    assert await store.artifacts("other", None, ArtifactFilter("t1")) == ()
    assert await store.artifacts("acme", None, ArtifactFilter("t1", node="b", type="tool")) == (one[1],)
    assert await store.artifacts("acme", None, ArtifactFilter("t1", since=NOW + 0.5)) == (one[1],)


async def test_lists_are_of_an_owner_and_the_newest_comes_first(store):
    for n, owner in enumerate(("ann", "bob", "ann")):
        await store.accept(task(f"t{n}", owner=owner, created_at=NOW + n), [BEGIN])
    assert [row.task_id for row in await store.list("acme", None)] == ["t2", "t1", "t0"]
    assert [row.task_id for row in await store.list("acme", "ann", limit=1)] == ["t2"]
    assert [row.task_id for row in await store.list("acme", None, limit=1, after="t2")] == ["t1"]
    assert await store.list("acme", None, after="t0") == ()
    assert await store.list("acme", None, "other") == ()
    assert await store.list("acme", None, status="success") == ()


async def test_what_is_erased_or_too_old_is_gone_with_all_that_it_left(store):
    ended = {"status": "success", "finished_at": NOW, "result": {}}
    await store.accept(task("t1", **ended), [BEGIN], [artifact("t1", 1)])
    await store.accept(task("t2", **ended, owner="bob"), [BEGIN])
    await store.accept(task("t3"), [BEGIN])
    assert await store.erase_owner("acme", "ann") == 1
    assert await store.get("t1") is None
    assert await store.records("t1") == ()
    assert (await store.get("t3")).cancelling
    assert await store.expire(NOW + 1) == 1
    assert await store.get("t2") is None


SNAPSHOT = ManifestSnapshot("5" * 64, {"files": {"workflow.yaml": "version: 1  # λ\n"}})


async def test_manifests_are_kept_once_for_all_tasks_that_began_with_them(store):
    for n in range(3):
        await store.accept(task(f"t{n}", snapshot=SNAPSHOT.id), [BEGIN], snapshot=SNAPSHOT)
    assert (await store.get("t2")).snapshot == SNAPSHOT.id
    assert await store.snapshot(SNAPSHOT.id) == SNAPSHOT.content
    assert await store.snapshot("6" * 64) is None


async def test_manifests_stay_as_long_as_a_task_refers_to_them(store, clock):
    """A Task that began long ago holds them; without any they go, a day after they were last written."""
    ended = {"status": "success", "finished_at": NOW, "result": {}, "snapshot": SNAPSHOT.id}
    await store.accept(task("t1", **ended), [BEGIN], snapshot=SNAPSHOT)
    await store.accept(task("t2", snapshot=SNAPSHOT.id), [BEGIN], snapshot=SNAPSHOT)
    clock.advance(90 * 86400)
    assert await store.expire(NOW + 1) == 1
    assert await store.snapshot(SNAPSHOT.id) == SNAPSHOT.content
    await store.commit(TaskChange("t2", "w1", 2, [], [], ("success", {}, clock.now())))
    assert await store.expire(clock.now() + 1) == 1
    assert await store.snapshot(SNAPSHOT.id) is None


async def test_manifests_that_were_written_a_moment_ago_stay_although_no_task_refers_to_them(store, clock):
    """Another process may accept a Task of theirs just now."""
    await store.accept(
        task("t1", status="success", finished_at=NOW, snapshot=SNAPSHOT.id), [BEGIN], snapshot=SNAPSHOT
    )
    clock.advance(3600)
    assert await store.expire(NOW + 1) == 1
    assert await store.snapshot(SNAPSHOT.id) == SNAPSHOT.content
    await store.accept(task("t2", snapshot=SNAPSHOT.id), [BEGIN], snapshot=SNAPSHOT)
    clock.advance(86000)
    await store.expire(NOW + 1)
    assert await store.snapshot(SNAPSHOT.id) == SNAPSHOT.content


# -- payloads ------------------------------------------------------------------------------------------------

LARGE = "long " * 2000
RESULT: Any = {"output": {"text": LARGE}, "error": None}


async def filled(store: TaskStore, name: str) -> None:
    """A Task that ended, with one large value in its input, a record, an artifact and its result."""
    stage = {"type": "stage", "entry": {"input": {"text": LARGE}, "output": {"text": LARGE, "n": 1}}}
    made = artifact(name, 1)._replace(content={"text": LARGE, "n": 1})
    await store.accept(task(name), [{**BEGIN, "input": {"text": LARGE}}])
    await store.commit(TaskChange(name, "w1", 2, [stage], [made]))
    await store.commit(TaskChange(name, "w1", 3, [{"type": "end"}], end=("success", RESULT, NOW + 1)))


async def as_given(store, name: str) -> bool:
    begin, stage, _ = await store.records(name)
    (made,) = await store.artifacts("acme", None, ArtifactFilter(name))
    row = await store.get(name)
    entry = stage["entry"]
    values = (begin["input"], entry["input"], entry["output"], made.content, row.result)
    given = {"text": LARGE}
    return values == (given, given, {**given, "n": 1}, {**given, "n": 1}, RESULT)


async def test_large_values_come_back_and_are_stored_once(store, tmp_path):
    await filled(store, "t1")
    assert await as_given(store, "t1")
    assert [row.result for row in await store.list("acme", "ann")] == [RESULT]
    if (tmp_path / "astromesh.db").exists():
        with closing(sqlite3.connect(tmp_path / "astromesh.db")) as file:
            ((count, size),) = file.execute("SELECT count(*), sum(length(content)) FROM task_payloads")
            (records,) = file.execute("SELECT max(length(record)) FROM task_records").fetchone()
        assert count == 1 and size < len(LARGE) / 10 and records < 500


async def test_erasing_one_task_never_touches_the_payloads_of_another(store):
    """Two Tasks of two owners with the same content: one is erased, then the other expires."""
    await filled(store, "t1")
    await store.accept(task("t2", owner="ben"), [{**BEGIN, "input": LARGE}])
    assert await store.erase_owner("acme", "ben") == 0
    await store.commit(TaskChange("t2", "w1", 2, [], [], ("success", RESULT, NOW + 1)))
    assert await store.erase_owner("acme", "ben") == 1
    assert await as_given(store, "t1")
    await filled(store, "t3")
    assert await store.erase_owner("acme", "ann") == 2


async def test_a_value_with_the_key_of_our_references_is_a_value(store):
    value = {"$payload": "a" * 64}
    await store.accept(task(), [{**BEGIN, "input": value}])
    assert (await store.records("t1"))[0]["input"] == value


# -- waits ---------------------------------------------------------------------------------------------------


def wait(
    task_id: str = "t1", stage: str = "a", kind: str = "human", ticket: str = "q", **more: Any
) -> TaskWait:
    question = {"name": stage, "arguments": LARGE}
    return TaskWait(task_id, "/b:a", stage, ticket, kind, NOW, NOW + 60, question)._replace(**more)


async def test_a_wait_is_stored_once_and_comes_back_with_its_answer(store):
    """Who asks again, after a restart, finds the first question and its answer."""
    await store.accept(task(), [BEGIN])
    stored, control = await store.wait("w1", wait())
    assert stored == wait() and control == TaskControl("t1", 0, False, None)
    assert await store.answer(stored, {"decision": "approve"})
    assert not await store.answer(stored, {"decision": "deny"})
    again, control = await store.wait("w1", wait(asked_at=NOW + 5))
    assert again == wait(answer={"decision": "approve"}) and control.control > 0
    assert await store.waits("t1") == (again,)
    assert await store.waits("t2") == ()


async def test_only_the_holder_of_a_task_adds_waits_and_none_is_answered_after_its_end(store):
    await store.accept(task(), [BEGIN])
    with pytest.raises(LeaseLost):
        await store.wait("w2", wait())
    await store.wait("w1", wait())
    await store.commit(TaskChange("t1", "w1", 2, [], end=("failure", RESULT, NOW + 1)))
    assert not await store.answer(wait(), {"decision": "approve"})
    assert await store.open_questions("acme", 10) == ()


async def test_open_questions_are_those_of_the_tenant_that_people_answer(store):
    for name, tenant in (("t1", "acme"), ("t2", "acme"), ("t3", "other")):
        await store.accept(task(name, tenant=tenant), [BEGIN])
        await store.wait("w1", wait(name, asked_at=NOW - int(name[1])))
    await store.wait("w1", wait("t1", "p", "pause", ""))
    found = await store.open_questions("acme", 10)
    assert [(one.wait.task_id, one.workflow, one.owner) for one in found] == [
        ("t2", "w", "ann"), ("t1", "w", "ann"),
    ]  # fmt: skip
    assert found[0].wait.question["arguments"] == LARGE
    assert len(await store.open_questions("acme", 1)) == 1


async def test_pauses_add_up_and_a_release_ends_all_of_them(store):
    await store.accept(task(), [BEGIN])
    assert not await store.release("t1") and not await store.step("t1")
    assert await store.pause("t1", ["b"]) and await store.pause("t1", ["a"])
    (control,) = await store.controls("w1")
    assert control.inspection == {"all_stages": False, "before": ["a", "b"]}
    assert (await store.get("t1")).inspection == control.inspection
    for stage in ("a", "b"):
        await store.wait("w1", wait(stage=stage, kind="pause", ticket="", asked_at=NOW + ord(stage)))
    assert await store.step("t1")
    assert [one.answer for one in await store.waits("t1")] == [{}, None]
    (stepped,) = await store.controls("w1")
    assert stepped.inspection["all_stages"] and stepped.control > control.control
    assert await store.release("t1")
    assert [one.answer for one in await store.waits("t1")] == [{}, {}]
    assert (await store.controls("w1"))[0].inspection is None
    assert not await store.pause("t2", [])


async def test_a_commit_brings_what_others_want_of_the_task(store):
    await store.accept(task(), [BEGIN])
    await store.pause("t1", [])
    control = await store.commit(TaskChange("t1", "w1", 2, [{"type": "stage"}]))
    assert control.inspection == {"all_stages": True, "before": []}


async def test_waits_are_erased_with_their_task(store):
    await filled(store, "t1")
    await store.accept(task("t2"), [BEGIN])
    await store.wait("w1", wait("t2"))
    await store.commit(TaskChange("t2", "w1", 2, [], end=("failure", RESULT, NOW + 1)))
    assert await store.erase_owner("acme", "ann") == 2
    assert await store.waits("t2") == ()
