"""Runs, steps and events as rows: the columns and their order, in every database the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import orjson

from astromesh.abc.durable import Change, Claim, RunRow, Step
from astromesh.errors import DeadlineExceeded, Interrupted, SessionBusy
from astromesh.types import Event, JsonObject, Usage

_PLAIN = (
    "run_id", "tenant", "owner", "agent", "session_id", "trace_id", "parent", "status", "segment",
    "worker", "priority", "created_at", "finished_at", "deadline_at", "wake_at",
)  # fmt: skip
_FLAGS = ("durable", "cancelling", "ordered")
_USAGE = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd", "estimated")
_JSON = ("request", "manifest", "caller", "result", "error", "attempts", "waiting_for")
_OPTIONAL = frozenset({"manifest", "result", "error", "waiting_for"})
COLUMNS = (*_PLAIN, *_FLAGS, *_USAGE, *_JSON)
_plain, _flags, _usage, _json = (attrgetter(*names) for names in (_PLAIN, _FLAGS, _USAGE, _JSON))


def with_columns(queries: Mapping[str, str], placeholder: str = "?") -> Mapping[str, str]:
    """Queries in which COLUMNS and VALUES stand for the columns of a run.

    Args:
        placeholder: `?` for `bare_columns_of`, or `$` where values are numbered.
    """
    names = ", ".join(COLUMNS)
    bare = ["nullif(?, '')" if name in _OPTIONAL else "?" for name in COLUMNS]
    numbered = [f"${n + 1}" for n in range(len(COLUMNS))]
    values = ", ".join(bare if placeholder == "?" else numbered)
    return {
        name: text.replace("(VALUES,", f"({values},").replace("COLUMNS", names)
        for name, text in queries.items()
    }


def columns_of(run: RunRow) -> tuple[object, ...]:
    """A run as the values of `COLUMNS`."""
    return (*_plain(run), *_flags(run), *_usage(run.usage), *map(text_of, _json(run)))


def bare_columns_of(run: RunRow) -> tuple[object, ...]:
    """The same without booleans and None: SQLite's driver looks long for how to bind them.

    Eight of them are a fifth of what a note of a run costs.
    """
    flags, usage = map(int, _flags(run)), run.usage
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost_usd)
    return (*_plain(run), *flags, *counts, int(usage.estimated), *[text_of(v) or "" for v in _json(run)])


def run_of(values: Iterable[Any]) -> RunRow:
    """The run of a row of `COLUMNS`."""
    row = tuple(values)
    plain = dict(zip((*_PLAIN, *_FLAGS), row, strict=False))
    for flag in _FLAGS:
        plain[flag] = bool(plain[flag])
    numbers = row[-len(_USAGE) - len(_JSON) : -len(_JSON)]
    data = dict(zip(_JSON, map(value_of, row[-len(_JSON) :]), strict=True))
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


def change_values(change: Change) -> tuple[object, ...]:
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


def step_values(run_id: str, step: Step) -> tuple[object, ...]:
    return (run_id, *step[:5], text_of(step.output))


def step_of(row: Iterable[Any]) -> Step:
    path, n, kind, request_hash, state, output = row
    return Step(path, n, kind, request_hash, state, value_of(output))


def event_values(event: Event) -> tuple[object, ...]:
    return event.run_id, event.seq, event.ts, event.type, text_of(event.data)


def event_of(run_id: str, row: Iterable[Any]) -> Event:
    seq, ts, name, data = row
    return Event(run_id, seq, ts, name, value_of(data))


def noted(
    run: RunRow, events: Iterable[Event], columns: Callable[[RunRow], tuple[object, ...]] = columns_of
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """A run's row and the row of its trace."""
    told = text_of([(e.seq, e.ts, e.type, e.data) for e in events])
    return (*columns(run), run.created_at), (run.run_id, told)


def traced(values: Iterable[Any]) -> tuple[RunRow, tuple[Event, ...]]:
    """A run and its events of a row of `trace`."""
    *columns, told = values
    run = run_of(columns)
    return run, tuple(Event(run.run_id, *event) for event in value_of(told) or ())


def last_words(run: RunRow) -> JsonObject:
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


def merges_into(run: RunRow, earlier: RunRow, now: float) -> bool:
    """Whether a run becomes part of an earlier one of its session that has not begun."""
    whole = all(one.request.get("history") is None and "persist" not in one.request for one in (run, earlier))
    return whole and earlier.status == "queued" and earlier.owner == run.owner and earlier.wake_at > now


def merged(earlier: JsonObject, request: JsonObject) -> JsonObject:
    """Two requests as one: texts by newline, pictures in order, the rest of the first."""
    images = [*earlier.get("images", ()), *request.get("images", ())]
    both = {**earlier, "query": f"{earlier['query']}\n{request['query']}"}
    return {**both, "images": images} if images else both


# -- what both stores say --------------------------------------------------------------------------------


def conflict(key: str) -> str:
    return (
        f"The Idempotency-Key {key!r} was used with another request; "
        "send a new key, or the same request again."
    )


def lost(claim: Claim) -> str:
    return f"The run {claim.run_id!r} is no longer this worker's, or it has ended."


def busy() -> SessionBusy:
    return SessionBusy("The session is answering another message; send this one again when it is done.")


def cut_off() -> JsonObject:
    return {
        "code": Interrupted.code,
        "detail": "The server stopped in the middle of this run. Send it again; the same key may be used.",
    }


def too_late() -> JsonObject:
    return {
        "code": DeadlineExceeded.code,
        "detail": "The run's time was over before another worker could take it up again.",
    }
