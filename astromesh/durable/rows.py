"""Runs, steps, events and Tasks as rows: the columns and their order, the same in every database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import orjson

from astromesh.durable.base import Artifact, JournalStep, RunChange, RunRow, SegmentClaim, TaskRow
from astromesh.errors import DeadlineExceeded, Interrupted, SessionBusy
from astromesh.storage.migrations import store_queries, to_sqlite
from astromesh.types import Event, JsonObject, Usage

_PACKAGE = "astromesh.durable"
_PLAIN = (
    "run_id", "tenant", "owner", "agent", "session_id", "trace_id", "parent", "status", "segment",
    "worker", "priority", "created_at", "finished_at", "deadline_at", "wake_at",
)  # fmt: skip


_RUN_FLAGS = ("durable", "cancelling", "ordered")


_USAGE = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd", "estimated")


_RUN_JSON = ("request", "manifest", "caller", "result", "error", "attempts", "waiting_for")


_OPTIONAL = frozenset({"manifest", "result", "error", "waiting_for"})


RUN_COLUMNS = (*_PLAIN, *_RUN_FLAGS, *_USAGE, *_RUN_JSON)


_plain, _flags, _usage, _json = (attrgetter(*names) for names in (_PLAIN, _RUN_FLAGS, _USAGE, _RUN_JSON))


#: no older ordered run of the session is queued or running
_FIRST_IN_SESSION = """NOT (ordered AND EXISTS (
    SELECT 1 FROM astromesh.runs o
    WHERE o.tenant = runs.tenant AND o.agent = runs.agent AND o.session_id = runs.session_id
        AND o.id < runs.id AND o.ordered = TRUE AND o.status IN ('queued', 'running')))"""
#: values of a statement that adds a run: its columns and `queued_at`
RUN_VALUES = len(RUN_COLUMNS) + 1


def run_queries(dialect: Literal["sqlite", "postgres"]) -> Mapping[str, str]:
    """The queries of runs, with the columns and the predicate `FIRST_IN_SESSION` in their places."""
    names, first = ", ".join(RUN_COLUMNS), _FIRST_IN_SESSION
    values = [f"${n}" for n in range(1, RUN_VALUES + 1)]
    if dialect == "sqlite":
        first = to_sqlite(first)
        values = [*("nullif(?, '')" if name in _OPTIONAL else "?" for name in RUN_COLUMNS), "?"]
    return {
        name: text.replace("(VALUES)", f"({', '.join(values)})")
        .replace("COLUMNS", names)
        .replace("FIRST_IN_SESSION", first)
        for name, text in store_queries(_PACKAGE, "runs", dialect).items()
    }


def run_values(run: RunRow) -> tuple[object, ...]:
    """A run as the values of `RUN_COLUMNS`."""
    return (*_plain(run), *_flags(run), *_usage(run.usage), *map(text_of, _json(run)))


def sqlite_run_values(run: RunRow) -> tuple[object, ...]:
    """The same without booleans and None: SQLite's driver looks long for how to bind them.

    Eight of them are a fifth of what a note of a run costs.
    """
    flags, usage = map(int, _flags(run)), run.usage
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost_usd)
    return (*_plain(run), *flags, *counts, int(usage.estimated), *[text_of(v) or "" for v in _json(run)])


def run_of(values: Iterable[Any]) -> RunRow:
    """The run of a row of `RUN_COLUMNS`."""
    row = tuple(values)
    plain = dict(zip((*_PLAIN, *_RUN_FLAGS), row, strict=False))
    for flag in _RUN_FLAGS:
        plain[flag] = bool(plain[flag])
    numbers = row[-len(_USAGE) - len(_RUN_JSON) : -len(_RUN_JSON)]
    data = dict(zip(_RUN_JSON, map(value_of, row[-len(_RUN_JSON) :]), strict=True))
    return RunRow(
        **plain,
        usage=usage_of(numbers),
        request=data["request"] or {},
        manifest=data["manifest"],
        caller=data["caller"] or {},
        result=data["result"],
        error=data["error"],
        attempts=tuple(data["attempts"] or ()),
        waiting_for=data["waiting_for"] or None,
    )


def usage_of(numbers: Iterable[Any]) -> Usage:
    tokens, said, cached, cost, estimated = numbers
    return Usage(int(tokens), int(said), int(cached), float(cost), bool(estimated))


def change_values(change: RunChange) -> tuple[object, ...]:
    """A change in the order of the query `change`, behind the three values of the claim."""
    used = change.usage
    return (
        change.status,
        *(
            None if value is None else text_of(value)
            for value in (change.request, change.result, change.error, change.attempts, change.waiting_for)
        ),
        change.wake_at,
        change.deadline_at,
        change.finished_at,
        *((None,) * len(_USAGE) if used is None else (getattr(used, name) for name in _USAGE)),
    )


def step_values(run_id: str, step: JournalStep) -> tuple[object, ...]:
    return (run_id, *step[:5], text_of(step.output))


def step_of(row: Iterable[Any]) -> JournalStep:
    path, n, kind, request_hash, state, output = row
    return JournalStep(path, n, kind, request_hash, state, value_of(output))


def event_values(event: Event) -> tuple[object, ...]:
    return event.run_id, event.seq, event.ts, event.type, text_of(event.data)


def event_of(run_id: str, row: Iterable[Any]) -> Event:
    seq, ts, name, data = row
    return Event(run_id, seq, ts, name, value_of(data))


def archive_values(
    run: RunRow, events: Iterable[Event], columns: Callable[[RunRow], tuple[object, ...]] = run_values
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """A run's row and the row of its trace."""
    told = text_of([(e.seq, e.ts, e.type, e.data) for e in events])
    return (*columns(run), run.created_at), (run.run_id, told)


def trace_of(values: Iterable[Any]) -> tuple[RunRow, tuple[Event, ...]]:
    """A run and its events of a row of `trace`."""
    *columns, told = values
    run = run_of(columns)
    return run, tuple(Event(run.run_id, *event) for event in value_of(told) or ())


def last_event_data(run: RunRow) -> JsonObject:
    """What the last event of a run holds that nobody worked on when it ended."""
    return {"response": "", "agent": run.agent, "usage": run.usage.to_json()}


#: what is empty most often, encoded
_EMPTY: dict[type, str] = {dict: "{}", tuple: "[]", list: "[]"}


def text_of(value: object) -> str | None:
    if not value:
        if value is None:
            return None
        if (empty := _EMPTY.get(type(value))) is not None:
            return empty
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a key that is no text, which nearly nothing has: looking for them doubles the cost
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def value_of(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def can_merge(run: RunRow, earlier: RunRow, now: float) -> bool:
    """Whether a run becomes part of an earlier one of its session that has not begun."""
    whole = all(one.request.get("history") is None and "persist" not in one.request for one in (run, earlier))
    return whole and earlier.status == "queued" and earlier.owner == run.owner and earlier.wake_at > now


def merge_requests(earlier: JsonObject, request: JsonObject) -> JsonObject:
    """Two requests as one: texts by newline, pictures in order, the rest of the first."""
    images = [*earlier.get("images", ()), *request.get("images", ())]
    both = {**earlier, "query": f"{earlier['query']}\n{request['query']}"}
    return {**both, "images": images} if images else both


# -- what both stores say --------------------------------------------------------------------------------
def key_conflict(key: str) -> str:
    return (
        f"The Idempotency-Key {key!r} was used with another request; "
        "send a new key, or the same request again."
    )


def run_lost(claim: SegmentClaim) -> str:
    return f"The run {claim.run_id!r} is no longer this worker's, or it has ended."


def session_busy() -> SessionBusy:
    return SessionBusy("The session is answering another message; send this one again when it is done.")


def interrupted_error() -> JsonObject:
    return {
        "code": Interrupted.code,
        "detail": "The server stopped in the middle of this run. Send it again; the same key may be used.",
    }


def deadline_error() -> JsonObject:
    return {
        "code": DeadlineExceeded.code,
        "detail": "The run's time was over before another worker could take it up again.",
    }


# -- Tasks ---------------------------------------------------------------------------------------------------

TASK_COLUMNS = (
    "task_id", "tenant", "owner", "workflow", "start_node", "status", "created_at", "fingerprint", "trace_id",
    "durable", "caller", "metadata", "worker", "lease_until", "cancelling", "finished_at", "result",
)  # fmt: skip


_TASK_JSON = {"caller", "metadata", "result"}


_TASK_FLAGS = {"durable", "cancelling"}


def task_queries(dialect: Literal["sqlite", "postgres"]) -> Mapping[str, str]:
    """The queries of Tasks, with the columns in their places."""
    names, mark = ", ".join(TASK_COLUMNS), "?" if dialect == "sqlite" else "$"
    values = ", ".join(f"{mark}{n}" for n in range(1, len(TASK_COLUMNS) + 1))
    return {
        name: text.replace("(VALUES)", f"({values})").replace("COLUMNS", names)
        for name, text in store_queries(_PACKAGE, "tasks", dialect).items()
    }


def task_values(row: TaskRow) -> tuple[Any, ...]:
    return tuple(
        _task_value(name, getattr(row, "start" if name == "start_node" else name)) for name in TASK_COLUMNS
    )


def task_of(values: Sequence[Any]) -> TaskRow:
    return TaskRow(
        **{
            ("start" if name == "start_node" else name): _task_field(name, value)
            for name, value in zip(TASK_COLUMNS, values, strict=True)
        }
    )


def artifact_values(one: Artifact) -> tuple[Any, ...]:
    return (*one[:-1], json_text(one.content))


def artifact_of(values: Sequence[Any]) -> Artifact:
    return Artifact._make((*values[:-1], orjson.loads(values[-1])))


def record_values(task_id: str, first: int, records: Sequence[JsonObject]) -> list[tuple[str, int, str]]:
    return [(task_id, n, json_text(record)) for n, record in enumerate(records, first)]


def json_text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def task_lost(task_id: str) -> str:
    return f"The Task {task_id!r} is no longer this worker's, or it has ended."


def _task_value(name: str, value: Any) -> Any:
    if name in _TASK_JSON:
        return None if value is None else json_text(value)
    return int(value) if name in _TASK_FLAGS else value


def _task_field(name: str, value: Any) -> Any:
    if name in _TASK_JSON:
        return None if value is None else orjson.loads(value)
    return bool(value) if name in _TASK_FLAGS else value
