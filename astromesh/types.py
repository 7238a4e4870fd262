"""The records that cross packages. Frozen; dictionaries only where JSON is meant.

Wire names follow the OpenAI chat format (roles, tool calls), which document 001 names for tool schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

Role = Literal["system", "user", "assistant", "tool"]
JsonObject = dict[str, Any]


# -- conversation ------------------------------------------------------------------------------------------


class Image(Struct, frozen=True):
    """A picture in a message: either a URL or inline data.

    Args:
        url: an http(s) URL, or empty.
        data: base64 text, or empty.
        media_type: e.g. `image/png`.
    """

    url: str = ""
    data: str = ""
    media_type: str = "image/png"


class ToolCall(Struct, frozen=True):
    """What the model asks for.

    Args:
        id: unique within the run; the tool result refers to it.
        name: the tool's name as offered.
        arguments: the JSON text as the model wrote it, not parsed: it may be wrong.
        kept: what the model wants back with it, e.g. its signed thoughts; only its own provider reads it.
    """

    id: str
    name: str
    arguments: str = "{}"
    kept: str = ""


class Message(Struct, frozen=True):
    """One chat message.

    Args:
        tool_calls: on assistant messages.
        tool_call_id, name: on tool messages: which call, which tool.
        images: on user messages, for models with vision.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    images: tuple[Image, ...] = ()


class SessionKey(NamedTuple):
    """Names one conversation. Two agents never share history, two tenants never see each other."""

    tenant: str
    agent: str
    session_id: str


class Turn(NamedTuple):
    """One stored message of a session. A tuple, because a recall makes dozens of them per run.

    Args:
        seq: position in the session, from 1, without gaps; 0 on a turn not stored yet.
        created_at: seconds since the epoch, kept to the millisecond.
        run_id: the run that wrote it.
        status: `complete`, or `partial` for what a cancelled run had said.
        tokens: estimated size for token budgets, 0 where unknown.
    """

    role: Literal["user", "assistant"]
    content: str
    seq: int = 0
    created_at: float = 0.0
    run_id: str = ""
    status: Literal["complete", "partial"] = "complete"
    tokens: int = 0


# -- model calls -------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True):
    """What calls cost. Adds with `+`.

    Args:
        cost_usd: 0.0 where no price is known.
        estimated: some of it no provider has counted.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cost_usd + other.cost_usd,
            self.estimated or other.estimated,
        )

    def to_json(self) -> JsonObject:
        counts: JsonObject = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cost_usd": self.cost_usd,
        }
        if self.estimated:
            counts["estimated"] = True
        return counts


def attach_usage(error: BaseException, usage: Usage) -> None:
    """Notes on an error what the model call that it ended had cost by then; a cancellation is one, too."""
    error.__dict__["charged"] = usage


def attached_usage(error: BaseException) -> Usage | None:
    """What was noted by `attach_usage`; None where nobody knows."""
    return error.__dict__.get("charged")


def attach_attempts(error: BaseException, attempts: list[JsonObject]) -> None:
    """Notes on an error which tries of a model call it ended, `{provider, error, status, usage?}` each."""
    error.__dict__["attempts"] = attempts


def attached_attempts(error: BaseException) -> list[JsonObject]:
    """What was noted by `attach_attempts`; empty where nobody knows."""
    found: list[JsonObject] = error.__dict__.get("attempts", [])
    return found


Effect = Literal["read", "write", "external"]


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it.

    Args:
        parameters: JSON Schema of the arguments, `type: object`.
        effect: `read` may be repeated after a crash; `write` and `external` may not.
        repeatable: they may, too: the other side knows a repeat by its key, or the tool is a recorded run.
        recorded: False for what changes only the run itself: it is done anew when a run is taken up again.
        as_caller: it shows the caller's token to whom it calls.
        trusted: its answers are the words of nobody who might mislead a model, e.g. a calculator's.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    effect: Effect = "read"
    repeatable: bool = False
    recorded: bool = True
    as_caller: bool = False
    trusted: bool = False

    def to_function(self) -> JsonObject:
        """The OpenAI function-calling form that document 001 shows for step 6."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


class CompletionRequest(Struct, frozen=True):
    """One model call.

    Args:
        messages: system first; what is static comes first so that provider caches hit.
        tools: offered tools, possibly none.
        parameters: `temperature`, `max_tokens`, … ; they override the provider's configured ones.
        output_schema: JSON Schema the answer's text must fit, or None.
        tool_choice: `auto`, `none`, `required` or a tool's name.
        role: which of the agent's models to use (`model.roles`), empty for the main one.
        answers: whether what is said may be the run's answer; of a step on the way no output schema is asked.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    tool_choice: str = "auto"
    role: str = ""
    answers: bool = True


class CompletionResult(Struct, frozen=True):
    """What a model call answered (document 001, step 8).

    Args:
        finish_reason: `stop`, `tool_calls`, `length` or `content_filter`.
        attempts: one line per failed try before this answer, `{provider, error, status}`.
        latency_ms: of the successful call.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    provider: str = ""
    model: str = ""
    finish_reason: str = "stop"
    attempts: tuple[JsonObject, ...] = ()
    latency_ms: float = 0.0


class Delta(Struct, frozen=True):
    """A piece of text as the provider sent it; never merged, never split."""

    content: str


class StreamBroken:
    """What stands in a router's stream where a model's answer broke off behind its first delta.

    `unheard` is set by the reader of the stream, before it asks for the next piece: nothing of the answer has
    left, all of it is void, and another model may give its own. Otherwise the error comes next.
    """

    __slots__ = ("discarded",)

    def __init__(self) -> None:
        self.discarded = False


# -- tools -------------------------------------------------------------------------------------------------


class ToolResult(Struct, frozen=True):
    """The answer to exactly one tool call; becomes one tool message.

    Args:
        content: text for the model, JSON where the tool returned data.
        ok: False where the tool failed or was refused; then `error` is its stable code.
        value: what the tool returned, before it became text; None on failure.
        ends_run: the run is over with this call, e.g. a hand-off; the model is not asked again.
        untrusted: somebody else's words, which may have been written to mislead a model.
    """

    call_id: str
    name: str
    content: str
    ok: bool = True
    error: str = ""
    duration_ms: float = 0.0
    value: Any = None
    ends_run: bool = False
    untrusted: bool = False


# -- memory ------------------------------------------------------------------------------------------------


class SemanticResult(Struct, frozen=True):
    """A passage from semantic memory or knowledge. `score` is in [0, 1], higher is nearer."""

    content: str
    score: float
    source: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class MemoryContext(Struct, frozen=True):
    """What step 4 recalls (document 001).

    Args:
        owner: principal that the session belongs to; empty for a session that is new.
        degraded: what could not be asked (`semantic`, `episodic`): the run goes on without it.
    """

    conversation_history: tuple[Message, ...] = ()
    semantic_results: tuple[SemanticResult, ...] = ()
    episodic_events: tuple[JsonObject, ...] = ()
    owner: str = ""
    degraded: tuple[str, ...] = ()


# -- events ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Event:
    """One thing a run did. Not to be changed after it was sent; unfrozen because it is made in the hot path.

    Args:
        seq: position in the run's log, from 1.
        ts: seconds since the epoch.
        type: e.g. `model.delta` (api.md section 3).
        data: the payload, JSON values only.
    """

    run_id: str
    seq: int
    ts: float
    type: str
    data: JsonObject


# -- who is calling ----------------------------------------------------------------------------------------


class CallerContext(Struct, frozen=True):
    """Who is calling (document 000). The token is never printed, logged or stored.

    Args:
        had_token: there was one when the run was accepted; a run that is taken up again has none.
    """

    user_id: str = ""
    tenant_id: str = ""
    bearer_token: str = ""
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    had_token: bool = False

    def __repr__(self) -> str:
        shown = (
            f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "bearer_token"
        )
        return f"CallerContext({', '.join(shown)})"

    @property
    def lacks_token(self) -> bool:
        """Whether its token is gone, so that it has to show it again where it is needed."""
        return self.had_token and not self.bearer_token


_caller: ContextVar[CallerContext | None] = ContextVar("astromesh_caller", default=None)


def get_current_caller() -> CallerContext | None:
    """The caller of the run that this code is part of, or None outside a run."""
    return _caller.get()


class calling_as:  # noqa: N801 (as contextlib's own)
    """Sets the current caller for a block and resets it whatever happens."""

    __slots__ = ("_set", "_token")
    _token: Token[CallerContext | None]

    def __init__(self, caller: CallerContext | None) -> None:
        self._set = caller

    def __enter__(self) -> None:
        self._token = _caller.set(self._set)

    def __exit__(self, *_: object) -> None:
        _caller.reset(self._token)
