"""What is stored of runs, and back: runs, steps and events as rows; memory, requests and callers as JSON.

The columns of a run are the fields of `RunRow`. A field of `RunRow` that is text, a number or a boolean is a
column. `usage` is the columns of `Usage`. Any other field is a column of JSON text. To store another field,
add it to `RunRow` and write a migration in `sql/runs/`. Calls have their JSON from `graph.call_record`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import orjson

from astromesh.durable.base import JournalStep, RunChange, RunRow
from astromesh.errors import InvalidInput
from astromesh.graph.call_record import message_to_json
from astromesh.storage.queries import Dialect
from astromesh.types import (
    Attachment,
    CallerContext,
    Event,
    JsonObject,
    MemoryContext,
    Message,
    SemanticResult,
    ToolCall,
    Usage,
)

#: number of the format of requests and of the journal; a process does not resume a run with a newer one.
#: 3: finished nodes of graphs. A run of format 2 goes on: its nodes run again, and its calls are answered.
SCHEMA = 3
#: where a stored request has the token of the place that its message took
PLACE = "place"
#: the fields of a request that only an active run needs
_FOR_THE_RUN = frozenset({"history", "preface", "screening"})
#: the fields that are stored only as the input rules let them through
_CHECKED = frozenset({"context", "metadata", "attachments"})


# -- memory --------------------------------------------------------------------------------------------------
def message_of(data: JsonObject) -> Message:
    calls = tuple(ToolCall(**call) for call in data.get("tool_calls", ()))
    attached = tuple(map(attachment_of, data.get("attachments", ())))
    rest = {key: value for key, value in data.items() if key != "images"}  # as an earlier version wrote it
    return Message(**{**rest, "tool_calls": calls, "attachments": attached})


# -- attachments: stored apart, by the hash of their content ------------------------------------------------
def attachment_of(data: JsonObject) -> Attachment:
    return Attachment(**data)


def attachment_hashes(request: JsonObject) -> tuple[str, ...]:
    """Returns the hashes of the attachments that a stored request refers to."""
    found = [*request.get("attachments", ())]
    for message in request.get("history") or ():
        found += message.get("attachments", ())
    return tuple(dict.fromkeys(one["sha256"] for one in found if "sha256" in one))


def contents_of(attachments: Iterable[Attachment]) -> dict[str, bytes]:
    """Returns the contents of attachments by hash."""
    return {one.sha256: b64decode(one.data) for one in attachments if one.sha256 and one.data}


def memory_to_json(memory: MemoryContext) -> JsonObject:
    return {
        "history": [message_to_json(m) for m in memory.conversation_history],
        "semantic": [
            [r.content, r.score, r.source, dict(r.metadata), dict(r.why)] for r in memory.semantic_results
        ],
        "episodic": list(memory.episodic_events),
        "degraded": list(memory.degraded),
        "last_seq": memory.last_seq,
    }


def memory_of(data: JsonObject) -> MemoryContext:
    return MemoryContext(
        tuple(map(message_of, data["history"])),
        tuple(SemanticResult(*found) for found in data["semantic"]),
        tuple(data["episodic"]),
        tuple(data["degraded"]),
        data.get("last_seq", 0),
    )


def ended_request(request: JsonObject, admitted: str) -> JsonObject:
    """Returns the request of an ended run, with the query as it was admitted.

    Its record has the history and the preface as they were admitted. A run that was not admitted leaves no
    text.
    """
    dropped = _FOR_THE_RUN if admitted else _FOR_THE_RUN | _CHECKED
    return {**{key: request[key] for key in request.keys() - dropped}, "query": admitted}


# -- callers -------------------------------------------------------------------------------------------------
def caller_to_json(caller: CallerContext) -> JsonObject:
    """Returns a caller without the token, which is never stored."""
    return {
        "user_id": caller.user_id,
        "tenant_id": caller.tenant_id,
        "roles": sorted(caller.roles),
        "scopes": sorted(caller.scopes),
        "metadata": dict(caller.metadata),
        "had_token": caller.had_token or bool(caller.bearer_token),
    }


def caller_of(data: JsonObject) -> CallerContext:
    return CallerContext(
        data.get("user_id", ""),
        data.get("tenant_id", ""),
        roles=frozenset(data.get("roles", ())),
        scopes=frozenset(data.get("scopes", ())),
        metadata=data.get("metadata", {}),
        had_token=data.get("had_token", False),
    )


_SQL_TYPES: Mapping[object, str] = {str: "text", int: "bigint", float: "float8", bool: "boolean"}


class Column(NamedTuple):
    """One column of a record.

    Args:
        sql_type: its type in PostgreSQL.
        json: its text is JSON.
        optional: it may be NULL.
    """

    name: str
    sql_type: str
    json: bool
    optional: bool


def columns_of(record: type) -> Iterator[Column]:
    """The columns of a record, in the order of its fields."""
    for name, hint in get_type_hints(record).items():
        options = [option for option in get_args(hint) if option is not NoneType]
        optional = len(options) < len(get_args(hint))
        plain = options[0] if optional else hint
        if plain is Usage:
            yield from columns_of(Usage)
        else:
            sql_type = _SQL_TYPES.get(plain)
            json = sql_type is None and get_origin(plain) is not Literal
            yield Column(name, sql_type or "text", json, optional)


_COLUMNS = tuple(columns_of(RunRow))
_USAGE = tuple(column.name for column in columns_of(Usage))
_JSON = tuple(column.name for column in _COLUMNS if column.json)
_OPTIONAL = frozenset(column.name for column in _COLUMNS if column.optional)
_FLAGS = tuple(
    column.name for column in _COLUMNS if column.sql_type == "boolean" and column.name not in _USAGE
)
_PLAIN = tuple(column.name for column in _COLUMNS if column.name not in {*_USAGE, *_JSON, *_FLAGS})
#: the columns of a run, in the order of `run_values`
RUN_COLUMNS = (*_PLAIN, *_FLAGS, *_USAGE, *_JSON)
#: the columns that a `RunChange` can change, in the order of `change_values`
CHANGE_COLUMNS = tuple(sorted(columns_of(RunChange), key=lambda column: (column.json, column.name in _USAGE)))
#: values of a statement that adds a run: its columns and `queued_at`
RUN_VALUES = len(RUN_COLUMNS) + 1

_plain, _flags, _usage, _json = (attrgetter(*names) for names in (_PLAIN, _FLAGS, _USAGE, _JSON))
_changed_plain = attrgetter(*(c.name for c in CHANGE_COLUMNS if not c.json and c.name not in _USAGE))
_changed_json = attrgetter(*(c.name for c in CHANGE_COLUMNS if c.json))


def run_fragments(dialect: Dialect) -> Mapping[str, str]:
    """Returns the text of the queries' placeholders: the columns of a run, and their parameters."""
    values = [f"${n}" for n in range(1, RUN_VALUES + 1)]
    if dialect == "sqlite":
        values = [*("nullif(?, '')" if name in _OPTIONAL else "?" for name in RUN_COLUMNS), "?"]
    return {"columns": ", ".join(RUN_COLUMNS), "values": ", ".join(values)}


def run_values(run: RunRow) -> tuple[object, ...]:
    """A run as the values of `RUN_COLUMNS`."""
    return (*_plain(run), *_flags(run), *_usage(run.usage), *map(text_of, _json(run)))


def sqlite_run_values(run: RunRow) -> tuple[object, ...]:
    """The same without booleans and None, which the driver of SQLite is slow to bind.

    They are a fifth of the time to archive a run.
    """
    flags, usage = map(int, _flags(run)), map(float, _usage(run.usage))
    return (*_plain(run), *flags, *usage, *[text_of(v) or "" for v in _json(run)])


def run_of(row: Iterable[Any]) -> RunRow:
    """The run of a row of `RUN_COLUMNS`."""
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    values["usage"] = usage_of(values.pop(name) for name in _USAGE)
    for name in _FLAGS:
        values[name] = bool(values[name])
    for name in _JSON:
        values[name] = value_of(values[name])
    values["attempts"], values["tags"] = tuple(values["attempts"]), tuple(values["tags"])
    values["waiting_for"] = values["waiting_for"] or None
    return RunRow(**values)


def usage_of(numbers: Iterable[Any]) -> Usage:
    inputs, outputs, cached, cost, estimated, reasoning, written = numbers
    tokens = int(inputs), int(outputs), int(cached)
    return Usage(*tokens, float(cost), bool(estimated), int(reasoning), int(written))


def change_values(change: RunChange) -> tuple[object, ...]:
    """A change as the values of `CHANGE_COLUMNS`; None leaves a column unchanged."""
    usage = (None,) * len(_USAGE) if change.usage is None else _usage(change.usage)
    return (*_changed_plain(change), *usage, *map(text_of, _changed_json(change)))


#: what is empty most often, encoded
_EMPTY: dict[type, str] = {dict: "{}", tuple: "[]", list: "[]"}


def text_of(value: object) -> str | None:
    """Raises: InvalidInput: JSON cannot represent the value."""
    if not value:
        if value is None:
            return None
        if (empty := _EMPTY.get(type(value))) is not None:
            return empty
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a key that is not text, which nearly nothing has: looking for them doubles the cost
        try:
            return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError as error:
            raise InvalidInput(f"A stored run accepts only JSON values: {error}.") from error


def value_of(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def step_values(run_id: str, step: JournalStep) -> tuple[object, ...]:
    return (run_id, *step[:5], text_of(step.output), *step[6:9], text_of(step.about))


def step_of(row: Iterable[Any]) -> JournalStep:
    path, n, kind, request_hash, state, output, ordinal, started_at, duration_ms, about = row
    step = JournalStep(path, n, kind, request_hash, state, value_of(output))
    if not ordinal:
        return step
    return step._replace(
        ordinal=ordinal, started_at=started_at, duration_ms=duration_ms, about=value_of(about)
    )


def event_values(event: Event) -> tuple[object, ...]:
    return event.run_id, event.seq, event.ts, event.type, text_of(event.data)


def event_of(run_id: str, row: Iterable[Any]) -> Event:
    seq, ts, name, data = row
    return Event(run_id, seq, ts, name, value_of(data))


def archive_values(
    run: RunRow, events: Iterable[Event], columns: Callable[[RunRow], tuple[object, ...]] = run_values
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """A run's row and the row of its trace."""
    trace = text_of([(e.seq, e.ts, e.type, e.data) for e in events])
    return (*columns(run), run.created_at), (run.run_id, trace)


def trace_of(values: Iterable[Any]) -> tuple[RunRow, tuple[Event, ...]]:
    """A run and its events of a row of `trace`."""
    *columns, trace = values
    run = run_of(columns)
    return run, tuple(Event(run.run_id, *event) for event in value_of(trace) or ())
