"""agents/*.agent.yaml, kind Agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag

from astromesh.config.fields import Amount, Block, Count, JsonMap, Ratio, Record, Seconds, ToolName
from astromesh.config.head import Manifest, NamedMetadata
from astromesh.config.models import Embeddings, ModelBlock, ModelSpec
from astromesh.config.providers import Strategy
from astromesh.types import Effect

Stream = Literal["token", "sentence", "final"]


class Identity(Record):
    display_name: str = Field("", description="For people.")
    description: str = Field("", description="What it is for; template variable `description`.")


# -- models ------------------------------------------------------------------------------------------------


class Routing(Record):
    strategy: Strategy | None = Field(None, description="Absent: routing.default_strategy of providers.yaml.")


def _one_or_list(value: Any) -> str:
    return "one" if isinstance(value, dict | ModelSpec) else "list"


#: told apart before they are validated, so that a fault is told once
OneOrMore = Annotated[
    Annotated[ModelSpec, Tag("one")] | Annotated[tuple[ModelSpec, ...], Tag("list")],
    Discriminator(_one_or_list),
]


class RoleModel(Record):
    """The models of one role."""

    primary: ModelSpec = Field(description="The first choice.")
    fallback: OneOrMore = Field((), description="One block or a list, tried in order.")
    routing: Routing = Routing.empty()

    def specs(self) -> tuple[ModelSpec, ...]:
        """Primary, then fallbacks, as written."""
        more = (self.fallback,) if isinstance(self.fallback, ModelSpec) else self.fallback
        return (self.primary, *more)

    def blocks(self) -> tuple[ModelBlock, ...]:
        """Primary, then fallbacks, resolved, skipped ones too."""
        return tuple(spec.block for spec in self.specs())

    def usable(self) -> tuple[ModelBlock, ...]:
        """Those that are not skipped."""
        return tuple(block for block in self.blocks() if not block.skipped)


class AgentModel(RoleModel):
    roles: dict[str, RoleModel] = Field(
        default_factory=dict, description="Other models for planner, judge, worker, critic …"
    )

    def sets(self) -> Iterator[tuple[str, RoleModel]]:
        """Every role with its models; the main one has the empty name."""
        yield "", self
        yield from self.roles.items()


# -- prompts, orchestration, tools -------------------------------------------------------------------------


class Prompts(Record):
    system: str = Field("", description="Jinja2 template of the system message.")
    variables: JsonMap = Field(default_factory=dict, description="More template variables.")


class Orchestration(Block):
    """Other keys belong to the pattern; they may also stand in a mapping under the pattern's name."""

    pattern: str = Field("react", min_length=1, description="Name of the pattern.")
    max_iterations: Count | None = Field(
        None, description="Model calls of one tool loop; absent: 10, for graph and autonomous 50."
    )
    timeout_seconds: Seconds | None = Field(None, description="Seconds a run may take; absent: 120.")


class RateLimit(Record):
    max_calls: Count = Field(description="Calls within the window.")
    window_seconds: Seconds = Field(60.0, description="Length of the window.")


class ApprovalRule(Record):
    """A call is put to a person where both hold; one that is not written holds. One that fails holds too."""

    when: str | None = Field(
        None, min_length=1,
        description="Jinja expression over the call's arguments by their names, e.g. `amount > 100`.",
    )  # fmt: skip
    arguments: JsonMap | None = Field(None, description="JSON Schema that the call's arguments fit.")


#: what a tool of this type does to the world unless it says otherwise (api.md section 4)
EFFECTS: dict[str, Effect] = {
    "internal": "read",
    "rag": "read",
    "webhook": "external",
    "mcp": "external",
    "agent": "external",
}


class ToolBlock(Block):
    """Other keys belong to the tool's type."""

    name: ToolName = Field(description="The name that the model sees.")
    type: str = Field(min_length=1, description="Kind of tool: internal, webhook, rag, mcp, agent …")
    description: str = Field("", description="What the model is told; empty: the tool's own.")
    parameters: JsonMap | None = Field(None, description="JSON Schema of the arguments, type: object.")
    effect: Effect | None = Field(
        None, description="What it does to the world; absent: read for internal and rag, external for others."
    )
    idempotency: Literal["none", "key"] = Field("none", description="key: calls carry an idempotency key.")
    approval: Literal["none", "required"] | ApprovalRule = Field(
        "none", description="required: a person approves each call; a rule: those calls that it names."
    )
    timeout_seconds: Seconds | None = Field(
        None,
        description="Seconds one call may take; absent: 30, for agent tools the run's deadline, for those of "
        "an MCP server what mcp.yaml says.",
    )
    rate_limit: RateLimit | None = Field(None, description="Per agent; absent: none.")
    max_result_tokens: Count | None = Field(None, description="Longer results are cut with a note.")
    trusted: bool | None = Field(
        None,
        description="Whether its answers may be believed; absent: true for agent, current_time, calculator "
        "and write_file, false for others.",
    )

    @property
    def effective_effect(self) -> Effect | None:
        """As written, else the default of its type; None leaves it to the tool."""
        return self.effect or EFFECTS.get(self.type)

    @property
    def deadline_seconds(self) -> float | None:
        """Seconds one call may take; None: what stands behind the tool knows, or the run's own deadline."""
        return self.timeout_seconds or (None if self.type in ("agent", "mcp") else 30.0)


# -- memory ------------------------------------------------------------------------------------------------


class Conversational(Block):
    """Other keys belong to the strategy and to the backend."""

    backend: str = Field(min_length=1, description="Name of the conversation store.")
    strategy: str = Field("sliding_window", min_length=1, description="What part of the history a run sees.")
    ttl: Count | None = Field(None, description="Seconds after the last turn until a session is deleted.")

    _strategy_options: Any = PrivateAttr(default=None)

    @property
    def strategy_options(self) -> Any:
        """The strategy's validated `Options`; `options` are the backend's."""
        return self._strategy_options

    def bind_strategy(self, options: Any) -> None:
        """Called once, at load."""
        self._strategy_options = options


class Semantic(Block):
    """Other keys belong to the backend."""

    backend: str = Field(min_length=1, description="Name of the semantic store.")
    embeddings: Embeddings | None = Field(None, description="Absent: search by words only.")
    top_k: Count = Field(5, description="How many passages are recalled.")
    similarity_threshold: Ratio = Field(0.0, description="Least score of a passage.")
    auto_index: bool = Field(False, description="Whether answers are stored, too.")


class Episodic(Block):
    """Other keys belong to the backend."""

    backend: str = Field(min_length=1, description="Name of the episodic store.")
    max_events: Count = Field(20, description="How many events are recalled.")


class Memory(Record):
    conversational: Conversational | None = Field(None, description="Absent: every run starts anew.")
    semantic: Semantic | None = None
    episodic: Episodic | None = None


# -- policy ------------------------------------------------------------------------------------------------


class Rule(Block):
    """Other keys belong to the rule's type."""

    type: str = Field(min_length=1, description="Name of the guardrail.")


class Guardrails(Record):
    input: tuple[Rule, ...] = Field((), description="In this order, on the query.")
    output: tuple[Rule, ...] = Field((), description="In this order, on the answer.")


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
    wall_seconds: Seconds | None = Field(None, description="Seconds that runs take.")

    def caps(self) -> dict[str, float]:
        """For `RunLedger`: only what is bounded."""
        return {key: value for key, value in self if value is not None}


class Budgets(Record):
    per_run: Budget = Field(Budget.empty(), description="What one run may spend, with all that it starts.")
    per_session: Budget = Field(Budget.empty(), description="What all runs of a session may spend together.")
    per_principal_daily: Budget = Field(
        Budget.empty(), description="What all runs of one principal may spend on one day (UTC)."
    )


class Sessions(Record):
    concurrency: Literal["enqueue", "reject", "interrupt", "merge"] = Field(
        "enqueue", description="What happens to a message while another of its session is answered."
    )
    queue_timeout_seconds: Seconds = Field(60.0, description="How long enqueue waits.")
    merge_window_ms: Count = Field(500, description="Messages within this time are merged.")


class Queue(Record):
    """The agent's own line, beside those of its sessions."""

    priority: int = Field(
        0, ge=-1000, le=1000, description="Of durable runs that wait, those of lower numbers begin first."
    )
    max_running: Count | None = Field(
        None,
        description="Runs that go on at once: durable ones over all workers, others in each process.",
    )
    max_queued: Count = Field(10_000, description="Runs that wait to begin; further ones get 503 overloaded.")


class AgentSpec(Record):
    identity: Identity = Identity.empty()
    model: AgentModel
    prompts: Prompts = Field(default_factory=Prompts)
    orchestration: Orchestration = Field(default_factory=Orchestration)
    tools: tuple[ToolBlock, ...] = ()
    memory: Memory = Memory.empty()
    guardrails: Guardrails = Guardrails.empty()
    permissions: Permissions = Permissions.empty()
    budgets: Budgets = Budgets.empty()
    sessions: Sessions = Sessions.empty()
    queue: Queue = Queue.empty()
    stream: Stream | None = Field(
        None, description="When text is released; absent: token, or final where a rule needs the whole text."
    )
    on_disconnect: Literal["continue", "cancel"] | None = Field(
        None, description="Absent: synchronous runs are cancelled, durable ones go on."
    )
    output_schema: JsonMap | None = Field(None, description="JSON Schema of the answer.")


class AgentManifest(Manifest):
    kind: Literal["Agent"]
    metadata: NamedMetadata
    spec: AgentSpec

    _released: Stream = PrivateAttr(default="token")

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def stream(self) -> Stream:
        """How text is released: as written, else token, or final where a rule needs the whole text."""
        return self._released

    def release(self, stream: Stream) -> None:
        """Called once, at load."""
        self._released = stream
