"""What a node writes, and its result, as JSON: for the record of a durable run and for worker processes.

A value without JSON form is an error of its node. Dataclasses, pydantic models and dates come back as their
JSON, but for an output with `output_schema`, which is validated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any, get_type_hints

import orjson
from msgspec import Struct, convert, json, structs, to_builtins

from astromesh.errors import AstromeshError, GraphError, GraphStopped, NodeFailed, OutputRefused, described
from astromesh.graph.call_record import (
    error_of,
    error_to_json,
    known_contents,
    message_to_json,
    messages_with_contents,
)
from astromesh.graph.model_output import output_schema
from astromesh.graph.records import NO_USAGE, TOOL_CALLS_PRESENT, NodeResult
from astromesh.graph.state import (
    NO_RESTORES,
    NODE_CACHE,
    NODE_LISTS,
    GraphState,
    Restore,
    SharedObject,
    engine_extend,
    engine_forget,
    engine_write,
)
from astromesh.types import JsonObject, Message, ToolCall, Usage

#: Keys of the context that hold objects of the engine. They are not shown.
_ENGINE_KEYS = frozenset({NODE_CACHE, "_rc_notes"})
_PLAIN_FIELDS = (
    "next_node", "transition_reason", "error", "stop_reason", "is_answer", "skipped", "error_type", "handled",
    "duration_ms",
)  # fmt: skip
_DEFAULT_RESULT = NodeResult()


#: no contents of attachments by hash
NO_CONTENTS: Mapping[str, str] = MappingProxyType({})


class NotRecordable(TypeError):
    """A value that has no JSON form."""


def _encoded(value: Any, what: str) -> bytes:
    """Returns a value as JSON.

    Raises:
        NotRecordable: It has no JSON form.
    """
    try:
        encoded = orjson.dumps(value, _json_of)
        fault = not_finite(value, encoded)
    except (TypeError, orjson.JSONEncodeError, RecursionError) as error:
        raise NotRecordable(_NOT_JSON.format(what, error)) from error
    if fault:
        raise NotRecordable(_NOT_JSON.format(what, fault))
    return encoded


def to_json(value: Any, what: str) -> Any:
    """Returns a value as plain data of JSON.

    Args:
        what: Its name in the message.

    Raises:
        NotRecordable: It has no JSON form.
    """
    return orjson.loads(_encoded(value, what))


_NOT_JSON = "{} is not JSON, which a durable run or a worker process needs: {}"


def not_finite(value: Any, encoded: bytes) -> str:
    """Returns where a value holds NaN or infinity, which orjson writes as null, or an empty string.

    Args:
        encoded: The value as JSON.
    """
    steps = _steps_to_not_finite(value) if b"null" in encoded else None
    return "" if steps is None else f"NaN or infinity{f' at {steps[1:]}' if steps else ''}"


def _steps_to_not_finite(value: Any) -> str | None:
    if isinstance(value, float):
        return None if isfinite(value) else ""
    if value is None or isinstance(value, str | int):
        return None
    inner: Iterable[tuple[Any, Any]]
    if isinstance(value, list | tuple):
        inner = enumerate(value)
    elif is_dataclass(value):
        inner = ((one.name, getattr(value, one.name)) for one in fields(value))
    elif isinstance(value, Mapping | Struct) or hasattr(value, "model_dump"):
        inner = _json_of(value).items()
    else:
        return None
    found = ((key, _steps_to_not_finite(one)) for key, one in inner)
    return next((f".{key}{steps}" for key, steps in found if steps is not None), None)


def _json_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Struct):
        return structs.asdict(value)
    if isinstance(value, SharedObject):
        return value.to_json()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def context_to_json(context: Mapping[str, Any]) -> JsonObject:
    """Returns the values of a context, without the objects of the engine.

    Raises:
        NotRecordable: A value has no JSON form.
    """
    return {
        key: orjson.Fragment(_encoded(value, f"The value of {key!r} in the context"))
        for key, value in context.items()
        if key not in _ENGINE_KEYS
    }


# -- writes --------------------------------------------------------------------------------------------------


class Snapshot:
    """The state before a node, in a form in which every change shows, nested ones too."""

    __slots__ = ("context", "lists", "messages", "notes", "updates")

    def __init__(self, state: GraphState, notes: Any = None) -> None:
        self.context = {key: _quietly_encoded(value) for key, value in state.context.items()}
        self.messages = list(state.messages)
        self.updates = {key: len(values) for key, values in (state.updates or {}).items()}
        self.lists = {
            name: (len(getattr(state, name)), _quietly_encoded(getattr(state, name))) for name in _DATA
        }
        self.notes = _notes_to_json(notes)

    def forget_unrecordable(self, state: GraphState) -> None:
        """Removes from the state what was written since then and has no JSON form."""
        for key, value in list(state.context.items()):
            if key != NODE_CACHE and _quietly_encoded(value) is None:
                engine_forget(state.context, key)
        lists = [(values, self.updates.get(key, 0)) for key, values in (state.updates or {}).items()]
        lists += [(getattr(state, name), self.lists[name][0]) for name in _DATA]
        for values, length in lists:
            if _quietly_encoded(values[length:]) is None:
                del values[length:]

    def writes(self, state: GraphState, notes: Any = None) -> JsonObject:
        """Returns what was written since then.

        Raises:
            NotRecordable: A value has no JSON form.
        """
        changed: JsonObject = {}
        for key, value in list(state.context.items()):
            if key == NODE_CACHE:
                continue
            encoded = _encoded(value, f"The value of {key!r} in the context")
            if self.context.get(key) != encoded:
                changed[key] = orjson.Fragment(encoded)
        removed = [key for key in self.context if key not in state.context and key != NODE_CACHE]
        lists = {name: one for name in NODE_LISTS if (one := self._added(state, name)) is not None}
        updates = {
            key: orjson.Fragment(_encoded(added, f"The update of {key!r}"))
            for key, values in (state.updates or {}).items()
            if (added := values[self.updates.get(key, 0) :])
        }
        noted = {
            name: orjson.Fragment(value)
            for name, value in _notes_to_json(notes).items()
            if self.notes[name] != value
        }
        writes = {"context": changed, "removed": removed, "lists": lists, "updates": updates, "notes": noted}
        return {name: value for name, value in writes.items() if value}

    def _added(self, state: GraphState, name: str) -> tuple[int, Any] | None:
        """Returns how much of a list is as it was, and what follows; None if nothing has changed."""
        now = getattr(state, name)
        if name == "messages":
            pairs = zip(self.messages, now, strict=False)
            same = next(
                (n for n, (old, new) in enumerate(pairs) if old is not new), min(len(self.messages), len(now))
            )
            if same == len(now) == len(self.messages):
                return None
            return same, [*map(message_to_json, now[same:])]
        length, before = self.lists[name]
        if len(now) == length and _quietly_encoded(now) == before:
            return None
        same = length if _quietly_encoded(now[:length]) == before else 0
        return same, orjson.Fragment(_encoded(now[same:], f"`{name}`"))


_DATA = tuple(name for name in NODE_LISTS if name != "messages")


def _quietly_encoded(value: Any) -> bytes | None:
    """Returns a value as JSON, or None: what the node did not write is no fault of it."""
    try:
        return _encoded(value, "")
    except NotRecordable:
        return None


def _notes_to_json(notes: Any) -> dict[str, bytes]:
    """Returns the fields of a pattern's notes, without those that they are made with: they stay."""
    every = () if notes is None else fields(notes)
    own = (one.name for one in every if (one.default, one.default_factory) != (MISSING, MISSING))
    return {name: json.encode(getattr(notes, name)) for name in own}


def apply_writes(
    state: GraphState,
    writes: JsonObject,
    notes: Any = None,
    restores: Mapping[str, Restore] = NO_RESTORES,
) -> list[Message]:
    """Repeats what a node wrote. Returns the messages that it added itself.

    Args:
        restores: Makes the values of some keys of the context of their JSON.
    """
    if "notes" in writes:
        types = get_type_hints(type(notes))
        for name, value in writes["notes"].items():
            setattr(notes, name, convert(value, types[name]))
    for key, value in writes.get("context", {}).items():
        engine_write(state.context, key, restores[key](value, state) if key in restores else value)
    for key in writes.get("removed", ()):
        engine_forget(state.context, key)
    if state.updates is not None:
        for key, values in writes.get("updates", {}).items():
            state.updates.setdefault(key, []).extend(values)
    own: list[Message] = []
    for name, (same, added) in writes.get("lists", {}).items():
        if name == "messages":
            own = [*messages_with_contents(convert(added, list[Message]), known_contents(state.messages))]
        engine_extend(getattr(state, name), own if name == "messages" else added, same)
    return own


# -- results -------------------------------------------------------------------------------------------------


def result_to_json(result: NodeResult, own: Sequence[Message]) -> JsonObject:
    """Returns the fields of a result without a default.

    Args:
        own: The messages that the node itself added. The result may add the same ones.

    Raises:
        NotRecordable: The output has no JSON form.
    """
    data: JsonObject = {
        name: value
        for name in _PLAIN_FIELDS
        if (value := getattr(result, name)) != getattr(_DEFAULT_RESULT, name)
    }
    what = f"The output of {result.node_name!r}"
    if result.output is not None:
        data["output"] = orjson.Fragment(_encoded(result.output, what))
    if result.raw_output is not None and result.raw_output is not result.output:
        data["raw_output"] = orjson.Fragment(_encoded(result.raw_output, what))
    elif result.raw_output is not None:
        data["raw_is_output"] = True
    places = {id(message): place for place, message in enumerate(own)}
    if result.messages_added:
        data["messages"] = [
            places.get(id(m)) if id(m) in places else message_to_json(m) for m in result.messages_added
        ]
    if result.tool_calls:
        data["tool_calls"] = to_builtins(list(result.tool_calls))
    if result.guards_passed or result.guards_failed:
        data["guards"] = [list(result.guards_passed), list(result.guards_failed)]
    if result.usage != NO_USAGE:
        data["usage"] = to_builtins(result.usage)
    if result.exception is not None:
        data["exception"] = exception_to_json(result.exception)
    return data


def result_of(
    name: str,
    data: JsonObject,
    own: Sequence[Message] = (),
    schema: Any = None,
    contents: Mapping[str, str] = NO_CONTENTS,
) -> NodeResult:
    """Restores a result.

    Args:
        own: The messages that the node itself added.
        schema: The `output_schema` of the node, or None.
        contents: Of the attachments of messages, as base64 text by hash.
    """
    result = NodeResult(name, **{key: data[key] for key in _PLAIN_FIELDS if key in data})
    if result.transition_reason == TOOL_CALLS_PRESENT:
        result.transition_reason = TOOL_CALLS_PRESENT
    output = data.get("output")
    if schema is not None and output is not None and not result.error:
        output = _as_schema_says(schema, output)
    result.output = output
    result.raw_output = output if data.get("raw_is_output") else data.get("raw_output")
    if "messages" in data:
        added = [own[m] if isinstance(m, int) else convert(m, Message) for m in data["messages"]]
        result.messages_added = messages_with_contents(added, contents)
    if "tool_calls" in data:
        result.tool_calls = tuple(convert(data["tool_calls"], list[ToolCall]))
    result.guards_passed, result.guards_failed = map(tuple, data.get("guards", ((), ())))
    if "usage" in data:
        result.usage = convert(data["usage"], Usage)
    return result


def _as_schema_says(schema: Any, output: Any) -> Any:
    try:
        return output_schema(schema).validate(output)
    except ValueError:  # the schema was changed: the output is what it was
        return output


def exception_to_json(error: BaseException) -> JsonObject:
    """Returns an exception as JSON."""
    if isinstance(error, NodeFailed):
        cause = exception_to_json(error.cause) if error.cause is not None else None
        return {"type": "NodeFailed", "about": [error.path, error.error, error.stop_reason], "cause": cause}
    if isinstance(error, OutputRefused):
        return {"type": "OutputRefused", "about": [error.guard, str(error)]}
    if isinstance(error, AstromeshError):
        return error_to_json(error)
    return {"type": "", "message": described(error)}


def exception_of(data: JsonObject, known: dict[bytes, BaseException]) -> BaseException:
    """Restores an exception. One that is not of astromesh becomes a GraphError with its class and text.

    Args:
        known: Those that were restored before. The failure that a parent passes on is that of its child.
    """
    kind = data["type"]
    if kind == "NodeFailed":
        (path, error, reason), cause = data["about"], data["cause"]
        return NodeFailed(path, error, exception_of(cause, known) if cause is not None else None, reason)
    key = orjson.dumps(data)
    if key not in known:
        if kind == "OutputRefused":
            known[key] = OutputRefused(*data["about"])
        elif kind in ("", "GraphStopped"):
            known[key] = (GraphStopped if kind else GraphError)(data["message"])
        else:
            known[key] = error_of(data)
    return known[key]
