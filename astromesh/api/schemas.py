"""Bodies of answers, as the OpenAPI description shows them, and what it says of those of requests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from astromesh.types import JsonObject


def inline_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a body that a route reads by itself, without references: they would lead nowhere."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(node: Any) -> Any:
        if isinstance(node, dict) and "$ref" in node:
            return whole(parts[node["$ref"].rpartition("/")[2]])
        if isinstance(node, dict):
            return {key: whole(value) for key, value in node.items()}
        return [*map(whole, node)] if isinstance(node, list) else node

    found: dict[str, Any] = whole(schema)
    return found


class UsageOut(BaseModel):
    """With `"estimated": true` where some of it no provider has counted."""

    model_config = ConfigDict(extra="allow")

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float


class GuardrailOut(BaseModel):
    stage: str
    type: str
    action: str
    count: int


class RunMetadata(BaseModel):
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


class RunOut(BaseModel):
    """The answer of a run."""

    response: str
    agent: str
    session_id: str
    run_id: str
    metadata: RunMetadata


class AttemptOut(BaseModel):
    """One failed try of a model call, with its `usage` where it has cost something."""

    model_config = ConfigDict(extra="allow")

    provider: str
    error: str
    status: int = Field(description="HTTP status of the provider's answer; 0: there was none.")


class FailureOut(BaseModel):
    code: str
    detail: str


class DecidedOut(BaseModel):
    """What a person decided. `arguments`: what was asked about; `edited`: what was called with instead."""

    kind: str
    name: str = Field(description="Of the tool or node.")
    agent: str = Field(description="That asked: the run's own, or one nested in it.")
    arguments: Any
    asked_at: float | None
    decision: str
    by: str
    decided_at: float | None
    edited: Any = None
    answer: Any = None


class RunStateOut(BaseModel):
    """A run, whether it goes on or has ended."""

    run_id: str
    agent: str
    session_id: str
    status: Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
    created_at: str | None
    finished_at: str | None
    result: dict[str, Any] | None = Field(
        description="The answer; of a run that failed or was cancelled, `response` is what it had said."
    )
    error: FailureOut | None
    usage: UsageOut
    attempts: list[AttemptOut]
    waiting_for: Any | None
    decisions: list[DecidedOut] | None = Field(
        None, description="Of a durable run asked for by itself: what people decided in it."
    )


class RunsOut(BaseModel):
    runs: list[RunStateOut]
    usage: UsageOut = Field(description="Of all runs that fit, with those that they started.")


class ErasedOut(BaseModel):
    principal: str
    erased: int = Field(description="Sessions, passages, events and runs that were deleted.")


class TurnOut(BaseModel):
    model_config = ConfigDict(extra="allow")

    seq: int
    role: str
    content: str
    created_at: str


class HistoryOut(BaseModel):
    agent: str
    session_id: str
    turns: list[TurnOut]
    next: int | None = Field(description="Pass as `after` for the following page; null on the last one.")


class SessionOut(BaseModel):
    session_id: str
    turns: int
    created_at: str
    updated_at: str


class SessionsOut(BaseModel):
    agent: str
    sessions: list[SessionOut]
    next: str | None


#: a problem document (RFC 9457); a model here would be compiled once for each status of each route
_PROBLEM_SCHEMA: JsonObject = {
    "title": "Problem",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "trace_id": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code", "trace_id"],
}
_PROBLEM = {"content": {"application/problem+json": {"schema": _PROBLEM_SCHEMA}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route's description says of its errors."""
    return dict.fromkeys(statuses, _PROBLEM)


def request_body(body: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What the description of a route says that reads its body itself (`api.body.read`)."""
    content = {"application/json": {"schema": body.model_json_schema()}}
    return {"requestBody": {"required": required, "content": content}}
