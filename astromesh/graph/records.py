"""What a run hands out: node results, the report, the result. Slotted, made in the hot path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from astromesh.quick import maker
from astromesh.types import CompletionRequest, JsonObject, Message, ToolCall, Usage

#: name of the place where every graph ends
END = "__end__"
#: node that takes over when another one is stuck and has no error transition
ERROR_NODE = "__error__"
#: the reason by which a node asks to be entered again with its tool results
TOOL_CALLS_PRESENT = "tool_calls_present"

StopReason = Literal[
    "completed", "max_iterations", "stuck_node", "budget", "cycle", "critical_error", "cancelled",
    "human_denied", "human_timeout", "unknown_node",
]  # fmt: skip

ZERO = Usage()
#: for the hot path: the same records without what it costs to call their classes
new_message, new_request = maker(Message), maker(CompletionRequest)

#: stops of a graph alone: nested, they are the run's only where nothing leads on
LOCAL: Mapping[str, StopReason] = {"stuck_node": "stuck_node", "unknown_node": "unknown_node"}
#: stops that leave the work unfinished, and what a run then says that has nothing else to say
LIMITS = frozenset({"max_iterations", "stuck_node", "budget", "cycle"})
UNFINISHED = "The work could not be finished within the limits that are set for it."


# Without slots, so that what was not said stands in the class: every node costs one of these, and setting 17
# fields is most of that cost. A field that is none is found where results of others are looked at (`fault`).
@dataclass
class NodeResult:
    """What one execution of a node came to. Every field has a default; hooks may change it.

    The engine writes `output` to `context[output_key]` and `context[NAME_output]`, and `messages_added` to
    the messages, after the flags had their say: a node does not write these itself.

    Args:
        raw_output: the model's own words, before parsing; the unshortened original under SUMMARIZE_OUTPUT.
        next_node: where to go, decided by the node (step 3 of the transition).
        transition_reason: the rule that chose the next node, written by the engine; a node sets only
            `tool_calls_present`, with `tool_calls`, to be entered again.
        tool_calls: what the model asked for in this execution.
        messages_added: what the conversation gains: assistant messages, tool results.
        guards_passed, guards_failed: names of guards, with what they said.
        graph_mutations: what became of the model's graph actions.
        error: empty where the node succeeded.
        usage: of this execution alone, without its children; the engine fills it from `config.complete`.
        stop_reason: ends the run unless a conditional edge or a transition leads on (a denial, for example).
        exception: what was raised, where something was.
        is_answer: False for an output that is for other nodes alone, such as a tool's.
        skipped: the node did not run (SKIP_ON_ERROR, or a hook stopped the run before it).
    """

    node_name: str = ""
    output: Any = None
    raw_output: Any = None
    next_node: str = ""
    transition_reason: str = ""
    tool_calls: tuple[ToolCall, ...] | list[ToolCall] = ()
    messages_added: tuple[Message, ...] | list[Message] = ()
    guards_passed: tuple[str, ...] | list[str] = ()
    guards_failed: tuple[str, ...] | list[str] = ()
    graph_mutations: tuple[Mutation, ...] | list[Mutation] = ()
    error: str = ""
    usage: Usage = ZERO
    duration_ms: float = 0.0
    stop_reason: StopReason | Literal[""] = ""
    is_answer: bool = True
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    skipped: bool = False

    @property
    def wants_tools(self) -> bool:
        """Whether this is a step of a tool loop and not yet an answer."""
        return bool(self.tool_calls) and self.transition_reason == TOOL_CALLS_PRESENT


@dataclass(frozen=True, slots=True)
class Mutation:
    """A graph action of the model and what became of it.

    Args:
        node: which node's output held it.
        rejected: why it was not applied; empty where it was.
    """

    node: str
    op: str
    action: Mapping[str, Any]
    rejected: str = ""

    @property
    def applied(self) -> bool:
        return not self.rejected


@dataclass(slots=True)
class ExecutionReport:
    """What happened in a run.

    Args:
        nodes_visited: paths in the order of execution; nested ones as `outer/inner`.
        iterations: node executions.
        usage: everything the run cost, failed attempts and summaries included.
        tool_calls: names of the tools called, in order.
        guards: what guards said, as `node: guard passed` or `node: guard failed`.
        error: of the last node that ran, or why the run was stopped; empty where it succeeded.
        local: the data of hooks in this run; ask the hook for its own.
    """

    nodes_visited: list[str]
    iterations: int = 0
    usage: Usage = ZERO
    duration_ms: float = 0.0
    tool_calls: list[str] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    stop_reason: StopReason = "completed"
    error: str = ""
    local: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    def summary(self) -> str:
        """One line for people."""
        parts = [
            self.stop_reason,
            f"{self.iterations} iterations: {' → '.join(self.nodes_visited) or 'none'}",
            f"{self.usage.total_tokens} tokens",
            f"{len(self.tool_calls)} tool calls",
            f"{self.duration_ms:.1f} ms",
        ]
        return ", ".join(parts) + (f" — {self.error}" if self.error else "")

    def to_json(self) -> JsonObject:
        return {
            "nodes_visited": list(self.nodes_visited),
            "iterations": self.iterations,
            "usage": self.usage.to_json(),
            "duration_ms": self.duration_ms,
            "tool_calls": list(self.tool_calls),
            "mutations": [{"node": m.node, "op": m.op, "rejected": m.rejected} for m in self.mutations],
            "guards": list(self.guards),
            "stop_reason": self.stop_reason,
            "error": self.error,
        }


@dataclass(slots=True)
class GraphResult:
    """What a run came to.

    Args:
        messages: the whole conversation, the question first.
        output: of the last node that ran and succeeded; never a raw tool result, never the question.
        context: the state's context at the end.
    """

    messages: list[Message]
    output: Any
    context: dict[str, Any]
    report: ExecutionReport

    @property
    def text(self) -> str:
        """The answer as text: JSON where it is data; empty where there is none.

        A run that a limit stopped in the middle of its work answers the last words the model said while it
        asked for tools, or a fixed sentence: never a tool result, never an answer that was refused.
        """
        if isinstance(self.output, str):
            return self.output
        if self.output is not None:
            return as_json(self.output)
        return self._last_words() if self.report.stop_reason in LIMITS else ""

    def _last_words(self) -> str:
        for message in reversed(self.messages):
            if message.role == "user":
                break
            if message.role == "assistant" and message.tool_calls and message.content:
                return message.content
        return UNFINISHED


def as_json(value: Any) -> str:
    """A value as JSON. Never fails: models write integers beyond 64 bits and halves of surrogate pairs."""
    try:
        return orjson.dumps(value, default=_jsonable, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        try:
            return json.dumps(value, default=_jsonable)
        except (TypeError, ValueError, RecursionError):  # odd keys, circles
            return repr(value)


def _jsonable(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
