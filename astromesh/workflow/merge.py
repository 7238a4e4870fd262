"""The input of a merge, the rules when it must not run, and its strategies. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from astromesh.config.workflow import MergeSpec, NodeSpec
from astromesh.text import counted
from astromesh.types import JsonObject
from astromesh.workflow.base import Task

_DEFAULT_MERGE = MergeSpec()


def merge_input(inputs: Sequence[Task], failures: Sequence[Task]) -> JsonObject:
    """Returns `{"inputs": […], "failures": […]}`, both in order."""
    return {
        "inputs": [_input(task) for task in inputs],
        "failures": [_failure(task) for task in failures],
    }


#: keys of an input or failure that differ from run to run; models and searches do not see them
_RUN_FIELDS = frozenset({"task_id", "started_at", "finished_at"})


def without_run_fields(value: JsonObject) -> JsonObject:
    """Returns the input of a merge without the keys that differ from run to run."""
    return {
        key: [{name: one[name] for name in one if name not in _RUN_FIELDS} for one in entries]
        for key, entries in value.items()
    }


def _input(task: Task) -> JsonObject:
    last = task.entries[-1] if task.entries else None
    source, label = task.entered_by
    return {
        "task_id": task.id,
        "node_id": source.partition("#")[0],
        "stage_id": source,
        "edge": label,
        "index": task.index,
        "status": task.status,
        "output": task.output,
        "started_at": last.started_at if last else None,
        "finished_at": last.finished_at if last else None,
        "lineage": task.lineage,
    }


def _failure(task: Task) -> JsonObject:
    error = task.error or {}
    return {
        "task_id": task.id,
        "stage_id": error.get("stage", ""),
        "edge": task.edge,
        "index": task.index,
        "lineage": task.lineage,
        "error": {"code": error.get("code", ""), "message": error.get("message", "")},
    }


def merge_error(node: NodeSpec, inputs: Sequence[Task], failures: Sequence[Task]) -> JsonObject | None:
    """Returns the error of a merge whose operation must not run, or None."""
    rules = node.merge or _DEFAULT_MERGE
    if rules.on_failure == "halt" and failures:
        return {
            "code": "halted",
            "message": f"{len(failures)} of its inputs failed (merge.on_failure: halt).",
        }
    if len(inputs) < rules.min_success:
        succeeded = f"{counted(len(inputs), 'input')} succeeded"
        message = f"{succeeded}; the merge needs {rules.min_success} (merge.min_success)."
        return {"code": "no_successful_inputs", "message": message}
    return None


# -- strategies --------------------------------------------------------------------------------------------


def as_list(outputs: Sequence[Any]) -> Any:
    return list(outputs)


def first(outputs: Sequence[Any]) -> Any:
    return outputs[0] if outputs else None


def concat(outputs: Sequence[Any]) -> Any:
    """Joins texts with line breaks; otherwise concatenates lists and appends other values."""
    if outputs and all(isinstance(output, str) for output in outputs):
        return "\n".join(outputs)
    joined: list[Any] = []
    for output in outputs:
        joined.extend(output if isinstance(output, list) else [output])
    return joined


def majority(outputs: Sequence[Any]) -> Any:
    """Returns the most frequent output; of equally frequent ones the first."""
    if not outputs:
        return None
    texts = [orjson.dumps(output, option=orjson.OPT_SORT_KEYS) for output in outputs]
    counts = Counter(texts)
    return outputs[max(range(len(texts)), key=lambda i: (counts[texts[i]], -i))]


STRATEGIES: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "list": as_list,
    "first": first,
    "concat": concat,
    "majority": majority,
}
