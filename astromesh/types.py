"""The records that cross packages. They are frozen. Dictionaries represent only JSON.

Wire names follow the OpenAI chat format (roles, tool calls), which document 001 names for tool schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

Role = Literal["system", "user", "assistant", "tool"]
AttachmentKind = Literal["image", "audio", "file"]
JsonObject = dict[str, Any]


# -- conversation ------------------------------------------------------------------------------------------


class Attachment(Struct, frozen=True):
    """An image, an audio file or a document that belongs to a message: either a URL or inline data.

    Args:
        url: an http(s) URL, or empty.
        data: base64 text, or empty.
        media_type: e.g. `image/png`. Empty: as the name or the server says.
        name: of the file.
        sha256: of its content, in hex digits. Stores refer to the content by it. Empty: not known yet.
    """

    url: str = ""
    data: str = ""
    media_type: str = "image/png"
    name: str = ""
    sha256: str = ""

    @property
    def kind(self) -> AttachmentKind:
        main = self.media_type.partition("/")[0]
        return "image" if main == "image" else "audio" if main == "audio" else "file"


#: an attachment that is a picture: `Image(url=…)`, `Image(data=…, media_type="image/jpeg")`
Image = Attachment


class ToolCall(Struct, frozen=True):
    """A call of a tool that the model requests.

    Args:
        id: unique within the run; the tool result refers to it.
        name: the tool's name as offered.
        arguments: the JSON text as the model wrote it; it may be invalid.
        kept: data that goes back with the call, e.g. signed thoughts; only its own provider reads it.
    """

    id: str
    name: str
    arguments: str = "{}"
    kept: str = ""


class Message(Struct, frozen=True):
    """One chat message.

    Args:
        tool_calls: on assistant messages.
        tool_call_id, name: on tool messages: which call, which tool. `name` of a stored answer: who wrote it,
            if that is another agent than the session's.
        attachments: on user messages, for models that take them.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    attachments: tuple[Attachment, ...] = ()


#: the tenant of callers that name none
DEFAULT_TENANT = "default"
#: the owner of what a caller without a name starts
ANONYMOUS_USER = "anonymous"
#: the record separator of ASCII, also in the migrations of the stores
_OWNER_SEPARATOR = "\x1e"


class SessionKey(NamedTuple):
    """Names one conversation. Agents never share a history, and principals never share a session.

    Args:
        owner: the principal: the subject of a key or token, never the key's id.
    """

    tenant: str
    agent: str
    session_id: str
    owner: str = ""

    @property
    def columns(self) -> tuple[str, str, str]:
        """Tenant, agent and session id as stores hold them: the principal is part of the session's id.

        Ids in this form sort by session, then by principal, because session ids have no control characters.
        """
        return self.tenant, self.agent, f"{self.session_id}{_OWNER_SEPARATOR}{self.owner}"

    @classmethod
    def of_columns(cls, tenant: str, agent: str, stored_id: str) -> SessionKey:
        """Returns the key that has these columns."""
        session_id, _, owner = stored_id.partition(_OWNER_SEPARATOR)
        return cls(tenant, agent, session_id, owner)


class Turn(NamedTuple):
    """One stored message of a session. It is a tuple, because a recall makes dozens of them in each run.

    Args:
        seq: position in the session, from 1, without gaps; 0 on a turn not stored yet.
        created_at: seconds since the epoch, to the millisecond.
        run_id: the run that wrote it.
        status: `complete`, or `partial` for the beginning of an answer that was cancelled.
        tokens: estimated size for token budgets, 0 where unknown.
        author: the agent that wrote the answer for the session's own, as in a swarm; else empty.
    """

    role: Literal["user", "assistant"]
    content: str
    seq: int = 0
    created_at: float = 0.0
    run_id: str = ""
    status: Literal["complete", "partial"] = "complete"
    tokens: int = 0
    author: str = ""


# -- model calls -------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True):
    """The tokens and the cost of calls. Adds with `+`, and `-` takes a part away.

    Args:
        cached_tokens, cache_write_tokens: the input that the service read from its cache, and wrote to it.
        reasoning_tokens: the output that the model has thought and not written.
        cost_usd: 0.0 if no price is known.
        estimated: whether some of the tokens are an estimate, because no provider has counted them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    estimated: bool = False
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0

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
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def __sub__(self, part: Usage) -> Usage:
        """Returns the rest of a usage of which `part` is a part."""
        return Usage(
            self.input_tokens - part.input_tokens,
            self.output_tokens - part.output_tokens,
            self.cached_tokens - part.cached_tokens,
            self.cost_usd - part.cost_usd,
            self.estimated,
            self.reasoning_tokens - part.reasoning_tokens,
            self.cache_write_tokens - part.cache_write_tokens,
        )

    def to_json(self) -> JsonObject:
        counts: JsonObject = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "cost_usd": self.cost_usd,
        }
        if self.reasoning_tokens:
            counts["reasoning_tokens"] = self.reasoning_tokens
        if self.cache_write_tokens:
            counts["cache_write_tokens"] = self.cache_write_tokens
        if self.estimated:
            counts["estimated"] = True
        return counts


def attach_usage(error: BaseException, usage: Usage) -> None:
    """Attaches the cost of a model call so far to the error, or the cancellation, that ended it."""
    error.__dict__["charged"] = usage


def attached_usage(error: BaseException) -> Usage | None:
    """The usage that `attach_usage` attached, or None."""
    return error.__dict__.get("charged")


def attach_attempts(error: BaseException, attempts: list[JsonObject]) -> None:
    """Attaches the tries of a model call to its error, as `{provider, error, status, usage?}` each."""
    error.__dict__["attempts"] = attempts


def attached_attempts(error: BaseException) -> list[JsonObject]:
    """The tries that `attach_attempts` attached, or an empty list."""
    found: list[JsonObject] = error.__dict__.get("attempts", [])
    return found


Effect = Literal["read", "write", "external"]


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it.

    Args:
        parameters: JSON Schema of the arguments, `type: object`.
        effect: `read` may be repeated after a crash; `write` and `external` may not.
        repeatable: whether they may, too: the service recognizes a repeat by its key, or the tool is a
            recorded run.
        recorded: False if the tool changes only the run itself; a resumed run calls it again.
        as_caller: whether it sends the caller's token to the service.
        trusted: whether no third party writes its results, so that they cannot mislead a model, e.g. a
            calculator's.
        output_schema: JSON Schema of its results, `type: object`, for clients of MCP; None: they have none.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    effect: Effect = "read"
    repeatable: bool = False
    recorded: bool = True
    as_caller: bool = False
    trusted: bool = False
    output_schema: Mapping[str, Any] | None = None

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


#: Roles that patterns use by themselves; without their own models they use the main ones.
STANDARD_ROLES = ("planner", "judge", "worker", "critic", "lightweight")


class CompletionRequest(Struct, frozen=True):
    """One model call.

    Args:
        messages: the system message first; static parts come first, so that caches of providers hit.
        tools: offered tools, possibly none.
        parameters: `temperature`, `max_tokens`, … ; they override the provider's configured ones.
        output_schema: JSON Schema that the text of the answer must fit, or None.
        tool_choice: `auto`, `none`, `required` or a tool's name.
        role: which of the agent's models to use (`model.roles`), empty for the main one.
        answers: whether the result may be the answer of the run; other steps carry no output schema.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    tool_choice: str = "auto"
    role: str = ""
    answers: bool = True


class CompletionResult(Struct, frozen=True):
    """The result of a model call (document 001, step 8).

    Args:
        finish_reason: `stop`, `tool_calls`, `length` or `content_filter`.
        attempts: one line for each failed try before this result, `{provider, error, status}`.
        latency_ms: of the successful call.
        response_model: the model that the service says has answered; empty if it does not say.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    provider: str = ""
    model: str = ""
    finish_reason: str = "stop"
    attempts: tuple[JsonObject, ...] = ()
    latency_ms: float = 0.0
    response_model: str = ""


class Delta(Struct, frozen=True):
    """A piece of text as the provider sent it, neither merged nor split."""

    content: str


class StreamBroken:
    """Stands in a router's stream where an answer broke off after its first delta.

    The reader of the stream sets `discarded` before it requests the next piece, if no text of the answer has
    been sent. Then another model may answer. Otherwise the stream raises the error next.
    """

    __slots__ = ("discarded",)

    def __init__(self) -> None:
        self.discarded = False


# -- tools -------------------------------------------------------------------------------------------------


class Command(Struct, frozen=True):
    """An update of a graph's state, and where to go on. Nodes and tools return it.

    Args:
        update: values by field of the state, or by key of the context.
        goto: the next node. A node may name only a target that it declares: an edge, a transition, or
            `routes`. Empty: the graph decides.
        result: of a tool: what the model reads; None: the update.
    """

    update: Mapping[str, Any] = {}
    goto: str = ""
    result: Any = None


class ToolResult(Struct, frozen=True):
    """The result of exactly one tool call; becomes one tool message.

    Args:
        content: text for the model; JSON if the tool returned data.
        ok: False if the tool failed or was refused; then `error` is the stable code.
        value: the value that the tool returned; None on failure.
        ends_run: whether the run ends with this call, as with a hand-off; the model is not called again.
        untrusted: whether a third party wrote the content, possibly to mislead a model.
        command: what the tool does to the graph that called it, or None.
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
    command: Command | None = None


# -- memory ------------------------------------------------------------------------------------------------


class SemanticResult(Struct, frozen=True):
    """A passage from semantic memory or knowledge. `score` is in [0, 1]; a higher one is nearer.

    Args:
        why: why it was recalled: `similarity`, which is the score, and `words` that query and content share.
    """

    content: str
    score: float
    source: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    why: Mapping[str, Any] = field(default_factory=dict)


class MemoryContext(Struct, frozen=True):
    """The result of step 4 (document 001).

    Args:
        degraded: the memories that failed (`semantic`, `episodic`); the run continues without them.
        last_seq: of the newest stored turn, with which the history ends; 0 if there is none.
    """

    conversation_history: tuple[Message, ...] = ()
    semantic_results: tuple[SemanticResult, ...] = ()
    episodic_events: tuple[JsonObject, ...] = ()
    degraded: tuple[str, ...] = ()
    last_seq: int = 0


# -- events ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Event:
    """One event of a run. Do not change it after it was sent; it is unfrozen, as runs create thousands.

    Args:
        seq: position in the run's log, from 1.
        ts: seconds since the epoch.
        type: e.g. `model.delta` (docs/api.md, Events).
        data: the payload, JSON values only.
    """

    run_id: str
    seq: int
    ts: float
    type: str
    data: JsonObject


# -- who is calling ----------------------------------------------------------------------------------------


class ManifestSnapshot(NamedTuple):
    """The manifests of Tasks, stored once for all of them.

    Args:
        id: SHA-256 of the content.
        content: the files as they were when the Tasks were accepted (`astromesh.workflow.snapshot`).
    """

    id: str
    content: JsonObject


class CallerContext(Struct, frozen=True):
    """The caller of a run (document 000). The token is never printed, logged or stored.

    Args:
        had_token: whether the request had a token; a resumed run has lost it.
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
    def principal(self) -> tuple[str, str]:
        """The tenant and the owner of what this caller starts."""
        return self.tenant_id or DEFAULT_TENANT, self.user_id or ANONYMOUS_USER

    @property
    def lacks_token(self) -> bool:
        """Whether the token is lost, so that the caller must send it again for tools that need it."""
        return self.had_token and not self.bearer_token


_caller: ContextVar[CallerContext | None] = ContextVar("astromesh_caller", default=None)


def get_current_caller() -> CallerContext | None:
    """The caller of the run that this code is part of, or None outside a run."""
    return _caller.get()


class calling_as:  # noqa: N801 (as contextlib's own)
    """Sets the current caller for a block and always resets it."""

    __slots__ = ("_set", "_token")
    _token: Token[CallerContext | None]

    def __init__(self, caller: CallerContext | None) -> None:
        self._set = caller

    def __enter__(self) -> None:
        self._token = _caller.set(self._set)

    def __exit__(self, *_: object) -> None:
        _caller.reset(self._token)
