"""The tool protocol, tools as declared, the context and policy of a call, and how a tool runs an agent.

The client of a run may execute tools, too: the run hands a call out, waits for the result, and goes on. Such
a call is one more question of a durable run (`HumanQuestion` of the kind `client_tool`), so it is recorded,
survives a restart, and is answered as every question is. The policies of `tools.policies` stand before it:
arguments that do not fit go back to the model, not to the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import Struct, structs
from typing_extensions import TypeVar

from astromesh.errors import ClientToolExpired, ToolDenied, ToolFailed
from astromesh.telemetry.events import Emitter
from astromesh.types import (
    Attachment,
    CallerContext,
    Effect,
    JsonObject,
    Message,
    SessionKey,
    ToolCall,
    ToolResult,
    ToolSpec,
)


class HumanQuestion(NamedTuple):
    """A question to a person.

    Args:
        kind: `approval` of a tool call, a call of `unknown_outcome`, a `human` node's question, an
            `interrupt` in the code of a node, the caller's `identity`: its token, which no store keeps, or
            a `client_tool` that the client executes.
        name: of the tool or node.
        arguments: of the call, or the subject of the decision.
        seconds: until the question expires.
        parameters: JSON Schema of arguments that the person may change; None: they may not.
        agent: that asks: of the run, or of a nested run.
    """

    kind: Literal["approval", "unknown_outcome", "human", "interrupt", "identity", "client_tool"]
    name: str
    arguments: Any = None
    question: str = ""
    seconds: float = 7 * 86_400.0
    parameters: JsonObject | None = None
    agent: str = ""


class RecordedToolCall(Protocol):
    """A tool call in the journal of a durable run, as the tool's policies use it.

    Attributes:
        is_fork: whether a person approves every call with an effect: the run repeats parts of another one.
    """

    is_fork: bool

    async def ask(self, request: HumanQuestion) -> JsonObject:
        """Asks a person; returns the decision, possibly days later and in another process.

        `{"decision": "approve", "deny", "answer" or "expired", "arguments"?, "answer"?, "by"?}`
        """

    def has_request(self, kind: str) -> bool:
        """Whether the journal has a question of this kind that `ask` has not reached yet."""

    async def record_intent(self, spec: ToolSpec) -> None:
        """Records on disk that the call is about to happen, if it may not be repeated.

        Raises:
            OutcomeUnknown: the process died during the call, and nobody decided to repeat it.
        """


#: the type of `ToolContext.deps`
DepsT = TypeVar("DepsT", default=Any)


@dataclass(frozen=True, slots=True)
class ToolContext(Generic[DepsT]):
    """The run of a tool call. A tool takes the caller's identity from here, never from the arguments.

    Annotate it `ToolContext[MyDeps]` for the type of `deps`.

    Args:
        call_id: the model's id of this call.
        tool: the name that was called; a nested run's session is `PARENT/TOOL`.
        step: the call in the journal of a durable run, else None.
        idempotency_key: run_id and call_id, for a tool with `idempotency: key` to pass on; else empty.
        path: of the call in the run's tree, e.g. `react/lookup`.
        deadline: `Clock.monotonic` seconds at which the run must have ended, or None.
        run: the run's scope (`astromesh.graph.scope.Scope`), opaque here; nested runs attach to it.
    """

    run_id: str = ""
    call_id: str = ""
    agent: str = ""
    session: SessionKey = SessionKey("", "", "")
    caller: CallerContext | None = None
    trace_id: str = ""
    path: str = ""
    deadline: float | None = None
    events: Emitter | None = None
    run: Any = field(default=None, repr=False)
    idempotency_key: str = ""
    tool: str = ""
    step: RecordedToolCall | None = field(default=None, repr=False)

    @property
    def deps(self) -> DepsT:
        """What the program has passed to the run for its tools, e.g. a database: `agent.run(…, deps=…)`."""
        return cast(DepsT, self.run.deps if self.run is not None else None)

    @property
    def untrusted(self) -> Sequence[str]:
        """Sources of untrusted text that the turn has read: names of tools, and semantic memory."""
        return self.run.untrusted if self.run is not None else ()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the run, as the caller gave it."""
        return self.run.metadata if self.run is not None else {}

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the run."""
        return self.run.tags if self.run is not None else ()

    def report_uncancellable(self) -> None:
        """Reports that the tool still runs although its call was cancelled; a thread cannot be stopped."""
        if self.events is not None:
            self.events.emit("tool.uncancellable", id=self.call_id, name=self.tool)
        if self.run is not None:
            self.run.uncancelled.append(self.tool)


class RateLimit(NamedTuple):
    """At most `max_calls`, one or more, in any `window_seconds`."""

    max_calls: int
    window_seconds: float


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How a tool may be used, as its YAML block declares it; wrappers around the tool enforce it.

    Args:
        timeout_seconds: of one call; None: limited by the run.
        max_result_tokens: of a result that the model receives; the rest is cut off with a note.
        max_calls_per_run: of each tool, or None.
        rate_limit: by agent, tool and caller, or None.
        idempotency: `key`: the tool passes the call's idempotency key on, so a repeat does no harm.
        approval: `required`: a person is asked before every call.
        approve_if: selects these calls by their arguments; None: all.
        trusted: whether its results are; None: as the tool declares.
    """

    timeout_seconds: float | None = 30.0
    max_result_tokens: int = 8000
    max_calls_per_run: int | None = None
    rate_limit: RateLimit | None = None
    idempotency: Literal["none", "key"] = "none"
    approval: Literal["none", "required"] = "none"
    approve_if: Callable[[JsonObject], bool] | None = None
    trusted: bool | None = None


class Tool(Protocol):
    """One tool.

    Receives arguments that match its schema, returns text or JSON values, raises `ToolError`s.
    """

    spec: ToolSpec

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any: ...


@runtime_checkable
class ToolSource(Protocol):
    """A source of several tools that may change, e.g. an MCP server."""

    def current(self) -> tuple[Tool, ...]:
        """Returns the tools of the current caller, at no cost: the same tuple until they change."""

    async def prepare(self) -> None:
        """Called before a run uses `current()`: waits, within limits, for the tools of this caller."""

    @property
    def for_callers_only(self) -> bool:
        """Whether a caller without a token sees no tools, as an MCP server may require."""

    def missing(self) -> str:
        """Returns a sentence that says which tools are missing and why, or an empty string."""

    async def tools(self) -> Sequence[Tool]:
        """Returns `current()`, after a limited wait for a source that was just opened."""

    async def close(self) -> None: ...


#: calls a tool with the arguments as JSON text or as an object, and the context of the call
Invoke: TypeAlias = Callable[[Any, ToolContext], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as an agent declares it.

    Args:
        spec: what the model sees; name, description, parameters and effect as declared.
        tool: that does the work.
        policy: how it may be used.
    """

    spec: ToolSpec
    tool: Tool
    policy: ToolPolicy = field(default_factory=ToolPolicy)


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """Several tools that one block of an agent declares, e.g. those of an MCP server.

    Args:
        name: of the block; a permission for it permits all of its tools.
        effect: as the block declares for all tools; None: as the tool declares.
    """

    name: str
    source: ToolSource
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    effect: Effect | None = None

    def declared(self) -> tuple[DeclaredTool, ...]:
        """Returns the currently offered tools."""
        return tuple(self._declare(tool) for tool in self.source.current())

    def _declare(self, tool: Tool) -> DeclaredTool:
        spec = structs.replace(tool.spec, effect=self.effect) if self.effect else tool.spec
        if self.policy.idempotency == "key":
            spec = structs.replace(spec, repeatable=True)
        return DeclaredTool(spec, tool, self.policy)


class ToolPort(Protocol):
    """The tools of a run. Permissions, limits, validation and timeouts are behind it.

    `execute` never raises for a failed tool: the failure is a ToolResult with `ok=False`, which the model
    receives as a corrective result. It raises only cancellation and LimitReached.
    """

    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult: ...


# -- another agent as a tool ---------------------------------------------------------------------------------


class NestedRunOptions(Struct, frozen=True):
    """How a pattern runs another agent; the defaults are those of an agent tool.

    Args:
        history: replaces the agent's stored session; then no turn is stored.
        images: of the query.
        instructions: added to the agent's own system prompt.
        tools: offered in addition to the agent's own.
        max_iterations: model calls of the agent's tool loop, unless its own limit is smaller.
        streams_to_caller: its text streams as text of the outer run.
        is_withheld: whether a text that starts like JSON is not an answer (a hand-off written as text).
        model: in place of the agent's primary model: a name of the same provider, or `provider:name`.
    """

    history: tuple[Message, ...] | None = None
    attachments: tuple[Attachment, ...] = ()
    instructions: str = ""
    tools: ToolPort | None = None
    max_iterations: int | None = None
    streams_to_caller: bool = False
    is_withheld: Callable[[str], bool] | None = None
    model: str = ""


#: the options of an agent tool
DEFAULT_NESTED_RUN_OPTIONS = NestedRunOptions()


class RunAgent(Protocol):
    """Runs another agent as a nested run; injected, so that agent tools do not import the runtime.

    Returns the answer as `POST /run` does: `{response, agent, session_id, run_id, metadata}`.
    """

    async def __call__(
        self,
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]: ...


# -- tools that the client executes --------------------------------------------------------------------------


CLIENT_TOOL: Literal["client_tool"] = "client_tool"
#: seconds for which a run waits for the result of a call
WAIT_SECONDS = 600.0


class ClientTools(Struct, frozen=True):
    """The tools that a request brings.

    Args:
        choice: `auto`, `required` or a tool's name, for the first model call that offers tools.
    """

    specs: tuple[ToolSpec, ...] = ()
    choice: str = "auto"

    def __bool__(self) -> bool:
        return bool(self.specs)


NO_CLIENT_TOOLS = ClientTools()


class ClientTool:
    """A `Tool` whose call the client executes.

    Args:
        released: returns arguments as clients may see them.
    """

    def __init__(self, spec: ToolSpec, released: Callable[[JsonObject], Any]) -> None:
        self.spec, self._released = spec, released

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Returns the client's result.

        Raises:
            ToolDenied: the client refuses the call.
            ClientToolExpired: there was no result in time; the run ends.
        """
        name, step = self.spec.name, context.step
        if step is None:
            raise ToolFailed(f"The client's tool {name!r} can be called in durable runs only.")
        question = HumanQuestion(CLIENT_TOOL, name, self._released(arguments), seconds=WAIT_SECONDS)
        decision = await step.ask(question)
        if decision["decision"] == "expired":
            raise ClientToolExpired(name, WAIT_SECONDS)
        if decision["decision"] != "answer":
            raise ToolDenied(f"The client has refused this call of {name!r}.")
        context.run.tool_choice = decision.get("tool_choice", "auto")
        return decision["answer"]
