"""The record of a fork: the steps of another run before one of its steps, and an edit of what follows.

A fork is an ordinary durable run. It answers the steps that its record has, and continues behind them: no
step before the one that it is forked at is executed again. Steps are numbered when they end, so these are all
that the step has used.

    edit          at                what the record of the fork has
    -----------   ---------------   -------------------------------------------------------------------
    query         the input rules   no step; the request has the new query
    system        prompt, model     the steps before, and the system message that prompts begin with
    message       model             the steps before, and a user message at the end of this request
    output        model, node       the step, too, with another output
    tool_result   tool              the step, too, with another result
    state         node              the step, too, and values that are written to the state behind it
    model         any               the steps before; the manifest has another model
    manifest      any               the steps before; the manifest is the present one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from msgspec.structs import replace

from astromesh.durable.base import JournalStep
from astromesh.durable.recording import Redactor, message_json, requests_of
from astromesh.durable.step_view import NESTED, EditKind, editable, kind_of, run_place
from astromesh.errors import InvalidInput, NotRecorded
from astromesh.graph import call_record
from astromesh.tools.results import to_text
from astromesh.types import CompletionRequest, JsonObject, Message, ToolCall

#: in the path of a step: an edit; what calls with an effect have returned, and what its runs have found in
#: memory, in the run that was forked
_EDIT, _EFFECT, _RECALLED = "edit:", "effect:", "recalled:"


class Edit(NamedTuple):
    """What is different in a fork.

    Args:
        value: `output` of a model: a text, or `{"content"?, "tool_calls"?}`. `tool_result`, and `output` of a
            node: any JSON value. `state`: values by name. `model`: a name, `provider:name`, or a block.
            `manifest`: `current`. Others: a text.
    """

    kind: EditKind
    value: Any


def check_edit(step: JournalStep, edit: Edit) -> None:
    """Raises: InvalidInput: a fork at this step cannot have this edit, or its value has another type."""
    if edit.kind not in editable(step):
        can = ", ".join(editable(step)) or "nothing"
        raise InvalidInput(f"edit: step {step.ordinal} is {_a(step)}: {can} can be edited there.")
    if edit.kind in ("query", "system", "message") and not isinstance(edit.value, str):
        raise InvalidInput(f"edit.{edit.kind}: must be a text.")
    if edit.kind == "state" and not isinstance(edit.value, dict):
        raise InvalidInput("edit.state: must be an object of values by name.")
    if edit.kind == "model" and not isinstance(edit.value, str | dict):
        raise InvalidInput("edit.model: must be a model's name, `provider:name`, or a block.")
    if edit.kind == "manifest" and edit.value != "current":
        raise InvalidInput("edit.manifest: must be `current`.")


def _a(step: JournalStep) -> str:
    kind = kind_of(step)
    return f"the {step.path} rules" if kind == "rule" else f"a {kind} step"


# -- the record ----------------------------------------------------------------------------------------------


def forked_steps(steps: Sequence[JournalStep], at: JournalStep, edit: Edit | None) -> list[JournalStep]:
    """Returns the record that a fork begins with.

    Args:
        steps: of the run, in the order of their paths and numbers.
        at: the step that the run is forked at.

    Raises:
        NotRecorded: the texts of a step before `at` are no longer stored.
        InvalidInput: the value of the edit does not fit.
    """
    if edit is not None and edit.kind == "query":
        return [*_effects(steps, at)]
    before = [_without_deadline(step) for step in steps if 0 < step.ordinal < at.ordinal]
    require_outputs(before)
    edits = (step for step in steps if _EDIT in step.path)
    copied = [*before, *edits, *_effects(steps, at), *_recalled(steps, at)]
    if edit is None:
        return copied
    if edit.kind in ("system", "message"):
        made = _edit_step(steps, at, edit)
        copied = [_with_system(step, at, edit) for step in copied if step.path != made.path]
        return [*copied, made]
    if edit.kind == "manifest":  # the prompt is made again
        return [step for step in copied if kind_of(step) != "prompt"]
    if edit.kind in ("output", "tool_result", "state"):
        return [*copied, with_output(at, edit)]
    return copied


def _with_system(step: JournalStep, at: JournalStep, edit: Edit) -> JournalStep:
    """Returns the prompt of the run at a place with the edited system message; any other step as it is."""
    if edit.kind != "system" or kind_of(step) != "prompt" or run_place(step.path) != run_place(at.path):
        return step
    messages = [one for one in (step.output or {})["messages"] if one["role"] != "system"]
    system = [{"role": "system", "content": edit.value}] if edit.value else []
    return step._replace(output={"messages": [*system, *messages]})


def _without_deadline(step: JournalStep) -> JournalStep:
    """Returns a decision without the time that was left in the run that has waited for it."""
    if step.kind != "wait" or not step.output:
        return step
    return step._replace(output={key: value for key, value in step.output.items() if key != "left"})


def require_outputs(steps: Sequence[JournalStep]) -> None:
    """Raises: NotRecorded: a finished step has no output, and who repeats these comes to it."""
    for step in steps:
        if step.state != "done":
            continue
        if step.output is not None and "missing" in step.output:
            why = step.output["missing"]
            raise NotRecorded(f"Step {step.ordinal} ({step.path}) cannot be repeated: {why}")
        if step.output is None and not any(_hides(other, step) for other in steps):
            raise NotRecorded(f"What step {step.ordinal} ({step.path}) has said is no longer stored.")


def _hides(around: JournalStep, step: JournalStep) -> bool:
    if around.kind not in ("tool", "node") or around.ordinal < step.ordinal:
        return False
    place = around.path.removeprefix("node:").rpartition("/tool:")[0] or around.path.removeprefix("node:")
    return step.path.removeprefix("node:").startswith(f"{place}{NESTED}")


def _effects(steps: Iterable[JournalStep], at: JournalStep) -> Iterable[JournalStep]:
    """Yields the results that tools have returned from the step on, for calls that must not happen again."""
    seen: dict[str, int] = {}
    for step in sorted(steps, key=lambda one: one.ordinal):
        output = step.output
        if is_effect(step):
            yield step
        if step.kind != "tool" or step.ordinal < at.ordinal or output is None or step.about is None:
            continue
        if "runs" in output or "content" not in output:  # a nested run has effects of its own
            continue
        effect = effect_step(step.about["name"], step.about["in"], output)
        n = seen[effect.path] = seen.get(effect.path, 0) + 1
        yield effect._replace(n=n)


def _recalled(steps: Iterable[JournalStep], at: JournalStep) -> Iterable[JournalStep]:
    """Yields what runs have found in memory from the step on: their sessions may have grown since."""
    for step in steps:
        if step.ordinal >= at.ordinal and kind_of(step) == "memory" and step.output is not None:
            yield JournalStep(f"{_RECALLED}{step.path}", 1, "value", "", "done", step.output)


def recalled(steps: Mapping[tuple[str, int], JournalStep], path: str) -> JsonObject | None:
    """Returns what the run that was forked has found in memory at a path."""
    step = steps.get((f"{_RECALLED}{path}", 1))
    return step.output if step is not None else None


def effect_step(name: str, arguments: str, output: JsonObject) -> JournalStep:
    """Returns the first result of a call for `recorded_effect`."""
    return JournalStep(f"{_EFFECT}{_effect_key(name, arguments)}", 1, "value", "", "done", output)


def is_recalled(step: JournalStep) -> bool:
    """Whether a step is what the run that was forked has found in memory."""
    return step.path.startswith(_RECALLED)


def is_effect(step: JournalStep) -> bool:
    """Whether a step is the result of a call that a fork does not repeat."""
    return step.path.startswith(_EFFECT)


def _effect_key(name: str, arguments: str) -> str:
    return call_record.hash_of([name, call_record.arguments_of(ToolCall("", name, arguments))])


def _edit_step(steps: Sequence[JournalStep], at: JournalStep, edit: Edit) -> JournalStep:
    place = run_place(at.path)
    path = f"{place}/{_EDIT}{edit.kind}" if place else f"{_EDIT}{edit.kind}"
    output: JsonObject = {"text": edit.value}
    if edit.kind == "message":
        same_path = [step for step in steps if step.path == at.path]
        request = requests_of(same_path).get((at.path, at.n))
        if request is None:
            raise NotRecorded(f"The request of step {at.ordinal} is not stored.")
        output |= {"at": len(request["messages"]), "after": _conversation_hash(request["messages"])}
    return JournalStep(path, 1, "value", "", "done", output)


def _conversation_hash(messages: Iterable[JsonObject]) -> str:
    return call_record.hash_of([one for one in messages if one.get("role") != "system"])


# -- steps with another output -------------------------------------------------------------------------------


def with_output(step: JournalStep, edit: Edit) -> JournalStep:
    """Returns a step whose output is that of an edit."""
    output = step.output
    if output is None:
        raise NotRecorded(f"What step {step.ordinal} has said is no longer stored.")
    make = {"model": _edited_answer, "tool": _edited_result, "node": _edited_node}[step.kind]
    about = {key: value for key, value in (step.about or {}).items() if key != "out"}
    return step._replace(output=make(output, edit), about=about)


def _edited_result(output: JsonObject, edit: Edit) -> JsonObject:
    value = edit.value
    unchanged: JsonObject = {k: output[k] for k in ("duration_ms", "ends_run", "untrusted") if k in output}
    return {**unchanged, "content": to_text(value), "ok": True, "error": "", "value": value}


def _edited_answer(output: JsonObject, edit: Edit) -> JsonObject:
    answer = {"content": edit.value} if isinstance(edit.value, str) else edit.value
    if not isinstance(answer, dict) or answer.keys() - {"content", "tool_calls"} or not answer:
        raise InvalidInput("edit.output: must be a text, or `content` and `tool_calls` of an answer.")
    content, requested = answer.get("content") or "", answer.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(requested, list):
        raise InvalidInput("edit.output: `content` must be a text, `tool_calls` a list.")
    calls = [_tool_call(call, n) for n, call in enumerate(requested, 1)]
    before = output.get("result", {})
    result = {
        "usage": {},
        "provider": "",
        "model": "",
        "attempts": [],
        "response_model": "",
        **before,
        "content": content,
        "tool_calls": calls,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    return {"step": output["step"], "result": result}


def _tool_call(call: Any, n: int) -> JsonObject:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise InvalidInput("edit.output: a tool call is `{name, arguments, id?}`.")
    arguments = call.get("arguments", {})
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": str(call.get("id") or f"edited_{n}"), "name": call["name"], "arguments": text, "kept": ""}


#: what the result of a node keeps when its output is edited
_KEPT_OF_RESULT = ("duration_ms", "usage", "charged")


def _edited_node(record: JsonObject, edit: Edit) -> JsonObject:
    """Returns the record of a node without its edge: the run decides where it leads."""
    record = {key: value for key, value in record.items() if key not in ("edge", "stop", "text")}
    if edit.kind == "state":
        before = record.get("edit", {}).get("context", {})
        return {**record, "edit": {"context": {**before, **edit.value}}}
    earlier = record["result"]
    result = {key: earlier[key] for key in _KEPT_OF_RESULT if key in earlier}
    result |= {"output": edit.value, "raw_is_output": True}
    if "messages" in earlier:
        result["messages"] = [_with_text(one, edit.value) for one in earlier["messages"]]
    return {**record, "result": result}


def _with_text(message: Any, value: Any) -> Any:
    """Returns the message by which a node has added its output, with another text."""
    is_answer = isinstance(message, dict) and message["role"] == "assistant" and not message["tool_calls"]
    return {**message, "content": to_text(value)} if is_answer else message


# -- what a journal asks its record --------------------------------------------------------------------------


class ForkEdits:
    """The edits in the record of a run, as one run of its tree applies them.

    Args:
        steps: by path and number.
    """

    def __init__(self, steps: Mapping[tuple[str, int], JournalStep], place: str) -> None:
        prefix = f"{place}/{_EDIT}" if place else _EDIT
        system, message = steps.get((f"{prefix}system", 1)), steps.get((f"{prefix}message", 1))
        self.system: str | None = (system.output or {})["text"] if system is not None else None
        self._message = message.output if message is not None else None

    def apply(self, request: CompletionRequest, redact: Redactor | None) -> CompletionRequest:
        """Returns a request with the message that was added to its conversation."""
        edit = self._message
        if edit is None or len(request.messages) < edit["at"]:
            return request
        before, after = request.messages[: edit["at"]], request.messages[edit["at"] :]
        if _conversation_hash(message_json(one, redact) for one in before) != edit["after"]:
            return request
        return replace(request, messages=(*before, Message("user", edit["text"]), *after))


def recorded_effect(
    steps: Mapping[tuple[str, int], JournalStep], name: str, arguments: str
) -> JsonObject | None:
    """Returns what a call of the same name and arguments has returned in the run that was forked."""
    step = steps.get((f"{_EFFECT}{_effect_key(name, arguments)}", 1))
    return step.output if step is not None else None
