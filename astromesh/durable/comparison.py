"""Recorded runs side by side: steps aligned, the first one that differs, texts as a diff, what they cost.

Steps are aligned by kind, place and name, in order. The ids of tool calls are no part of a place: models make
them up.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from msgspec import convert

from astromesh.durable.base import JournalStep, RunRow
from astromesh.durable.recording import requests_of
from astromesh.durable.step_view import input_of, kind_of, listed, name_of, output_of, usage_of
from astromesh.durable.tasks import TaskRow
from astromesh.types import JsonObject, Usage

#: lines of one diff, and lines around a change
_MAX_LINES, _CONTEXT = 400, 2
_CALL_ID = re.compile(r"/tool:[^/]+")
_RUN_ID = re.compile(r"/run:([^/:]+):[^/]*")
#: what differs from run to run
_VARYING = frozenset({
    "id", "tool_call_id", "call_id", "run_id", "session_id", "trace_id",
    "duration_ms", "latency_ms", "seconds",
})  # fmt: skip

#: kind, place, name and number of a step among those that are alike
Key = tuple[str, str, str, int]


class ComparedRun(NamedTuple):
    """A run with its record.

    Args:
        steps: in the order of their paths and numbers.
    """

    row: RunRow
    steps: Sequence[JournalStep]

    @property
    def about(self) -> JsonObject:
        """What a run is as a whole."""
        row = self.row
        return {
            "run_id": row.run_id,
            "agent": row.agent,
            "status": row.status,
            "response": (row.result or {}).get("response"),
            "latency_ms": latency_ms(row),
        }


class ComparedTask(NamedTuple):
    """A Task with its steps."""

    row: TaskRow
    steps: Sequence[JournalStep]

    @property
    def about(self) -> JsonObject:
        """What a Task is as a whole."""
        row = self.row
        return {
            "task_id": row.task_id,
            "workflow": row.workflow,
            "status": row.status,
            "output": (row.result or {}).get("output"),
            "latency_ms": latency_ms(row),
        }


def latency_ms(row: RunRow | TaskRow) -> float | None:
    """Returns the milliseconds from the start of a run to its end; None if it has not ended."""
    return round(max((row.finished_at - row.created_at) * 1000, 0.0), 3) if row.finished_at else None


class _Shown(NamedTuple):
    """A step as it is compared."""

    step: JournalStep
    content: JsonObject


def compare(runs: Mapping[str, ComparedRun] | Mapping[str, ComparedTask]) -> JsonObject:
    """Returns the comparison as `GET /v1/runs/compare` shows it.

    Args:
        runs: two or three of one kind, by the letter that names each. The others are compared with the first.
    """
    sides = {letter: _shown(run.steps) for letter, run in runs.items()}
    rows = [_row(key, {letter: steps.get(key) for letter, steps in sides.items()}) for key in _order(sides)]
    first = next((row for row in rows if not row["equal"]), None)
    return {
        "runs": {letter: _total(run) for letter, run in runs.items()},
        "steps": rows,
        "divergence": first,
    }


def _shown(steps: Sequence[JournalStep]) -> dict[Key, _Shown]:
    requests, seen = requests_of(steps), Counter[tuple[str, str, str]]()
    found: dict[Key, _Shown] = {}
    for step in listed(steps):
        name = (step.about or {}).get("name", "") if step.kind == "model" else name_of(step)
        alike = kind_of(step), _place(step.path, name), name
        seen[alike] += 1
        if step.kind == "model":
            source = requests.get((step.path, step.n))
        else:  # a node finds what others have written: of concurrent ones, that depends on the time
            source = None if step.kind == "node" and "after" in (step.about or {}) else input_of(steps, step)
        found[*alike, seen[alike]] = _Shown(step, _comparable({"input": source, "output": output_of(step)}))
    return found


def _place(path: str, name: str) -> str:
    path = _RUN_ID.sub(r"/run:\1", path.removeprefix("node:"))
    return _CALL_ID.sub(f"/tool:{name}", path)


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(inner) for key, inner in value.items() if key not in _VARYING}
    return [*map(_comparable, value)] if isinstance(value, list) else value


def _order(sides: Mapping[str, Mapping[Key, _Shown]]) -> list[Key]:
    """Returns the keys of all runs: in the order of the first, those of others behind the one before them."""
    first, *others = sides.values()
    order = list(first)
    for steps in others:
        place = 0
        for key in steps:
            if key in order:
                place = max(place, order.index(key) + 1)
            else:
                order.insert(place, key)
                place += 1
    return order


def _row(key: Key, found: Mapping[str, _Shown | None]) -> JsonObject:
    letters = list(found)
    first = found[letters[0]]
    texts = {letter: _lines(one) for letter, one in found.items()}
    diffs = {
        letter: _diff(texts[letters[0]], texts[letter], letters[0], letter)
        for letter in letters[1:]
        if texts[letter] != texts[letters[0]]
    }
    kind, place, name, _ = key
    steps = {letter: None if one is None else _numbers(one.step) for letter, one in found.items()}
    equal = first is not None and not diffs
    return {"kind": kind, "path": place, "name": name, "equal": equal, **steps, "diff": diffs}


def _lines(one: _Shown | None) -> list[str]:
    if one is None:
        return []
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(one.content, option=options, default=str).decode().splitlines()


def _diff(before: list[str], after: list[str], one: str, other: str) -> str:
    lines = list(difflib.unified_diff(before, after, one, other, lineterm="", n=_CONTEXT))
    cut = [f"… {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else []
    return "\n".join([*lines[:_MAX_LINES], *cut])


def _numbers(step: JournalStep) -> JsonObject:
    return {"step": step.ordinal, "duration_ms": step.duration_ms, "usage": usage_of(step)}


def _total(run: ComparedRun | ComparedTask) -> JsonObject:
    """Returns a run with its usage: that of all its model calls, inherited ones too."""
    calls = [step for step in listed(run.steps) if step.kind == "model"]
    usage = sum((convert(used, Usage) for step in calls if (used := usage_of(step))), Usage())
    return {
        **run.about,
        "model_calls": len(calls),
        "tool_calls": sum(step.kind == "tool" for step in listed(run.steps)),
        "usage": usage.to_json(),
    }
