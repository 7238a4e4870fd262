"""The tool seam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from astromesh.abc.events import Emitter
from astromesh.types import CallerContext, JsonObject, SessionKey, ToolCall, ToolResult, ToolSpec


class Asked(NamedTuple):
    """What a person is asked.

    Args:
        kind: `approval` of a tool call, a call of `unknown_outcome`, a `human` node's question, or the
            caller's `identity`: its token, which no store keeps.
        name: of the tool or node.
        arguments: of the call, or what is to be decided on.
        seconds: that there are for an answer.
        parameters: JSON Schema that other arguments of the call must fit; None: it takes none.
        agent: that asks; the run's own, or one nested in it.
    """

    kind: Literal["approval", "unknown_outcome", "human", "identity"]
    name: str
    arguments: Any = None
    question: str = ""
    seconds: float = 7 * 86_400.0
    parameters: JsonObject | None = None
    agent: str = ""


class ToolStep(Protocol):
    """A tool call of a durable run, as the layers around its tool see it."""

    async def ask(self, asked: Asked) -> JsonObject:
        """Asks a person; answers their decision, possibly days and processes later.

        `{"decision": "approve", "deny", "answer" or "expired", "arguments"?, "answer"?, "by"?}`
        """

    def asked(self, kind: str) -> bool:
        """Whether the record holds a question of this kind that `ask` has not come to yet."""

    async def intend(self, spec: ToolSpec) -> None:
        """The call is about to happen: said on disk before it does, where it may not be repeated.

        Raises:
            OutcomeUnknown: it was about to happen when the process died, and nobody wants it repeated.
        """


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Of which run a tool call is part. Identity comes from here, never from the arguments.

    Args:
        call_id: the model's id of this call.
        tool: the name that was called; a nested run's session is `PARENT/TOOL`.
        step: the call's step in the record of a durable run, else None.
        idempotency_key: run_id and call_id, for a tool with `idempotency: key` to pass on; else empty.
        path: where in the run's tree the call stands, e.g. `react/lookup`.
        deadline: `Clock.monotonic` seconds at which the run must have ended, or None.
        run: the run's scope (`astromesh.node.Scope`), opaque here; nested runs hang themselves into it.
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
    step: ToolStep | None = field(default=None, repr=False)

    @property
    def untrusted(self) -> Sequence[str]:
        """Whose words the turn has read that nobody vouches for: names of tools, and semantic memory."""
        return self.run.untrusted if self.run is not None else ()

    def goes_on(self) -> None:
        """Says that the tool goes on although its call was cancelled: nothing can stop a thread (R6)."""
        if self.events is not None:
            self.events.emit("tool.uncancellable", id=self.call_id, name=self.tool)
        if self.run is not None:
            self.run.unstopped.append(self.tool)


class RateLimit(NamedTuple):
    """At most `max_calls`, one or more, in any `window_seconds`."""

    max_calls: int
    window_seconds: float


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How a tool may be used, as its YAML block says; enforced by wrappers around it (api.md section 4).

    Args:
        timeout_seconds: that one call may take; None for as long as the run.
        max_result_tokens: of a result that the model is shown; the rest is cut off with a note.
        rate_limit: by agent, tool and caller, or None.
        idempotency: `key`: the tool passes the call's idempotency key on, so that a repeat does no harm.
        approval: `required`: a person is asked before every call.
        approve_if: says by the arguments which of those calls are meant; None: all.
        trusted: whether its answers are; None: as the tool itself says.
    """

    timeout_seconds: float | None = 30.0
    max_result_tokens: int = 8000
    rate_limit: RateLimit | None = None
    idempotency: Literal["none", "key"] = "none"
    approval: Literal["none", "required"] = "none"
    approve_if: Callable[[JsonObject], bool] | None = None
    trusted: bool | None = None


class Tool(Protocol):
    """One tool. Gets arguments that fit its schema, returns text or JSON values, raises `ToolError`s."""

    spec: ToolSpec

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any: ...


@runtime_checkable
class ToolSource(Protocol):
    """Something that offers several tools, and may change its mind: an MCP server, a folder of functions."""

    def current(self) -> tuple[Tool, ...]:
        """What the current caller is offered: the same tuple until something changes, which costs nothing."""

    async def prepare(self) -> None:
        """Before a run asks for `current()`: waits, within bounds, for what only this caller is offered."""

    @property
    def for_callers_only(self) -> bool:
        """Whether who has no token is offered nothing: an MCP server may list its tools to callers only."""

    def missing(self) -> str:
        """A sentence that says which tools are missing and why; empty where all is well."""

    async def tools(self) -> Sequence[Tool]:
        """`current()`, after a bounded wait for a source that has just been opened."""

    async def close(self) -> None: ...


class ToolPort(Protocol):
    """The tool seam as runs see it: permissions, limits, validation and timeouts are behind it.

    `execute` never raises for a failed tool: the failure is a ToolResult with `ok=False`, which goes to the
    model as a corrective result. It raises only cancellation and LimitReached.
    """

    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult: ...
