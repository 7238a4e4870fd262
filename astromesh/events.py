"""The events of a run as classes, for `match`: what `agent.stream(…)` yields (docs/api.md, Events).

Each has the fields of its payload, and those of every event: `run_id`, `seq`, `ts`, `type`, `data`. Events
without a class here, those of workflows and of newer versions, are plain `Event`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_type_hints

from astromesh.types import Event, JsonObject

__all__ = [
    "GraphMutated",
    "GuardrailAction",
    "GuardrailsChecked",
    "MemoryLoaded",
    "MemoryPersisted",
    "ModelCommentary",
    "ModelDelta",
    "ModelFailed",
    "ModelFinished",
    "ModelRestarted",
    "ModelStarted",
    "NodeCustom",
    "NodeFailed",
    "NodeFinished",
    "NodeStarted",
    "NodeUpdated",
    "PromptRendered",
    "RunCancelled",
    "RunCompleted",
    "RunFailed",
    "RunResumed",
    "RunStarted",
    "RunWaiting",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "ToolUncancellable",
    "ToolsListed",
    "typed",
]

_KINDS: dict[str, type[_TypedEvent]] = {}


class _TypedEvent(Event):
    """An event whose fields are keys of its data; those that an event may lack have a default."""

    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, *, of: str) -> None:
        names = [name for name in cls.__annotations__ if name in vars(cls)]
        cls._defaults = {name: vars(cls)[name] for name in names}
        for name in names:  # a value in the class would hide that of the event
            delattr(cls, name)
        _KINDS[of] = cls

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            pass
        try:
            return self._defaults[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}.") from None


def typed(event: Event) -> Event:
    """Returns an event as an instance of its class, or as it is if it has none."""
    kind = _KINDS.get(event.type)
    return event if kind is None else kind(event.run_id, event.seq, event.ts, event.type, event.data)


def kinds() -> Mapping[str, type[Event]]:
    """Returns the classes by the type of their events."""
    return dict(_KINDS)


def fields_of(kind: type[Event]) -> Mapping[str, tuple[Any, Any]]:
    """Returns the type and the default of each field of a payload; without a default, `...`."""
    assert issubclass(kind, _TypedEvent)
    hints, defaults = get_type_hints(kind), kind._defaults  # noqa: SLF001  (a class of this module)
    return {name: (hints[name], defaults.get(name, ...)) for name in kind.__annotations__}


class RunStarted(_TypedEvent, of="run.started"):
    """The first event."""

    agent: str
    session_id: str
    trace_id: str


class GuardrailAction(_TypedEvent, of="guardrail.action"):
    """A rule has changed or blocked a text. `stage` is `input` or `output`."""

    stage: str
    action: str
    count: int = 1


class GuardrailsChecked(_TypedEvent, of="guardrails.checked"):
    """The rules of a stage have run, and have acted `actions` times."""

    stage: str
    actions: int = 0
    duration_ms: float = 0.0


class MemoryLoaded(_TypedEvent, of="memory.loaded"):
    """The conversation is read: `turns` of it."""

    turns: int = 0
    duration_ms: float = 0.0


class PromptRendered(_TypedEvent, of="prompt.rendered"):
    """The system prompt is made."""

    characters: int
    duration_ms: float = 0.0


class ToolsListed(_TypedEvent, of="tools.listed"):
    """The model is offered `count` tools."""

    count: int


class NodeStarted(_TypedEvent, of="node.started"):
    """A node of a graph begins. `node` is its path."""

    node: str


class NodeFinished(_TypedEvent, of="node.finished"):
    """A node of a graph has ended."""

    node: str
    duration_ms: float = 0.0


class NodeCustom(_TypedEvent, of="node.custom"):
    """A node has called `emit(value)`."""

    node: str

    @property
    def value(self) -> Any:
        """What the node has passed, as JSON."""
        return self.data["data"]


class NodeUpdated(_TypedEvent, of="node.updated"):
    """A node has changed values of the state of the agent's graph."""

    node: str
    update: JsonObject


class NodeFailed(_TypedEvent, of="node.failed"):
    """A node, or an attempt of it, has failed."""

    node: str
    message: str


class GraphMutated(_TypedEvent, of="graph.mutated"):
    """A graph action of the model was applied, or `rejected`."""

    node: str
    op: str
    rejected: str = ""


class ModelStarted(_TypedEvent, of="model.started"):
    """The model is asked. `role` is `assistant` for the answer; `tools` is how many it is offered."""

    step: int
    role: str
    tools: int = 0


class ModelRestarted(_TypedEvent, of="model.restarted"):
    """A step begins again: its text so far is void."""

    step: int


class ModelCommentary(_TypedEvent, of="model.commentary"):
    """The text of a step is not part of the answer: it stands beside tool calls, or is replaced."""

    step: int


class ModelDelta(_TypedEvent, of="model.delta"):
    """A piece of the text of a model."""

    content: str
    role: str
    step: int


class ModelFinished(_TypedEvent, of="model.finished"):
    """The model has answered. `usage` has `input_tokens`, `output_tokens`, `cost_usd`, …"""

    provider: str
    model: str
    usage: JsonObject
    step: int
    role: str
    tool_calls: int = 0
    finish_reason: str = ""
    duration_ms: float = 0.0


class ModelFailed(_TypedEvent, of="model.failed"):
    """A call of the model has no result. `error` is a code of docs/api.md."""

    error: str
    provider: str
    model: str
    step: int
    role: str


class ToolStarted(_TypedEvent, of="tool.started"):
    """A tool is called. `arguments` are an object, or the text of the model if that is no JSON."""

    name: str
    arguments: Any
    id: str


class ToolProgress(_TypedEvent, of="tool.progress"):
    """A tool of an MCP server tells how far it is."""

    name: str
    progress: float
    id: str
    total: float | None = None
    message: str | None = None


class ToolFinished(_TypedEvent, of="tool.finished"):
    """A tool has ended. `error` is the code of a failure."""

    name: str
    ok: bool
    id: str
    error: str = ""
    duration_ms: float = 0.0


class ToolUncancellable(_TypedEvent, of="tool.uncancellable"):
    """A tool does not stop, although its call was cancelled or has timed out."""

    name: str
    id: str


class MemoryPersisted(_TypedEvent, of="memory.persisted"):
    """The turns of the run are stored."""

    turns: int = 0
    duration_ms: float = 0.0


class RunWaiting(_TypedEvent, of="run.waiting"):
    """The run waits for a person, or its client: `agent.resume(event.run_id, …)` continues it."""

    approval: JsonObject
    usage: JsonObject = {}  # noqa: RUF012 (nobody changes it)


class RunResumed(_TypedEvent, of="run.resumed"):
    """The run continues after decisions, or after a crash."""

    segment: int
    decisions: Sequence[JsonObject] = ()


class RunCompleted(_TypedEvent, of="run.completed"):
    """The last event of a run that has an answer."""

    response: str
    metadata: JsonObject = {}  # noqa: RUF012 (nobody changes it)
    citations: Sequence[JsonObject] = ()


class RunFailed(_TypedEvent, of="run.failed"):
    """The last event of a run that has failed, with its text so far."""

    code: str
    detail: str
    response: str = ""


class RunCancelled(_TypedEvent, of="run.cancelled"):
    """The last event of a run that was cancelled, with its text so far."""

    response: str = ""
