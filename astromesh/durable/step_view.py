"""The steps of a recorded run as others see them: one list, numbered over all branches and nested runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from astromesh.durable.base import JournalStep
from astromesh.durable.recording import Redactor, has_said, is_sealed, redacted, requests_of
from astromesh.telemetry.ids import derived_run_id
from astromesh.types import JsonObject

#: in the path of a step, before the name of the agent of a nested run
NESTED = "/run:"

RecordedKind = Literal["rule", "memory", "prompt", "model", "tool", "node", "stage"]
EditKind = Literal["query", "system", "message", "tool_result", "output", "state", "model", "manifest"]
#: what follows a step in its run: another model, or the present manifest
_OF_THE_RUN: tuple[EditKind, ...] = ("model", "manifest")
_EDITS: Mapping[str, tuple[EditKind, ...]] = {
    "prompt": ("system",),
    "model": ("output", "message", "system"),
    "tool": ("tool_result",),
    "node": ("output", "state"),
}
#: the kind of a recorded value, by its name
_VALUE_KINDS: Mapping[str, RecordedKind] = {
    "input": "rule",
    "memory": "memory",
    "prompt": "prompt",
    "output": "rule",
}
#: keys of a model's answer that steps show
_ANSWER = ("content", "tool_calls", "finish_reason", "provider", "model")
#: keys of a tool's result that steps show
_RESULT = ("content", "ok", "error", "value")
#: keys of the record of a node that steps show
_NODE = ("result", "writes", "edge", "stop", "missing")


def listed(steps: Iterable[JournalStep]) -> list[JournalStep]:
    """Returns the steps that others see, by their numbers: decisions and inner values have numbers, too."""
    found = (step for step in steps if step.ordinal and step.about is not None)
    return sorted(found, key=lambda step: step.ordinal)


def steps_json(steps: Iterable[JournalStep]) -> list[JsonObject]:
    """Returns the steps as `GET /v1/runs/{id}/steps` shows them."""
    return [step_json(step) for step in listed(steps)]


def run_place(path: str) -> str:
    """Returns the place of the run that has made a step: empty for the run at the top."""
    path = path.removeprefix("node:")
    start = path.rfind(NESTED)
    if start < 0:
        return ""
    end = path.find("/", start + len(NESTED))
    return path if end < 0 else path[:end]


def agent_at(path: str) -> str:
    """Returns the name of the agent of a nested run that has made a step; empty for the run at the top."""
    place = run_place(path)
    return place[place.rfind(NESTED) + len(NESTED) :].partition(":")[0] if place else ""


def as_shown(steps: Iterable[JournalStep], redactors: Mapping[str, Redactor | None]) -> list[JournalStep]:
    """Returns steps as the output rules of their agents leave them. The record of an ended run has no others.

    Args:
        redactors: by the agent of a nested run; empty for the run at the top.
    """

    def shown(step: JournalStep) -> JournalStep:
        rules = redactors[agent_at(step.path)] if has_said(step) else None
        return step if rules is None else redacted(step, rules)

    return [shown(step) for step in steps]


def step_json(step: JournalStep) -> JsonObject:
    """Returns one step. Only models and nodes have a `usage`."""
    return {
        "step": step.ordinal,
        "path": step.path.removeprefix("node:"),
        "kind": kind_of(step),
        "name": name_of(step),
        "started_at": step.started_at,
        "duration_ms": step.duration_ms,
        "usage": usage_of(step),
        "editable": list(editable(step)),
    }


def steps_of_nested(steps: Sequence[JournalStep], run_id: str, nested_id: str) -> list[JournalStep]:
    """Returns the steps that a nested run has made.

    Args:
        run_id: of the run that has the record.
    """
    places = {place for step in steps for place in _places(step)}
    own = [place for place in places if derived_run_id(run_id, place) == nested_id]
    return [step for step in steps if any(place in _places(step) for place in own)]


def _places(step: JournalStep) -> Iterator[str]:
    """Yields the places of the nested runs that a step is in."""
    parts = step.path.removeprefix("node:").split("/")
    for n, part in enumerate(parts, 1):
        if part.startswith("run:"):
            yield "/".join(parts[:n])


def editable(step: JournalStep) -> tuple[EditKind, ...]:
    """Returns the edits that a fork at a step may have."""
    kind = kind_of(step)
    if kind == "rule" and step.path == "input":
        return ("query", *_OF_THE_RUN)
    if kind == "stage":
        return ()
    return (*_EDITS.get(kind, ()), *_OF_THE_RUN)


def kind_of(step: JournalStep) -> RecordedKind:
    if step.kind == "value":
        return _VALUE_KINDS.get((step.about or {}).get("name", ""), "stage")
    return step.kind  # type: ignore[return-value]  # a wait has no number


def name_of(step: JournalStep) -> str:
    """Returns the name of the rule, tool or node, or of the model that has answered."""
    model = ((step.output or {}).get("result") or {}).get("model") if step.kind == "model" else ""
    name: str = model or (step.about or {}).get("name", "")
    return name or step.path.removeprefix("node:").rpartition("/")[2]


def usage_of(step: JournalStep) -> JsonObject | None:
    """Returns the usage of a model call, or of what a node or stage has called."""
    if step.about is not None and "usage" in step.about:
        of_stage: JsonObject | None = step.about["usage"]
        return of_stage
    result = (step.output or {}).get("result") if step.kind in ("model", "node") else None
    found: JsonObject | None = result.get("usage") if isinstance(result, dict) else None
    return found


def step_content(steps: Sequence[JournalStep], ordinal: int) -> JsonObject | None:
    """Returns a step with its input and output, or None if there is no such step.

    Args:
        steps: all steps, in the order of their paths and numbers.
    """
    step = next((one for one in listed(steps) if one.ordinal == ordinal), None)
    if step is None:
        return None
    return {**step_json(step), "input": input_of(steps, step), "output": output_of(step)}


def input_of(steps: Sequence[JournalStep], step: JournalStep) -> JsonObject | None:
    """Returns the request of a model call, the arguments of a tool call, or the input of a node or stage."""
    if step.kind == "model":
        same_path = (one for one in steps if one.path == step.path)
        return requests_of(same_path).get((step.path, step.n))
    if step.kind == "node" and "after" in (step.about or {}):
        return None if step.output is None else _state_before(steps, step)
    found = (step.about or {}).get("in")
    return found if found is None or isinstance(found, dict) else {"arguments": found}


def _state_before(steps: Iterable[JournalStep], node: JournalStep) -> JsonObject:
    """Returns what the nodes of a graph had written when one of them began."""
    assert node.about is not None and node.output is not None
    outputs: JsonObject = {}
    context: JsonObject = {}
    for step in listed(steps):
        record = step.output or {}
        is_earlier = step.kind == "node" and step.ordinal <= node.about["after"]
        if not is_earlier or record.get("graph") != node.output.get("graph"):
            continue
        result, writes = record.get("result", {}), record.get("writes", {})
        outputs[name_of(step)] = result.get("output", result.get("raw_output"))
        context |= {**writes.get("context", {}), **record.get("edit", {}).get("context", {})}
        for key in writes.get("removed", ()):
            context.pop(key, None)
    found: JsonObject = without_sealed({"outputs": outputs, "context": context})
    return found


def output_of(step: JournalStep) -> JsonObject | None:
    """Returns the output of a step without what only the provider of a model may read."""
    found, rules = _output_of(step), (step.about or {}).get("rules")
    if found is None or not rules:
        return found
    return {**found, "verdicts": list(_verdicts(rules, found.get("actions", ())))}


def _verdicts(rules: Iterable[str], actions: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yields what each rule has decided. A rule behind one that blocks has not been asked."""
    for rule in dict.fromkeys(rules):
        of_rule = (one for one in actions if one["type"] == rule)
        acted = [{key: one[key] for key in ("type", "action", "count")} for one in of_rule]
        yield from acted or [{"type": rule, "action": "pass", "count": 0}]
        if any(one["action"] == "block" for one in acted):
            return


def _output_of(step: JournalStep) -> JsonObject | None:
    if step.about is not None and "out" in step.about:
        return dict(step.about["out"])
    output = step.output
    if output is None:
        return None
    if step.kind == "model":
        return _answer_json(output)
    if step.kind == "tool":
        return {key: output[key] for key in _RESULT if key in output}
    if step.kind == "node":
        return {key: without_sealed(output[key]) for key in _NODE if key in output}
    return output


def _answer_json(output: JsonObject) -> JsonObject:
    if "failure" in output:
        return {"error": output["failure"]["type"], "message": output["failure"]["message"]}
    found: JsonObject = without_sealed({key: output["result"][key] for key in _ANSWER})
    return found


def without_sealed(value: Any) -> Any:
    """Returns messages or answers of models without what only their provider may read."""
    if isinstance(value, list):
        return [*map(without_sealed, value)]
    if isinstance(value, dict):
        return {key: without_sealed(inner) for key, inner in value.items() if not is_sealed(key, value)}
    return value
