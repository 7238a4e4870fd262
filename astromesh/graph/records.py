"""The records of a run: node results, the report, the result, the history of a stored run.

It also holds the check of results that foreign code made, and canonical JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Generic, Literal, cast, get_args

import orjson
from msgspec import Struct, structs
from typing_extensions import TypeVar

from astromesh.errors import GraphError, GraphStopped, NodeFailed, OutputRefused
from astromesh.graph.model_output import json_of, whole_object
from astromesh.logs import redact_secrets
from astromesh.types import JsonObject, Message, ToolCall, Usage

# -- canonical JSON: equal values have one form, in whatever order their keys stand ------------------------

_CANONICAL_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)

#: Subclasses of these count as their values.
_PLAIN_TYPES: tuple[type[Any], ...] = (list, tuple, str, int)


def canonical_json(value: Any) -> bytes:
    """Returns a value as JSON with sorted keys.

    Dataclasses, pydantic models and dates keep the name of their type.

    Raises:
        TypeError: Part of the value has no such form. The message names its type.
    """
    return orjson.dumps(value, _canonical_value, _CANONICAL_OPTIONS)


def digest(value: Any) -> str:
    """Returns a short hash, the same in every process. It is empty if the value has no canonical form."""
    try:
        return blake2b(canonical_json(value), digest_size=8).hexdigest()
    except (TypeError, RecursionError):
        return ""


def _canonical_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    for base in _PLAIN_TYPES:
        if isinstance(value, base) and not isinstance(value, Enum):
            return base(value)
    if isinstance(value, Struct):
        return [_type_name(value), structs.asdict(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [_type_name(value), {f.name: getattr(value, f.name) for f in fields(value) if f.compare}]
    if hasattr(value, "model_dump"):
        return [_type_name(value), value.model_dump()]
    if isinstance(value, date | datetime | time):
        return [_type_name(value), value.isoformat()]
    raise TypeError(f"{_type_name(value)} has no canonical JSON")


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


#: The target that ends a graph.
END = "__end__"
#: The node that follows one that is stuck and has no error transition.
ERROR_NODE = "__error__"
#: The reason by which a node asks to be entered again with its tool results.
TOOL_CALLS_PRESENT = "tool_calls_present"
#: The key of an output that holds graph actions of the model.
ACTION_KEY = "_graph_action"
#: The output of each node stands in the context under its name with this suffix.
OUTPUT_SUFFIX = "_output"

StopReason = Literal[
    "completed", "failed", "max_iterations", "stuck_node", "budget", "cycle", "critical_error", "cancelled",
    "human_denied", "human_timeout", "unknown_node", "nondeterministic_graph", "waiting",
]  # fmt: skip

NO_USAGE = Usage()
#: Characters of the message of a node error in events and metadata.
MAX_ERROR_CHARACTERS = 500
#: Stops of one graph. In a nested graph they stop the run only if nothing leads on.
GRAPH_ONLY_STOPS: Mapping[str, StopReason] = {"stuck_node": "stuck_node", "unknown_node": "unknown_node"}
#: Stops that leave the work unfinished, and the answer of such a run if it has no other text.
LIMIT_STOPS = frozenset({"max_iterations", "stuck_node", "budget", "cycle"})
UNFINISHED = "The work could not be finished within the limits that are set for it."


# Without slots, so that defaults stand in the class: every execution makes one, and setting all fields
# would be most of its cost. `invalid_field` finds attributes that are no fields.
@dataclass
class NodeResult:
    """The result of one execution of a node. Every field has a default. Hooks may change it.

    The engine writes `output` to `context[output_key]` and `context[NAME_output]`, and `messages_added` to
    the messages, after the flags were applied. A node does not write these itself.

    Args:
        raw_output: The text of the model before parsing. Under SUMMARIZE_OUTPUT it is the full original.
        next_node: The next node, if the node itself decides (step 3 of the transition).
        transition_reason: The rule that chose the next node. The engine writes it; a node sets only
            `tool_calls_present`, with `tool_calls`, to be entered again.
        tool_calls: The calls that the model requested in this execution.
        messages_added: The messages for the conversation: assistant messages, tool results.
        guards_passed, guards_failed: The names of guards, with their feedback.
        graph_mutations: The model's graph actions, applied or rejected.
        error: Empty if the node succeeded.
        usage: Of this execution alone, without its children. The engine fills it from `config.complete`.
        stop_reason: Ends the run unless a conditional edge or a transition leads on (after a denial, for
            example).
        exception: The exception that the node raised, if any.
        error_type: The class name of that exception. The engine fills it.
        handled: Whether an edge or transition for failures took up the error. The engine fills it.
        is_answer: False for an output that only other nodes use, such as a tool's.
        skipped: The node did not run (SKIP_ON_ERROR, or a hook stopped the run before it).
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
    usage: Usage = NO_USAGE
    duration_ms: float = 0.0
    stop_reason: StopReason | Literal[""] = ""
    is_answer: bool = True
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    skipped: bool = False
    error_type: str = ""
    handled: bool = False

    @property
    def open_error(self) -> str:
        """The error, if nothing has taken it up. A node that only stopped with its run has none."""
        return "" if self.handled or isinstance(self.exception, GraphStopped) else self.error

    @property
    def wants_tools(self) -> bool:
        """Whether this is a step of a tool loop and not yet an answer."""
        return bool(self.tool_calls) and self.transition_reason == TOOL_CALLS_PRESENT

    @property
    def json_text(self) -> str:
        """The output in the model's own characters, or empty if the model did not write it.

        An output that a hook has changed since is not what the model wrote.
        """
        messages = (m.content for m in reversed(self.messages_added) if m.role == "assistant" and m.content)
        texts = (*messages, self.raw_output)
        return next((t for t in texts if isinstance(t, str) and is_json_of(t, self.output)), "")

    def replace_output(self, output: Any, *texts: str) -> None:
        """Replaces the output, and the text of the messages that show the old one.

        Args:
            output: The new output.
            texts: Other texts that show the old output.
        """
        texts_before, text = {as_text(self.output), *texts}, as_text(output)
        self.output = output
        self.messages_added = [
            structs.replace(m, content=text) if m.role == "assistant" and m.content in texts_before else m
            for m in self.messages_added
        ]

    def passed_on(self, name: str) -> NodeResult:
        """Returns output, error and stop of a child as the result of the node that ran it."""
        return NodeResult(
            name,
            self.output,
            self.raw_output,
            error=self.error,
            stop_reason=self.stop_reason,
            is_answer=self.is_answer,
            exception=self.exception,
        )


def _set_passed_fields(
    self: NodeResult, node_name: str = "", output: Any = None, *others: Any, **named: Any
) -> None:
    """Sets the fields that are passed. The others stay those of the class."""
    self.node_name = node_name
    self.output = output
    if others or named:
        self.__dict__.update(_fields_passed(others, named))


NodeResult.__init__ = _set_passed_fields  # type: ignore[method-assign]


def _fields_passed(others: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a NodeResult by field: those after `output`, and those by name.

    Raises:
        TypeError: One is unknown, or passed twice.
    """
    if others:
        names = _FIELDS[2 : 2 + len(others)]
        if len(names) < len(others) or not named.keys().isdisjoint(names):
            raise TypeError(f"NodeResult() got {len(others)} positional arguments after output, and {named}.")
        named.update(zip(names, others, strict=True))
    if not _FIELD_NAMES.issuperset(named):
        unknown = ", ".join(sorted(named.keys() - _FIELD_NAMES))
        raise TypeError(f"NodeResult() got an unexpected keyword argument: {unknown}")
    return named


@dataclass(frozen=True, slots=True)
class Mutation:
    """A graph action of the model, applied or rejected.

    Args:
        node: The node whose output holds the action.
        rejected: Why it was not applied. Empty if it was.
    """

    node: str
    op: str
    action: Mapping[str, Any]
    rejected: str = ""

    @property
    def applied(self) -> bool:
        return not self.rejected


@dataclass(frozen=True, slots=True)
class NodeError:
    """A failed execution of a node, or a failed attempt of a RETRYABLE one.

    Args:
        node: Its path: `outer/inner`.
        type: The class name of the exception. `NodeFailed` if the node returned an error without one.
        message: The text of the exception or error.
    """

    node: str
    type: str
    message: str
    exception: BaseException | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, path: str, result: NodeResult) -> NodeError:
        """Returns the error of a failed result."""
        kind = result.error_type or NodeFailed.__name__
        return cls(path, kind, result.error.removeprefix(f"{kind}: "), result.exception)

    @property
    def cause(self) -> BaseException | None:
        """The exception, or the one of the child whose failure it passes on."""
        cause = self.exception
        while isinstance(cause, NodeFailed) and cause.cause is not None:
            cause = cause.cause
        return cause

    def to_json(self) -> JsonObject:
        """Returns the error for events and metadata, without secrets and at most 500 characters long.

        The feedback of a guard may quote what it refused, so that it is left out.
        """
        cause = self.cause
        if isinstance(cause, OutputRefused):
            message = f"The guard {cause.guard} refused the output."
        else:
            message = redact_secrets(self.message)
        return {"node": self.node, "type": self.type, "message": message[:MAX_ERROR_CHARACTERS]}


class ExecutionReport(Struct, repr_omit_defaults=True):
    """What happened in a run.

    Args:
        nodes_visited: Paths in the order of execution. Nested ones are `outer/inner`.
        iterations: Node executions.
        usage: The cost of the whole run, failed attempts and summaries included.
        tool_calls: The names of the tools called, in order.
        guards: The results of guards, as `node: guard passed` or `node: guard failed`.
        error: The error that ended the run, or why it was stopped. Empty if it completed.
        local: The data of hooks in this run. Ask the hook for its own.
        errors: Every failure of a node, in order, also those that the graph handled. A child's stands before
            that of its parent.
    """

    nodes_visited: list[str]
    iterations: int = 0
    usage: Usage = NO_USAGE
    duration_ms: float = 0.0
    tool_calls: list[str] = []
    mutations: list[Mutation] = []
    guards: list[str] = []
    stop_reason: StopReason = "completed"
    error: str = ""
    local: dict[int, Any] = {}
    errors: list[NodeError] = []

    @property
    def failure(self) -> NodeError | None:
        """The node error that ended the run, as its innermost node has it. None if no node ended it."""
        if self.stop_reason == "completed":
            return None
        last = next((error for error in reversed(self.errors) if error.message in self.error), None)
        if last is None or (cause := last.cause) is None:
            return last
        return next((error for error in self.errors if error.exception is cause), last)

    def summary(self) -> str:
        """Returns one line for people."""
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
            "errors": [error.to_json() for error in self.errors],
        }


class Interrupt(Struct, frozen=True):
    """A question of a run that waits.

    Args:
        id: Names it in `engine.resume(run_id, {id: value})`.
        kind: `interrupt` of a node's own code, the question of a `human` node, an `approval` of a tool call,
            or a call or node of `unknown_outcome`: the process died in it.
        node: The name of the node, or of the tool.
        value: What the node asks, as JSON.
        question: The text to show to a person.
        expires_at: Seconds since the epoch. After that the question counts as not answered in time.
    """

    id: str
    kind: Literal["interrupt", "human", "approval", "unknown_outcome", "identity", "client_tool"]
    node: str
    value: Any = None
    question: str = ""
    expires_at: float = 0.0


#: The class of the state of a graph.
S = TypeVar("S", default=Any)


class GraphResult(Struct, Generic[S], repr_omit_defaults=True):
    """The result of a run of a graph whose state is an `S`.

    Args:
        messages: The whole conversation. The question is the first message.
        output: Of the last node that ran and succeeded. It is never a raw tool result and never the question.
        context: The state's context at the end.
        json_text: The output as the model wrote it, if it is data.
        state: The typed state at the end, an instance of its class. None if the graph has none.
        run_id: Of a run in a store. Empty for every other run.
        interrupts: What a run in a store waits for. `engine.resume` answers it.
    """

    messages: list[Message]
    output: Any
    context: dict[str, Any]
    report: ExecutionReport
    json_text: str = ""
    state: S = cast(Any, None)
    run_id: str = ""
    interrupts: Sequence[Interrupt] = ()

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.report.stop_reason == "completed"

    @property
    def error(self) -> str:
        """Why the run did not complete. Empty if it did."""
        return self.report.error

    def raise_for_error(self) -> None:
        """Returns if the run completed.

        Raises:
            NodeFailed: A node's error ended the run. Its exception is the cause.
            GraphError: The run was stopped.
        """
        if self.ok:
            return
        failure = self.report.failure
        if failure is None:
            raise GraphError(self.error or f"The run was stopped: {self.report.stop_reason}.")
        raise NodeFailed(failure.node, failure.message, failure.exception) from failure.exception

    @property
    def text(self) -> str:
        """The answer as text: JSON in the model's own characters if it is data, empty if there is none.

        If a limit stopped the run, it is the last text that the model wrote beside its tool calls, or a fixed
        sentence. It is never a tool result and never an answer that was refused.
        """
        if self.output is not None:
            return self.json_text or as_text(self.output)
        return self._last_words() if self.report.stop_reason in LIMIT_STOPS else ""

    def _last_words(self) -> str:
        for message in reversed(self.messages):
            if message.role == "user":
                break
            if message.role == "assistant" and message.tool_calls and message.content:
                return message.content
        return UNFINISHED


def is_json_of(text: str, value: Any) -> bool:
    """Whether a text is a value as JSON, with or without a code fence."""
    return whole_object(text) == value or json_of(text, value) == text


def as_text(value: Any) -> str:
    """Returns a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    """Returns a value as JSON and never fails: models write integers beyond 64 bits and single surrogates."""
    try:
        return orjson.dumps(value, default=_jsonable, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:
        try:
            return json.dumps(value, default=_jsonable)
        except (TypeError, ValueError, RecursionError):  # keys of other types, cycles
            return repr(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Struct):
        return structs.asdict(value)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


# -- the check of results made by foreign code -------------------------------------------------------------

_STOP_REASONS = ("", *get_args(StopReason))


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in (tuple, list) and all(isinstance(one, kind) for one in value)


def _instance_of(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


#: By field: whether a value is valid, and what it should be.
_FIELD_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("node_name", _instance_of(str), "a text"),
    ("next_node", _instance_of(str), "the name of a node"),
    ("transition_reason", _instance_of(str), "a text"),
    ("tool_calls", _list_of(ToolCall), "a list of ToolCall"),
    ("messages_added", _list_of(Message), "a list of Message"),
    ("guards_passed", _list_of(str), "a list of names"),
    ("guards_failed", _list_of(str), "a list of names"),
    ("graph_mutations", _list_of(Mutation), "a list of Mutation"),
    ("error", _instance_of(str), "a text, empty where it succeeded"),
    ("usage", _instance_of(Usage), "a Usage"),
    ("duration_ms", _instance_of(int | float), "a number"),
    (
        "stop_reason",
        lambda value: isinstance(value, str) and value in _STOP_REASONS,
        f"one of {', '.join(_STOP_REASONS[1:])}",
    ),
    ("is_answer", _instance_of(bool), "True or False"),
    ("exception", _instance_of(BaseException | None), "an exception or None"),
    ("skipped", _instance_of(bool), "True or False"),
    ("error_type", _instance_of(str), "the name of a class"),
    ("handled", _instance_of(bool), "True or False"),
)

_field_values = attrgetter(*(field for field, _, _ in _FIELD_RULES[1:]))
_DEFAULT_VALUES = _field_values(NodeResult())
_FIELDS = tuple(field.name for field in fields(NodeResult))
_FIELD_NAMES = frozenset(_FIELDS)
#: The fields of a result that is nothing but an output.
PLAIN_FIELDS = frozenset({"node_name", "output", "duration_ms"})


def holds_output_alone(result: NodeResult) -> bool:
    """Whether a result is nothing but an output, and valid."""
    return (
        PLAIN_FIELDS.issuperset(result.__dict__)
        and type(result.node_name) is str
        and type(result.duration_ms) is float
    )


def invalid_field(result: NodeResult) -> str | None:
    """Returns which field of a result is invalid and what it should be, or None."""
    if type(result) is NodeResult and holds_output_alone(result):
        return None
    try:
        if (
            _field_values(result) == _DEFAULT_VALUES
            and type(result.node_name) is str
            and vars(result).keys() <= _FIELD_NAMES
        ):
            return None
    except Exception:  # noqa: BLE001, S110 (comparing runs foreign code; the table names the invalid field)
        pass
    for unknown in vars(result).keys() - _FIELD_NAMES if type(result) is NodeResult else ():
        return f"{unknown} is not a field of a result"
    for name, is_valid, expected in _FIELD_RULES:
        value = getattr(result, name, None)  # a subclass of the user may have left it out
        if not is_valid(value):
            text = f"{value!r:.80}" if isinstance(value, str) else type(value).__name__
            return f"{name} must be {expected}, not {text}"
    return None


# -- the history of a stored run --------------------------------------------------------------------------


class Checkpoint(Struct, frozen=True):
    """A finished node of a stored run.

    Args:
        step: Its number among the steps of the run. Model calls and tool calls are steps, too.
        path: The place of the node: `outer/inner`.
        next: The node that follows, `__end__`, or an empty text if the run was stopped.
        output: Of the node, as JSON.
        error: Empty if the node succeeded.
        finished_at: Seconds since the epoch.
    """

    step: int
    path: str
    next: str = ""
    output: Any = None
    error: str = ""
    duration_ms: float = 0.0
    usage: Usage = NO_USAGE
    finished_at: float = 0.0


@dataclass(frozen=True, slots=True)
class GraphSnapshot(Generic[S]):
    """The state of a run after a step.

    Args:
        step: The finished node, 0 for the start of the run.
        path: Its place, empty for the start.
        next: The node that follows, `__end__`, or an empty text if the run was stopped.
        state: The typed state. None if the graph has none.
    """

    run_id: str
    step: int
    path: str
    next: str
    state: S
    context: Mapping[str, Any]
    messages: list[Message]
