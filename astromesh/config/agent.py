"""agents/*.agent.yaml, kind Agent, and graphs/*.graph.yaml, kind Graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag
from yarl import URL

from astromesh.config.providers import Embeddings, ModelBlock, ModelSpec, Strategy
from astromesh.config.records import (
    Amount,
    Block,
    Count,
    IsJsonSchema,
    IsTemplate,
    JsonMap,
    Manifest,
    Metadata,
    NamedMetadata,
    NamesPlugin,
    RateLimit,
    Ratio,
    Record,
    Seconds,
    Secret,
    ToolName,
    one_or_list,
)
from astromesh.config.schedules import AgentSchedule
from astromesh.config.skills import Skill
from astromesh.types import Effect

Stream = Literal["token", "sentence", "final"]
#: patterns of unbounded length, which do not know which step is the last
UNBOUNDED_PATTERNS = frozenset({"autonomous"})


class Identity(Record):
    display_name: str = Field("", description="Name that people see.")
    description: str = Field("", description="What it is for; template variable `description`.")


# -- models ------------------------------------------------------------------------------------------------
class Routing(Record):
    strategy: Strategy | None = Field(None, description="Absent: routing.default_strategy of providers.yaml.")


#: distinguished before validation, so that a fault is reported once
OneOrMore = Annotated[
    Annotated[ModelSpec, Tag("one")] | Annotated[tuple[ModelSpec, ...], Tag("list")],
    Discriminator(one_or_list),
]


class RoleModel(Record):
    """The models of one role."""

    primary: ModelSpec = Field(description="The first choice.")
    fallback: OneOrMore = Field((), description="One block or a list, tried in order.")
    routing: Routing = Routing.empty()

    def specs(self) -> tuple[ModelSpec, ...]:
        """Returns primary and fallbacks as written."""
        more = (self.fallback,) if isinstance(self.fallback, ModelSpec) else self.fallback
        return (self.primary, *more)

    def blocks(self) -> tuple[ModelBlock, ...]:
        """Returns primary and fallbacks, resolved, including skipped ones."""
        return tuple(spec.block for spec in self.specs())

    def usable(self) -> tuple[ModelBlock, ...]:
        """Returns the blocks that are not skipped."""
        return tuple(block for block in self.blocks() if not block.skipped)


class AgentModel(RoleModel):
    roles: dict[str, RoleModel] = Field(
        default_factory=dict, description="Other models for planner, judge, worker, critic …"
    )

    def sets(self) -> Iterator[tuple[str, RoleModel]]:
        """Yields every role with its models; the main one has the empty name."""
        yield "", self
        yield from self.roles.items()


# -- prompts, orchestration, tools -------------------------------------------------------------------------
class Prompts(Record):
    system: Annotated[str, IsTemplate()] = Field("", description="Jinja2 template of the system message.")
    variables: JsonMap = Field(default_factory=dict, description="More template variables.")


class Orchestration(Block):
    """Other keys belong to the pattern; they may also be in a mapping with the pattern's name."""

    pattern: Annotated[str, NamesPlugin("patterns")] = Field(
        "react", min_length=1, description="Name of the pattern."
    )
    max_iterations: Count | None = Field(
        None, description="Model calls of one tool loop; absent: 10, for graph and autonomous 50."
    )
    timeout_seconds: Seconds | None = Field(None, description="Seconds a run may take; absent: 120.")


class ApprovalRule(Record):
    """A person approves a call where all written conditions hold. A condition that raises an error holds."""

    when: Annotated[str | None, IsTemplate(expression=True)] = Field(
        None, min_length=1,
        description="Jinja expression over the call's arguments by their names, e.g. `amount > 100`.",
    )  # fmt: skip
    arguments: Annotated[JsonMap | None, IsJsonSchema()] = Field(
        None, description="JSON Schema that the call's arguments must match."
    )


#: default effect of each type of tool (docs/tools.md)
DEFAULT_EFFECTS: dict[str, Effect] = {
    "internal": "read",
    "rag": "read",
    "webhook": "external",
    "mcp": "external",
    "agent": "external",
}


class ToolBlock(Block):
    """Other keys belong to the tool's type."""

    name: ToolName = Field(description="The name that the model sees.")
    type: Annotated[str, NamesPlugin("tools")] = Field(
        min_length=1, description="Kind of tool: internal, webhook, rag, mcp, agent …"
    )
    description: str = Field("", description="Description for the model; empty: the tool's own.")
    parameters: Annotated[JsonMap | None, IsJsonSchema(of_arguments=True)] = Field(
        None, description="JSON Schema of the arguments, type: object."
    )
    effect: Effect | None = Field(
        None, description="Effect on the world; absent: read for internal and rag, external for others."
    )
    idempotency: Literal["none", "key"] = Field("none", description="key: calls carry an idempotency key.")
    approval: Literal["none", "required"] | ApprovalRule = Field(
        "none", description="required: a person approves each call; a rule: the calls that match it."
    )
    timeout_seconds: Seconds | None = Field(
        None,
        description="Seconds one call may take; absent: 30 (type agent: the run's deadline; type mcp: the "
        "server's timeout_seconds of mcp.yaml).",
    )
    rate_limit: RateLimit | None = Field(
        None, description="Limit of calls per agent and caller; absent: none."
    )
    max_calls_per_run: Count | None = Field(
        None, description="Calls in one run; the model is told when they are used up. Absent: no limit."
    )
    max_result_tokens: Count | None = Field(None, description="Longer results are truncated with a note.")
    trusted: bool | None = Field(
        None,
        description="Whether its results are trusted; absent: true for agent, current_time, calculator "
        "and write_file, false for others.",
    )

    @property
    def effective_effect(self) -> Effect | None:
        """The effect as written, else the default of its type; None leaves it to the tool."""
        return self.effect or DEFAULT_EFFECTS.get(self.type)

    @property
    def deadline_seconds(self) -> float | None:
        """Seconds that one call may take; None: the MCP server's limit or the run's deadline."""
        return self.timeout_seconds or (None if self.type in ("agent", "mcp") else 30.0)


# -- memory ------------------------------------------------------------------------------------------------
class Conversational(Block):
    """Other keys belong to the strategy and to the backend."""

    backend: Annotated[str, NamesPlugin("conversation_stores")] = Field(
        min_length=1, description="Name of the conversation store."
    )
    strategy: Annotated[str, NamesPlugin("memory_strategies")] = Field(
        "sliding_window",
        min_length=1,
        description="Memory strategy: the part of the history that a run sees.",
    )
    ttl: Count | None = Field(None, description="Seconds after the last turn until a session is deleted.")

    _strategy_options: Any = PrivateAttr(default=None)

    @property
    def strategy_options(self) -> Any:
        """The strategy's validated `Options`; `options` are the backend's."""
        return self._strategy_options

    def bind_strategy(self, options: Any) -> None:
        """Stores the value; called once, at load."""
        self._strategy_options = options


class Semantic(Block):
    """Other keys belong to the backend."""

    backend: Annotated[str, NamesPlugin("semantic_stores")] = Field(
        min_length=1, description="Name of the semantic store."
    )
    embeddings: Embeddings | None = Field(None, description="Absent: search by words only.")
    top_k: Count = Field(5, description="How many passages are recalled.")
    similarity_threshold: Ratio = Field(0.0, description="Minimum score of a passage.")
    auto_index: bool = Field(False, description="Whether answers are stored as well.")
    facts: Literal["rules", "model"] | None = Field(
        None,
        description="How facts about the user are found in messages: by rules, which know English sentences, "
        "or by the agent's model after the answer. Absent: none are stored.",
    )


class Episodic(Block):
    """Other keys belong to the backend."""

    backend: Annotated[str, NamesPlugin("episodic_stores")] = Field(
        min_length=1, description="Name of the episodic store."
    )
    max_events: Count = Field(20, description="How many events are recalled.")


class Memory(Record):
    conversational: Conversational | None = Field(
        None, description="Absent: every run starts without history."
    )
    semantic: Semantic | None = None
    episodic: Episodic | None = None


# -- policy ------------------------------------------------------------------------------------------------
class GuardrailRule(Block):
    """Other keys belong to the rule's type."""

    type: Annotated[str, NamesPlugin("guardrails")] = Field(
        min_length=1, description="Name of the guardrail."
    )


class Guardrails(Record):
    input: tuple[GuardrailRule, ...] = Field((), description="Applied to the query in this order.")
    output: tuple[GuardrailRule, ...] = Field((), description="Applied to the answer in this order.")


class Permissions(Record):
    tools: tuple[str, ...] | None = Field(
        None, description="Absent: all declared tools; present: only these."
    )
    tainted: Literal["allow", "approval"] = Field(
        "allow",
        description="approval: once a turn has read untrusted text, a person approves each call with an "
        "external effect.",
    )


class Budget(Record):
    """Absent keys are unbounded."""

    tokens: Count | None = Field(None, description="Input and output tokens.")
    cost_usd: Amount | None = Field(None, description="US dollars.")
    tool_calls: Count | None = Field(None, description="Tool calls.")
    wall_seconds: Seconds | None = Field(None, description="Seconds of run time.")

    def caps(self) -> dict[str, float]:
        """Returns the limits that are set, for `RunLedger`."""
        return {key: value for key, value in self if value is not None}


class Budgets(Record):
    per_run: Budget = Field(Budget.empty(), description="Limits of one run, including runs that it starts.")
    per_session: Budget = Field(Budget.empty(), description="Limits of all runs of a session together.")
    per_principal_daily: Budget = Field(
        Budget.empty(), description="Limits of all runs of one principal on one day (UTC)."
    )


class Sessions(Record):
    concurrency: Literal["enqueue", "reject", "interrupt", "merge"] = Field(
        "enqueue", description="How a message is handled while another run of its session is active."
    )
    queue_timeout_seconds: Seconds = Field(60.0, description="Seconds that enqueue waits.")
    merge_window_ms: Count = Field(500, description="Messages within this time are merged.")


class Queue(Record):
    """The queue of the agent, in addition to those of its sessions."""

    priority: int = Field(0, ge=-1000, le=1000, description="Runs that wait with lower numbers start first.")
    max_running: Count | None = Field(
        None,
        description="Active runs at once: durable ones over all workers, others in each process.",
    )
    max_queued: Count = Field(
        10_000, description="Runs of one tenant that wait to start; further ones get 503 overloaded."
    )
    max_wait_seconds: Seconds | None = Field(
        None,
        description="While a durable run of a tenant waits longer to start, further ones get 503 overloaded.",
    )


# -- callbacks; those of requests follow the same rules ------------------------------------------------------

CallbackEvent: TypeAlias = Literal["completed", "failed", "cancelled", "waiting"]
ALL_EVENTS: tuple[CallbackEvent, ...] = ("completed", "failed", "cancelled", "waiting")
MAX_HEADERS = 16
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
#: what the signature and the transport set
_OWN_HEADERS = ("webhook-", "host", "content-", "transfer-encoding", "connection")


def _is_header(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("must be the name of an HTTP header, at most 64 characters")
    if name.lower().startswith(_OWN_HEADERS):
        raise ValueError("is a header that the server sets")
    return name


def _is_value(value: Secret) -> Secret:
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("must be the value of an HTTP header, at most 4096 characters")
    return value


def is_called(url: str) -> str:
    try:
        parts = URL(url)
    except ValueError:
        parts = URL()
    if parts.scheme not in ("http", "https") or not parts.host or len(url.split()) != 1:
        raise ValueError("must be an http or https URL with a host")
    if parts.user is not None or parts.password is not None:
        raise ValueError("must have no user and password; send them in `headers`, which are stored encrypted")
    return url


CallbackHeader = Annotated[str, AfterValidator(_is_header)]
CalledUrl = Annotated[str, Field(max_length=2048), AfterValidator(is_called)]


class CallbackSpec(Record):
    """Whom the server calls when a run or Task ends or waits."""

    url: CalledUrl = Field(description="Address that is called, over http or https.")
    events: Annotated[tuple[CallbackEvent, ...], Field(min_length=1, max_length=len(ALL_EVENTS))] = Field(
        ALL_EVENTS, description="Which events are sent."
    )
    headers: Annotated[
        dict[CallbackHeader, Annotated[Secret, AfterValidator(_is_value)]], Field(max_length=MAX_HEADERS)
    ] = Field(default_factory=dict, description="Headers of every call; their values are secret.")


# -- the file ------------------------------------------------------------------------------------------------


class AgentSpec(Record):
    identity: Identity = Identity.empty()
    model: AgentModel
    prompts: Prompts = Field(default_factory=Prompts)
    orchestration: Orchestration = Field(default_factory=Orchestration)
    tools: tuple[ToolBlock, ...] = ()
    skills: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="Folders of Agent Skills, or of several, relative to the configuration.",
    )
    memory: Memory = Memory.empty()
    guardrails: Guardrails = Guardrails.empty()
    permissions: Permissions = Permissions.empty()
    budgets: Budgets = Budgets.empty()
    sessions: Sessions = Sessions.empty()
    queue: Queue = Queue.empty()
    stream: Stream | None = Field(
        None, description="When text is sent; absent: token, or final where a rule needs the whole text."
    )
    on_disconnect: Literal["continue", "cancel"] | None = Field(
        None, description="Absent: synchronous runs are cancelled, durable ones continue."
    )
    client_tools: Literal["allow", "deny"] = Field(
        "allow", description="Whether requests may bring tools that the client executes."
    )
    overridable: tuple[Literal["model", "temperature", "max_tokens", "tools"], ...] | None = Field(
        None,
        description="What a request may change; absent: temperature and other sampling parameters, and "
        "max_tokens downwards.",
    )
    recording: bool | None = Field(
        None, description="Whether plain runs are recorded; absent: recording.enabled of runtime.yaml."
    )
    output_schema: Annotated[JsonMap | None, IsJsonSchema()] = Field(
        None, description="JSON Schema of the answer."
    )
    schedules: tuple[AgentSchedule, ...] = Field((), description="When it runs by itself.")
    callback: CallbackSpec | None = Field(
        None, description="Whom to call when a run ends or waits; its runs are durable."
    )

    def whole_text_reason(self) -> str:
        """Returns why text may be sent only at the end, or an empty text.

        An output rule needs the whole text unless the property `needs_whole_text` of its `Options` is false.
        """
        if self.output_schema is not None:
            return "the answer is checked against output_schema"
        if (pattern := self.orchestration.pattern) in UNBOUNDED_PATTERNS:
            return f"the pattern {pattern} does not know which of its steps is the last"
        for rule in self.guardrails.output:
            if rule.options is not None and getattr(rule.options, "needs_whole_text", True):
                return f"the output rule {rule.type} needs the whole text"
        return ""


class AgentManifest(Manifest):
    kind: Literal["Agent"]
    metadata: NamedMetadata
    spec: AgentSpec

    _skills: Mapping[str, Skill] = PrivateAttr(default_factory=dict)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def skills(self) -> Mapping[str, Skill]:
        """The skills in its folders, by name."""
        return self._skills

    def bind_skills(self, skills: Mapping[str, Skill]) -> None:
        """Stores the skills; called once, at load."""
        self._skills = skills

    @property
    def stream(self) -> Stream:
        """How text is streamed: as written, else token, or final where a rule needs the whole text."""
        return self.spec.stream or ("final" if self.spec.whole_text_reason() else "token")


# -- graphs; the spec is the graph engine's own form (`PromptGraph.from_config`) -----------------------------


class GraphManifest(Manifest):
    kind: Literal["Graph"]
    metadata: Metadata = Metadata.empty()
    spec: JsonMap = Field(description="The graph, as PromptGraph.to_config writes it.")

    @property
    def name(self) -> str:
        """metadata.name, else NAME of the file NAME.graph.yaml."""
        return self.metadata.name or self.file.name.removesuffix(".graph.yaml")
