"""Models of response bodies, and other parts of the OpenAPI description."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from astromesh.durable.base import RunStatus
from astromesh.types import JsonObject


class Described(BaseModel):
    """The body of a response, for the description. Its validator is built when that is made, if at all."""

    model_config = ConfigDict(defer_build=True)


class LinksOut(Described):
    self: str
    events: str
    cancel: str


class UsageOut(Described):
    """`reasoning_tokens` and `cache_write_tokens` are left out if they are 0.

    With `"estimated": true` where no provider has counted a part of it.
    """

    model_config = ConfigDict(extra="allow")

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float
    reasoning_tokens: int = Field(0, description="Output that the model has thought and not written.")
    cache_write_tokens: int = Field(0, description="Input that the service has written to its cache.")


class GuardrailOut(Described):
    stage: str
    type: str
    action: str
    count: int


class NodeErrorOut(Described):
    """A failed node of the agent's graph, also where the graph went on."""

    node: str = Field(description="Its path: outer/inner.")
    type: str = Field(description="The class of the exception.")
    message: str


class NodeVisitsOut(Described):
    """A node of the agent's graph that has run. Items and concurrent calls of one node count together."""

    node: str = Field(description="Its path: outer/inner.")
    times: int
    seconds: float = Field(description="Of all its executions, with the nodes in it.")


class RunMetadata(Described):
    model_config = ConfigDict(extra="allow")

    provider: str
    model: str
    tokens_used: int
    usage: UsageOut
    latency_ms: float
    tools_called: list[str]
    pattern: str
    iterations: int
    stop_reason: str
    trace_id: str
    guardrails: list[GuardrailOut]
    errors: list[NodeErrorOut]
    nodes_visited: list[NodeVisitsOut]


class CitationOut(Described):
    """A passage that an answer draws on."""

    document: str
    title: str
    passage: str
    start: int = Field(description="Offset of the passage in the document's text.")
    end: int
    score: float = Field(description="As the search returned it, from 0 to 1.")
    url: str = Field(description="The document's own address, else its path on this server.")
    spans: list[list[int]] = Field(description="Start and end of each sentence of `response` that cites it.")


class RunOut(Described):
    """The answer of a run."""

    response: str
    agent: str
    session_id: str
    run_id: str
    metadata: RunMetadata
    output: Any = Field(None, description="The JSON value of the answer; only of agents with output_schema.")
    citations: list[CitationOut] = Field(
        default=[], description="What the answer draws on; only of agents with knowledge."
    )


class AttemptOut(Described):
    """A failed attempt of a model call, with its `usage` where it has a cost."""

    model_config = ConfigDict(extra="allow")

    provider: str
    error: str
    status: int = Field(description="HTTP status of the provider's response; 0: there was none.")


class FailureOut(Described):
    code: str
    detail: str


class DecidedOut(Described):
    """A person's decision. `arguments`: those in question; `edited`: those of the call in their place."""

    kind: str
    name: str = Field(description="Name of the tool or node.")
    agent: str = Field(description="Agent that asks: the run's own, or a nested one.")
    arguments: Any
    asked_at: float | None
    decision: str
    by: str
    decided_at: float | None
    edited: Any = None
    answer: Any = None
    note: str = ""


class ForkedFromOut(Described):
    """The run that a run was forked from."""

    run_id: str
    step: int
    edit: str | None = Field(description="The kind of the edit; null: nothing was edited.")


class RunStateOut(Described):
    """A run, active or ended."""

    # the keys of `run_json` (durable/run_registry.py), and `decisions`: a test compares them

    run_id: str
    agent: str
    session_id: str
    status: RunStatus
    created_at: str | None
    finished_at: str | None
    result: dict[str, Any] | None = Field(
        description="The answer; of a failed or cancelled run, `response` is its text so far."
    )
    error: FailureOut | None
    usage: UsageOut
    attempts: list[AttemptOut]
    waiting_for: Any | None
    metadata: dict[str, Any] = Field({}, description="As the request gave it.")
    tags: list[str] = []
    not_before: str | None = Field(None, description="Only of a run that was accepted for later.")
    forked_from: ForkedFromOut | None = Field(None, description="Only of a fork.")
    decisions: list[DecidedOut] | None = Field(
        None, description="What people decided; only for a single durable run."
    )


class RunsOut(Described):
    runs: list[RunStateOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")
    usage: UsageOut = Field(description="Of all matching runs, nested ones included.")


class ErasedOut(Described):
    principal: str
    erased: int = Field(description="Deleted sessions, passages, facts, events and runs.")


class FactOut(Described):
    """A sentence about a principal that an agent has learned from a message."""

    model_config = ConfigDict(extra="ignore")

    id: str = Field(description="The same for the same sentence with every agent.")
    agent: str
    content: str
    since: str = Field(description="Date of the first statement.")
    stated: str = Field(description="Date of the newest statement.")
    by: Literal["rules", "model"] = Field(description="What has found it.")
    said: str = Field("", description="The sentence that states it; empty if the model has found it.")
    session_id: str = ""
    run_id: str = ""


class FactsOut(Described):
    principal: str
    facts: list[FactOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class TurnOut(Described):
    model_config = ConfigDict(extra="allow")

    seq: int
    role: str
    content: str
    created_at: str


class HistoryOut(Described):
    agent: str
    session_id: str
    turns: list[TurnOut]
    next: str | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


class SessionOut(Described):
    session_id: str
    principal: str
    turns: int
    created_at: str
    updated_at: str


class SessionsOut(Described):
    agent: str
    sessions: list[SessionOut]
    next: str | None


# -- what routes answer with plain records -----------------------------------------------------------------
#
# Routes return these as they are; the models describe them. Fields are absent where they do not apply.


class _Described(Described):
    model_config = ConfigDict(extra="allow")


class AgentOut(_Described):
    """An agent; one with faults has only its name, the status `unavailable` and its errors."""

    name: str
    status: Literal["ready", "degraded", "unavailable"]
    version: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    display_name: str = ""
    description: str = ""
    pattern: str = ""
    missing: list[str] = Field([], description="Why tools are missing.")
    errors: list[str] = []


class _Page(_Described):
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class AgentsOut(_Page):
    agents: list[AgentOut]


class ToolOut(_Described):
    """A tool in function-calling form."""

    name: str
    effect: str
    type: str
    function: dict[str, Any]
    agents: list[str]


class ToolsOut(_Page):
    tools: list[ToolOut]


class ProviderOut(_Described):
    name: str
    provider: str
    model: str
    circuit: str
    failures_in_a_row: int
    latency_ms: float
    calls: int
    failures: int
    last_error: str


class ProvidersOut(_Page):
    providers: list[ProviderOut]


class WorkflowOut(_Described):
    """A workflow; one with faults has only its name, the status `broken` and its errors."""

    name: str
    status: Literal["ready", "broken"]
    errors: list[str] = []


class WorkflowsOut(_Page):
    workflows: list[WorkflowOut]


class TraceOut(_Described):
    trace_id: str
    run_id: str
    agent: str
    status: RunStatus
    start: float = Field(description="Seconds since the epoch.")
    duration_ms: float


class TracesOut(_Page):
    traces: list[TraceOut]


class SpanOut(_Described):
    span_id: str
    parent_id: str | None
    name: str
    start: float = Field(description="Seconds since the epoch.")
    duration_ms: float
    status: Literal["ok", "error"]
    attributes: dict[str, Any]


class TraceSpansOut(_Described):
    trace_id: str
    spans: list[SpanOut]


class ModelOut(_Described):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsOut(_Described):
    object: Literal["list"]
    data: list[ModelOut]


class ResponseOut(_Described):
    """A response of the Responses API; its specification names the other fields."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


class CompactionOut(_Described):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class ResponseEvent(_Described):
    """An event of the Responses API; its specification names the other fields of each type."""

    type: str
    sequence_number: int


class AguiEvent(_Described):
    """An event of AG-UI; its specification names the other fields of each type."""

    type: str
    timestamp: int = 0


class DeletedOut(_Described):
    """A response that is deleted."""

    id: str
    object: Literal["response"]
    deleted: bool


class ItemsOut(_Described):
    """A page of input items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ChatFunctionOut(_Described):
    name: str = ""
    arguments: str = ""


class ChatCallOut(_Described):
    """A call of a tool of the client. In a stream, the first piece of a call has its id and its name."""

    id: str = ""
    type: Literal["function"] = "function"
    function: ChatFunctionOut
    index: int = 0


class ChatMessageOut(_Described):
    role: Literal["assistant"] = "assistant"
    content: str | None = None
    tool_calls: list[ChatCallOut] = []


FinishReason = Literal["stop", "length", "content_filter", "tool_calls"]


class ChatChoiceOut(_Described):
    index: int
    message: ChatMessageOut
    finish_reason: FinishReason


class ChatUsageOut(_Described):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletionOut(_Described):
    """The answer of an agent in the form that OpenAI clients read."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceOut]
    usage: ChatUsageOut
    astromesh: dict[str, Any] = Field(description="The ids and the metadata of the run.")


class ChatDeltaOut(_Described):
    index: int
    delta: ChatMessageOut
    finish_reason: FinishReason | None


class ChatCompletionChunk(_Described):
    """A piece of a streamed answer. The last event of the stream has the text `[DONE]` instead."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatDeltaOut]
    usage: ChatUsageOut | None = None
    astromesh: dict[str, Any] = {}


class LiveOut(_Described):
    status: Literal["ok"]
    version: str


class ReadyOut(_Described):
    status: Literal["ready", "not_ready", "shutting_down"]
    checks: dict[str, str]
    agents_without_model: list[str]
    agents_unavailable: list[str]


class ReceivedOut(_Described):
    status: Literal["received"]
    challenge: str = Field("", description="Only where the messenger asks for it: Slack.")


def answers(body: type[BaseModel], status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that answers with a plain record of this form."""
    return {status: {"model": body}}


#: where the description has a schema
COMPONENT = "#/components/schemas/{model}"
#: a problem document (RFC 9457), the component `Problem` of the description
PROBLEM_SCHEMA: JsonObject = {
    "title": "Problem",
    "description": "An error (RFC 9457). Some errors have more fields.",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stays the same; programs decide by it."},
        "trace_id": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code", "trace_id"],
}
_PROBLEM = {"content": {"application/problem+json": {"schema": {"$ref": COMPONENT.format(model="Problem")}}}}
TEXT: JsonObject = {"text/plain": {"schema": {"type": "string"}}}


#: a reader of events that has them all
STREAM_COMPLETE: dict[str, Any] = {"description": "The stream has ended, and the client has every event."}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that answers with these errors."""
    return dict.fromkeys(statuses, _PROBLEM)


def event_stream(
    events: Literal["RunEvents", "TaskEvents", "ResponseEvents", "ChatCompletionChunks", "AguiEvents"],
) -> JsonObject:
    """Returns the content of a response of server-sent events (astromesh/api/openapi.py)."""
    return {"text/event-stream": {"schema": {"$ref": COMPONENT.format(model=events)}}}


def request_body(body: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Returns the `openapi_extra` of a route that reads its body itself (`requests.read_body`).

    The model stands for its schema until the description is made (astromesh/api/openapi.py).
    """
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": body}}}}


def schema_of(type: Any) -> JsonObject:
    """Returns the schema of a type as FastAPI writes it, with the schemas that it refers to in `$defs`."""

    def written(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: written(v) for k, v in node.items() if k != "default" or v is not None}
        return [*map(written, node)] if isinstance(node, list) else node

    found: JsonObject = written(TypeAdapter(type).json_schema(ref_template=COMPONENT))
    return found
