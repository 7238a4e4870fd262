"""AG-UI 1.0: the events of a run in the form that frontends read, and what a run asks of them.

One request of a frontend is one AG-UI run. It begins with a message, and ends when the run ends or waits. A
run of astromesh that waits twice is three AG-UI runs. The encoder reads the events of the whole run, because
messages, steps and state of an earlier request go on, and sends those behind `after`.

See https://docs.ag-ui.com and the schema that the package `ag-ui-protocol` is generated from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from astromesh.api.errors import public_failure, run_error
from astromesh.api.event_streams import json_bytes
from astromesh.errors import InvalidInput
from astromesh.graph.calls import ASSISTANT
from astromesh.runtime.client_tools import open_calls
from astromesh.telemetry.clock import iso_time
from astromesh.tools.base import CLIENT_TOOL
from astromesh.types import Event, JsonObject, Usage

PROTOCOL_VERSION = "1.0"
_ANY_ANSWER: JsonObject = {"description": 'The answer; {"approved": false} refuses to give one.'}
_APPROVAL: JsonObject = {
    "type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"],
}  # fmt: skip
_APPROVAL_WITH_EDITS: JsonObject = {
    **_APPROVAL,
    "properties": {
        **_APPROVAL["properties"],
        "editedArgs": {"type": "object", "description": "All arguments, in place of the model's."},
    },
}
#: by the kind of a question: the reason of its interrupt, and the schema of its answer
_INTERRUPTS: Mapping[str, tuple[str, JsonObject]] = {
    "approval": ("tool_call", _APPROVAL_WITH_EDITS),
    "unknown_outcome": ("confirmation", _APPROVAL),
    "identity": ("confirmation", _APPROVAL),
    "human": ("input_required", _ANY_ANSWER),
    "interrupt": ("input_required", _ANY_ANSWER),
}
_COUNTS = {
    "inputTokens": "input_tokens", "outputTokens": "output_tokens", "reasoningTokens": "reasoning_tokens",
    "cachedInputTokens": "cached_tokens", "cacheWriteInputTokens": "cache_write_tokens",
}  # fmt: skip


class AguiRun(NamedTuple):
    """One AG-UI run.

    Args:
        run_id: as the frontend names it.
        after: the number of the last event of the run that belongs to an earlier request; 0: there is none.
        messages: of the request.
        frontend_tools: names of the tools that the frontend executes.
        subagents: agents by the names of the tools that run them.
    """

    thread_id: str
    run_id: str
    after: int = 0
    messages: Sequence[JsonObject] = ()
    frontend_tools: frozenset[str] = frozenset()
    subagents: Mapping[str, str] = {}


def interrupt_id(question: Mapping[str, Any]) -> str:
    """Returns the id by which a frontend answers a question of a run: of the run, and of the question."""
    return f"{question['run_id']}.{question['id']}"


def decision_of(question: Mapping[str, Any], status: str, payload: Any) -> JsonObject:
    """Returns the decision that the answer of a frontend makes.

    Raises:
        InvalidInput: the answer does not fit the question.
    """
    kind = question["kind"]
    if status == "cancelled":
        return {"decision": "deny"}
    approved = payload.get("approved") if isinstance(payload, dict) else payload
    if kind not in ("human", "interrupt"):
        if not isinstance(approved, bool):
            raise InvalidInput('resume.payload: it must be {"approved": true} or {"approved": false}.')
        if not approved:
            return {"decision": "deny"}
        edited = payload.get("editedArgs") if isinstance(payload, dict) else None
        return {"decision": "approve"} if edited is None else {"decision": "approve", "arguments": edited}
    if isinstance(payload, dict) and payload.keys() == {"approved"} and isinstance(approved, bool):
        return {"decision": "approve" if approved else "deny"}
    if payload is None:
        raise InvalidInput("resume.payload: the answer must not be null.")
    return {"decision": "answer", "answer": payload}


def sse(event: JsonObject) -> bytes:
    return b"data: %s\n\n" % json_bytes(event)


class AguiEncoder:
    """Encodes the events of a run, from its first one.

    Args:
        on_end: called when the AG-UI run has ended, with or without the run.
    """

    def __init__(self, run: AguiRun, on_end: Callable[[], None]) -> None:
        self._run, self._on_end = run, on_end
        self._is_begun = self._has_ended = False
        self._transcript = _Transcript()
        #: the open text message and the step of its model call; the newest message of the newest call
        self._text, self._text_step, self._parent = "", 0, ""
        self._used_ids: set[str] = set()
        #: AG-UI's ids of open tool calls by the model's, with name and arguments
        self._calls: dict[str, _OpenCall] = {}
        self._steps: dict[str, None] = {}
        self._activities: set[str] = set()
        self._state: JsonObject | None = None
        self._tokens: dict[tuple[str, str], Usage] = {}
        self._tokens_before: Mapping[str, Any] = {}

    def __call__(self, event: Event) -> bytes:
        if self._has_ended:
            return b""
        is_past, ends = event.seq <= self._run.after, event.type in _LAST
        start_events: Iterable[JsonObject] = ()
        if not is_past and not self._is_begun:
            self._is_begun, start_events = True, [*self._begin(event)]
        encode = getattr(self, "_" + event.type.replace(".", "_"), None)
        made = [*start_events, *(encode(event) if encode else ())]
        self._transcript.add(made)
        if is_past:
            return b""
        if ends:
            self._has_ended = True
            self._on_end()
        at = int(event.ts * 1000)
        return b"".join(sse({**one, "timestamp": at}) for one in made)

    # -- the run -------------------------------------------------------------------------------------------

    def _begin(self, event: Event) -> Iterator[JsonObject]:
        """Begins the AG-UI run. What an earlier one has left open goes on in this one."""
        run = self._run
        yield {
            "type": "RUN_STARTED", "threadId": run.thread_id, "runId": run.run_id,
            "protocolVersion": PROTOCOL_VERSION, "metadata": {"astromesh": {"run_id": event.run_id}},
        }  # fmt: skip
        if not run.after:
            return
        yield self._messages()
        yield from self._snapshot()
        for call in self._calls.values():
            yield from call.subagent_started()
        for step in self._steps:
            yield {"type": "STEP_STARTED", "stepName": step}

    def _close(self, suspended: Mapping[str, list[str]] | None = None) -> Iterator[JsonObject]:
        """Closes what is open.

        Args:
            suspended: ids of interrupts by agent, where the run waits; None: it has ended.
        """
        yield from self._close_text()
        for call in self._calls.values():
            yield from call.subagent_finished(suspended)
        for step in self._steps:
            yield {"type": "STEP_FINISHED", "stepName": step}

    def _finish(self, outcome: JsonObject, total: Mapping[str, Any], **more: Any) -> JsonObject:
        run = self._run
        return {
            "type": "RUN_FINISHED", "threadId": run.thread_id, "runId": run.run_id, "outcome": outcome,
            "usage": self._usage(total), **more,
        }  # fmt: skip

    def _run_completed(self, event: Event) -> Iterator[JsonObject]:
        data, metadata = event.data, event.data["metadata"]
        reasoning = metadata.get("reasoning") or {}
        if summary := reasoning.get("reasoning_summary"):
            yield from self._reasoning(event, str(summary))
        if data["response"] and not self._parent:  # the text of no model call
            yield from self._open_text(f"{event.run_id}-answer", 0)
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._text, "delta": data["response"]}
        yield from self._close()
        result = data.get("output", data["response"])
        yield self._finish({"type": "success"}, metadata["usage"], result=result)

    def _reasoning(self, event: Event, summary: str) -> Iterator[JsonObject]:
        span, message = {"messageId": f"{event.run_id}-thought"}, {"messageId": f"{event.run_id}-reasoning"}
        yield {"type": "REASONING_START", **span}
        yield {"type": "REASONING_MESSAGE_START", **message, "role": "reasoning"}
        yield {"type": "REASONING_MESSAGE_CONTENT", **message, "delta": summary}
        yield {"type": "REASONING_MESSAGE_END", **message}
        yield {"type": "REASONING_END", **span}

    def _run_failed(self, event: Event) -> Iterator[JsonObject]:
        failure = public_failure(event.data)
        yield from self._close()
        usage = self._usage(event.data.get("usage", {}))
        yield {**run_error(failure["detail"], failure["code"]), "usage": usage}

    def _run_cancelled(self, event: Event) -> Iterator[JsonObject]:
        yield from self._close()
        yield self._finish({"type": "cancelled"}, event.data.get("usage", {}))

    def _run_waiting(self, event: Event) -> Iterator[JsonObject]:
        """Hands out calls of frontend tools, and asks what a person must decide."""
        approval, usage = event.data["approval"], event.data["usage"]
        questions = [approval, *approval.get("others", ())]
        interrupts = [self._interrupt(one) for one in questions if one["kind"] != CLIENT_TOOL]
        suspended: dict[str, list[str]] = {}
        for one in interrupts:
            suspended.setdefault(one["metadata"]["astromesh"]["asking_agent"], []).append(one["id"])
        yield from self._close_text()
        calls = open_calls(approval)
        for call in calls:
            if call.id not in self._used_ids:
                self._used_ids.add(call.id)
                yield from _call_events(call.id, call.name, call.arguments, self._parent)
        yield from self._close(suspended)
        if interrupts:
            yield from self._snapshot()
            yield self._messages()
            yield self._finish({"type": "interrupt", "interrupts": interrupts}, usage)
        else:
            pending = [call.id for call in calls]
            yield self._finish({"type": "success", "pendingToolCallIds": pending}, usage)
        if event.seq <= self._run.after:
            self._tokens, self._tokens_before = {}, usage

    def _interrupt(self, question: JsonObject) -> JsonObject:
        kind, name, arguments = question["kind"], question["name"], question["arguments"]
        reason, schema = _INTERRUPTS[kind]
        about = {key: question[key] for key in ("run_id", "kind", "name", "arguments", "asking_agent")}
        found: JsonObject = {
            "id": interrupt_id(question),
            "reason": reason,
            "message": question["question"] or f"{name}: {kind.replace('_', ' ')}",
            "responseSchema": schema,
            "expiresAt": iso_time(question["expires_at"]),
            "metadata": {"astromesh": about},
        }
        same = [call for call in self._calls.values() if (call.name, call.arguments) == (name, arguments)]
        if kind == "approval" and same:
            found["toolCallId"] = same[0].id
        elif reason == "tool_call":  # of a nested run, whose calls are not shown
            found["reason"] = "confirmation"
        asking = [call for call in self._calls.values() if call.subagent == question["asking_agent"]]
        return found | ({"subagentRunId": asking[0].id} if asking and asking[0].subagent else {})

    def _messages(self) -> JsonObject:
        """Returns the messages of the request, and those of the run that are not among them."""
        known = {message["id"] for message in self._run.messages}
        known |= {call["id"] for m in self._run.messages for call in m.get("toolCalls") or ()}
        new = [message for message in self._transcript.messages() if not known & _ids_of(message)]
        return {"type": "MESSAGES_SNAPSHOT", "messages": [*self._run.messages, *new]}

    # -- text ----------------------------------------------------------------------------------------------

    def _model_started(self, event: Event) -> Iterator[JsonObject]:
        if event.data["role"] == ASSISTANT:
            yield from self._close_text()
            self._parent = ""

    def _model_delta(self, event: Event) -> Iterator[JsonObject]:
        data = event.data
        if data["role"] != ASSISTANT or not data["content"]:
            return
        if not self._text or data["step"] != self._text_step:
            yield from self._close_text()
            yield from self._open_text(self._new_id(f"{event.run_id}-{data['step']}", event), data["step"])
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._text, "delta": data["content"]}

    def _model_restarted(self, event: Event) -> Iterator[JsonObject]:
        """Takes the text of a step back that starts again after a crash."""
        if event.data["step"] == self._text_step and self._parent:
            yield from self._close_text()
            self._transcript.remove(self._parent)
            self._parent = ""
            yield self._messages()

    def _model_finished(self, event: Event) -> Iterator[JsonObject]:
        data = event.data
        key, usage = (data["provider"], data["model"]), _usage_of(data["usage"])
        self._tokens[key] = self._tokens.get(key, Usage()) + usage
        if data["step"] == self._text_step:
            yield from self._close_text()

    _model_failed = _model_finished

    def _open_text(self, message: str, step: int) -> Iterator[JsonObject]:
        self._text = self._parent = message
        self._text_step = step
        yield {"type": "TEXT_MESSAGE_START", "messageId": message, "role": "assistant"}

    def _close_text(self) -> Iterator[JsonObject]:
        if self._text:
            message, self._text = self._text, ""
            yield {"type": "TEXT_MESSAGE_END", "messageId": message}

    def _new_id(self, id: str, event: Event) -> str:
        """Returns an id that this run has not used: models use those of their calls again."""
        found = f"{id}-{event.seq}" if id in self._used_ids else id
        self._used_ids.add(found)
        return found

    # -- tools, nested agents, steps -----------------------------------------------------------------------

    def _tool_started(self, event: Event) -> Iterator[JsonObject]:
        data, run = event.data, self._run
        yield from self._close_text()
        if data["name"] in run.frontend_tools:
            return  # the run hands it out when it waits
        subagent = run.subagents.get(data["name"], "")
        call = _OpenCall(self._new_id(data["id"], event), data["name"], data["arguments"], subagent)
        self._calls[data["id"]] = call
        yield from _call_events(call.id, call.name, json_bytes(call.arguments).decode(), self._parent)
        yield from call.subagent_started()

    def _tool_finished(self, event: Event) -> Iterator[JsonObject]:
        data = event.data
        call = self._calls.pop(data["id"], None)
        if call is None:
            return
        result = {"ok": data["ok"], **({"error": data["error"]} if "error" in data else {})}
        yield from call.subagent_finished(error=data.get("error", ""))
        yield {
            "type": "TOOL_CALL_RESULT", "messageId": f"{call.id}-result", "toolCallId": call.id,
            "content": orjson.dumps(result).decode(), "role": "tool",
        }  # fmt: skip

    def _tool_progress(self, event: Event) -> Iterator[JsonObject]:
        data = event.data
        call = self._calls.get(data["id"])
        message = f"{call.id if call else data['id']}-progress"
        about = {"messageId": message, "activityType": "TOOL_PROGRESS"}
        content = {key: data.get(key) for key in ("name", "progress", "total", "message")}
        if message not in self._activities:
            self._activities.add(message)
            yield {"type": "ACTIVITY_SNAPSHOT", **about, "content": content}
        else:
            yield {"type": "ACTIVITY_DELTA", **about, "patch": _patch(content)}

    def _node_started(self, event: Event) -> Iterator[JsonObject]:
        if (node := event.data["node"]) not in self._steps:
            self._steps[node] = None
            yield {"type": "STEP_STARTED", "stepName": node}

    def _node_finished(self, event: Event) -> Iterator[JsonObject]:
        if (node := event.data["node"]) in self._steps:
            del self._steps[node]
            yield {"type": "STEP_FINISHED", "stepName": node}

    def _node_custom(self, event: Event) -> Iterator[JsonObject]:
        yield {"type": "CUSTOM", "name": f"astromesh:{event.type}", "value": event.data}

    _guardrail_action = _graph_mutated = _node_custom

    # -- state ---------------------------------------------------------------------------------------------

    def _node_updated(self, event: Event) -> Iterator[JsonObject]:
        update = event.data["update"]
        if self._state is None:
            self._state = dict(update)
            yield from self._snapshot()
        else:
            self._state.update(update)
            yield {"type": "STATE_DELTA", "delta": _patch(update)}

    def _snapshot(self) -> Iterator[JsonObject]:
        if self._state is not None:
            yield {"type": "STATE_SNAPSHOT", "snapshot": dict(self._state)}

    # -- cost ----------------------------------------------------------------------------------------------

    def _usage(self, total: Mapping[str, Any]) -> list[JsonObject]:
        """Returns what this AG-UI run has used, by model; calls of nested agents have no name."""
        rest = _usage_of(total) - _usage_of(self._tokens_before)
        for used in self._tokens.values():
            rest -= used
        named = [
            {"provider": provider, "model": model, **_counts(used)}
            for (provider, model), used in self._tokens.items()
        ]
        return [*named, _counts(rest)] if rest.input_tokens > 0 or rest.output_tokens > 0 else named


class _OpenCall(NamedTuple):
    """A tool call under way.

    Args:
        subagent: the agent that it runs; empty: it runs none.
    """

    id: str
    name: str
    arguments: Any
    subagent: str

    def subagent_started(self) -> Iterator[JsonObject]:
        if self.subagent:
            yield {
                "type": "SUBAGENT_STARTED", "subagentRunId": self.id, "name": self.subagent,
                "parentToolCallId": self.id,
            }  # fmt: skip

    def subagent_finished(
        self, suspended: Mapping[str, list[str]] | None = None, error: str = ""
    ) -> Iterator[JsonObject]:
        if not self.subagent:
            return
        about = {"subagentRunId": self.id}
        if error:
            yield {"type": "SUBAGENT_ERROR", **about, "message": f"{self.subagent}: {error}", "code": error}
        elif suspended is None:
            yield {"type": "SUBAGENT_FINISHED", **about, "outcome": {"type": "success"}}
        else:
            outcome = {"type": "suspended", "interruptIds": suspended.get(self.subagent, [])}
            yield {"type": "SUBAGENT_FINISHED", **about, "outcome": outcome}


class _Transcript:
    """The messages that a frontend makes of events."""

    def __init__(self) -> None:
        self._messages: dict[str, JsonObject] = {}
        self._call_owners: dict[str, JsonObject] = {}

    def messages(self) -> list[JsonObject]:
        return list(self._messages.values())

    def remove(self, message: str) -> None:
        self._messages.pop(message, None)

    def add(self, events: Iterable[JsonObject]) -> None:
        for event in events:
            match event["type"]:
                case "TEXT_MESSAGE_START":
                    self._assistant(event["messageId"])["content"] = ""
                case "TEXT_MESSAGE_CONTENT":
                    self._messages[event["messageId"]]["content"] += event["delta"]
                case "TOOL_CALL_START":
                    call = event["toolCallId"]
                    function = {"name": event["toolCallName"], "arguments": ""}
                    owner = self._assistant(event.get("parentMessageId") or call)
                    made = {"id": call, "type": "function", "function": function}
                    owner.setdefault("toolCalls", []).append(made)
                    self._call_owners[call] = function
                case "TOOL_CALL_ARGS":
                    self._call_owners[event["toolCallId"]]["arguments"] += event["delta"]
                case "TOOL_CALL_RESULT":
                    about = {key: event[key] for key in ("role", "content", "toolCallId")}
                    self._messages[event["messageId"]] = {"id": event["messageId"], **about}

    def _assistant(self, message: str) -> JsonObject:
        return self._messages.setdefault(message, {"id": message, "role": "assistant"})


def _ids_of(message: JsonObject) -> set[str]:
    return {message["id"], *(call["id"] for call in message.get("toolCalls", ()))}


def _call_events(call: str, name: str, arguments: str, parent: str) -> Iterator[JsonObject]:
    holder = {"parentMessageId": parent} if parent else {}
    yield {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name, **holder}
    yield {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": arguments}
    yield {"type": "TOOL_CALL_END", "toolCallId": call}


def _patch(values: Mapping[str, Any]) -> list[JsonObject]:
    """Returns a JSON Patch that sets values; `add` replaces what is there (RFC 6902, 4.1)."""
    return [
        {"op": "add", "path": "/" + key.replace("~", "~0").replace("/", "~1"), "value": value}
        for key, value in values.items()
    ]


def _usage_of(counts: Mapping[str, Any]) -> Usage:
    names = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens")
    return Usage(**{name: counts.get(name, 0) for name in names})


def _counts(usage: Usage) -> JsonObject:
    found = {name: getattr(usage, field) for name, field in _COUNTS.items()}
    counts = {name: n for name, n in found.items() if n or name in ("inputTokens", "outputTokens")}
    return {**counts, "totalTokens": usage.total_tokens}


#: the events that end an AG-UI run
_LAST = frozenset({"run.completed", "run.failed", "run.cancelled", "run.waiting"})
