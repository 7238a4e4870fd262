"""What a merge is given, and when it must not run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from astromesh.config.workflow.nodes import MergeSpec, NodeSpec
from astromesh.types import JsonObject
from astromesh.workflow.task import Task

_DEFAULT = MergeSpec()


def merge_input(inputs: Sequence[Task], failures: Sequence[Task]) -> JsonObject:
    """`{"inputs": […], "failures": […]}`, both in order (E34)."""
    return {
        "inputs": [_input(task) for task in inputs],
        "failures": [_failure(task) for task in failures],
    }


#: of an input or failure: differs from run to run, and is nothing that a model or a search should see
_OF_THE_RUN = frozenset({"task_id", "started_at", "finished_at"})


def as_asked(value: JsonObject) -> JsonObject:
    """The input of a merge without what differs from run to run (E53)."""
    return {
        key: [{name: one[name] for name in one if name not in _OF_THE_RUN} for one in told]
        for key, told in value.items()
    }


def _input(task: Task) -> JsonObject:
    last = task.entries[-1] if task.entries else None
    source, label = task.came_by
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


def refusal(node: NodeSpec, inputs: Sequence[Task], failures: Sequence[Task]) -> JsonObject | None:
    """Why a merge's operation must not run, or None (E32, E33)."""
    rules = node.merge or _DEFAULT
    if rules.on_failure == "halt" and failures:
        return {
            "code": "halted",
            "message": f"{len(failures)} of its inputs failed (merge.on_failure: halt).",
        }
    if len(inputs) < rules.min_success:
        message = f"{len(inputs)} inputs were successful; {rules.min_success} are needed (merge.min_success)."
        return {"code": "no_successful_inputs", "message": message}
    return None


# -- strategies --------------------------------------------------------------------------------------------


def listed(outputs: Sequence[Any]) -> Any:
    return list(outputs)


def first(outputs: Sequence[Any]) -> Any:
    return outputs[0] if outputs else None


def concat(outputs: Sequence[Any]) -> Any:
    """Texts become one text with a line each; lists one list, into which other values go as they are."""
    if outputs and all(isinstance(output, str) for output in outputs):
        return "\n".join(outputs)
    joined: list[Any] = []
    for output in outputs:
        joined.extend(output if isinstance(output, list) else [output])
    return joined


def majority(outputs: Sequence[Any]) -> Any:
    """The most frequent output; of equally frequent ones the first."""
    if not outputs:
        return None
    texts = [orjson.dumps(output, option=orjson.OPT_SORT_KEYS) for output in outputs]
    counts = Counter(texts)
    return outputs[max(range(len(texts)), key=lambda i: (counts[texts[i]], -i))]


STRATEGIES: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "list": listed,
    "first": first,
    "concat": concat,
    "majority": majority,
}
