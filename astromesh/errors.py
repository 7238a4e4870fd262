"""Every exception of astromesh. HTTP statuses live in `api/errors.py` alone.

    AstromeshError
    ├── ConfigError            the operator must change a file
    │   ├── InvalidManifest    (file, line, column, key)
    │   ├── InvalidConfiguration     InvalidWorkflow (ManifestLoadError, SchemaValidationError, …)
    │   ├── UnknownPlugin
    │   ├── MissingExtra
    │   ├── MissingKey         a provider's key is not set: the provider is skipped
    │   ├── CircularAgentReference   (also a ValueError, as document 001 says)
    │   ├── TemplateFailed
    │   └── InvalidGraph
    ├── RequestError           the caller must change the request
    │   ├── NotFound           AgentNotFoundError, SessionNotFound, RunNotFound, …
    │   ├── InvalidInput       PayloadTooLarge, MalformedRequest, RequestTimeout, GuardrailBlocked,
    │   │                      IdempotencyConflict
    │   ├── Unauthorized, Forbidden, RateLimited
    │   └── Conflict           SessionBusy, Interrupted, NotWaiting, NotDurable, ApprovalRequired, EventsGone,
    │                          LeaseLost, Divergence
    ├── UpstreamError          someone else's service
    │   ├── NetError           NetTimeout, NetUnreachable, AnswerTooLarge, AddressForbidden: what `net` raises
    │   ├── ProviderError      ProviderTimeout, ProviderRateLimited, ProviderUnauthorized, ProviderRejected,
    │   │                      ProviderUnavailable
    │   ├── AllProvidersFailed
    │   ├── InvalidOutput
    │   ├── ToolError          ToolTimeout, ToolFailed, ToolBusy, OutcomeUnknown, ToolDenied,
    │   │                      InvalidToolCall, ToolPermissionError, ToolRateLimitError
    │   ├── ChannelError       ChannelRejected, OutsideWindow: what a messenger answers
    │   └── StoreError         StoreUnavailable
    ├── Unavailable            the server cannot take it now: AgentUnavailable, Overloaded, QueueFull, …
    ├── LimitReached           a bound that was set: IterationsExhausted, BudgetExhausted, DeadlineExceeded
    └── GraphError             inside a graph's run, never out of it: NodeFailed, OutputRefused, GraphStopped

Every class has a stable `code`, the one that clients see in problem documents and error events. A message is
one sentence that says what is wrong and what to do; it never holds a secret or another caller's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class AstromeshError(Exception):
    """Root of the tree.

    `run_id` and `trace_id` are set by the runtime where the error ended a run, `node` is where in its graph.
    """

    code: ClassVar[str] = "internal"
    run_id: str = ""
    trace_id: str = ""
    node: str = ""


# -- the operator must change a file -----------------------------------------------------------------------


class ConfigError(AstromeshError):
    """The configuration is wrong."""

    code = "config_error"


class InvalidManifest(ConfigError):
    """One fault in one file.

    Args:
        message: what is wrong, without the place.
        file: path as the operator named it.
        line, column: 1-based; 0 where the fault has no place in the file.
        key: dotted path of the key, e.g. `spec.model.primary.timeout`.
        hint: what to do, e.g. `did you mean 'timeout'?`.
        rule: stable name of the rule that is broken, e.g. `cycle`; empty where only the message says.
    """

    code = "invalid_manifest"

    def __init__(  # noqa: PLR0913 (one keyword for each thing that a fault says)
        self,
        message: str,
        *,
        file: str = "",
        line: int = 0,
        column: int = 0,
        key: str = "",
        hint: str = "",
        rule: str = "",
    ) -> None:
        self.message, self.file, self.line, self.column, self.key, self.hint, self.rule = (
            message,
            file,
            line,
            column,
            key,
            hint,
            rule,
        )
        super().__init__(str(self))

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p)
        where = ": ".join(p for p in (place, self.key) if p)
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}: {self.message}{hint}" if where else f"{self.message}{hint}"


class InvalidConfiguration(ConfigError):
    """All faults of a load at once.

    Args:
        faults: every fault found, in file and line order.
    """

    code = "invalid_manifest"

    def __init__(self, faults: Sequence[InvalidManifest]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(f) for f in self.faults))


class InvalidWorkflow(InvalidConfiguration):
    """A workflow's folder cannot run; all faults at once, whatever their type (document 004, section 4)."""

    code = "invalid_workflow"


class ManifestLoadError(InvalidWorkflow):
    """A file is missing, cannot be read, or refers to what does not exist."""

    code = "manifest_load_error"


class SchemaValidationError(InvalidWorkflow):
    """A file holds keys or values that its schema does not allow."""

    code = "schema_validation_error"


class DAGValidationError(InvalidWorkflow):
    """The files are sound by themselves, but their nodes and edges are no workflow."""

    code = "dag_validation_error"


class UnknownPlugin(ConfigError):
    """A name that no installed plugin has; the message lists the known ones."""

    code = "unknown_plugin"


class MissingExtra(ConfigError):
    """An optional dependency is not installed; the message says what to install."""

    code = "missing_extra"


class MissingKey(ConfigError):
    """A provider's key is not set. The provider is skipped, `doctor` shows it, and its agent still runs."""

    code = "missing_key"


class CircularAgentReference(ConfigError, ValueError):
    """Agents call each other in a circle; the message prints the circle (document 001)."""

    code = "circular_agent_reference"


class TemplateFailed(ConfigError):
    """A template that was sound at load failed on the values of a run; the message says where and how."""

    code = "template_failed"


class InvalidGraph(ConfigError):
    """A graph or workflow that cannot run.

    Args:
        problems: every problem found.
    """

    code = "invalid_graph"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


# -- the caller must change the request --------------------------------------------------------------------


class RequestError(AstromeshError):
    """The caller must change the request."""

    code = "invalid_input"


class NotFound(RequestError):
    """What was asked for does not exist, or not for this caller."""

    code = "not_found"


class AgentNotFoundError(NotFound):
    code = "agent_not_found"

    def __init__(self, agent: str, hint: str = "") -> None:
        self.agent = agent
        super().__init__(f"There is no agent named {agent!r}.{' ' + hint if hint else ''}")


class SessionNotFound(NotFound):
    code = "session_not_found"


class RunNotFound(NotFound):
    code = "run_not_found"


class PipelineNotFound(NotFound):
    code = "pipeline_not_found"


class ChannelNotFound(NotFound):
    """No such channel is set up in channels.yaml."""

    code = "channel_not_found"


class TraceNotFound(NotFound):
    code = "trace_not_found"


class TaskNotFound(NotFound):
    code = "task_not_found"


class WorkflowNotFound(NotFound):
    code = "workflow_not_found"


class ApprovalNotFound(NotFound):
    code = "approval_not_found"


class InvalidInput(RequestError):
    code = "invalid_input"


class PayloadTooLarge(RequestError):
    code = "payload_too_large"


class MalformedRequest(RequestError):
    """What came is not HTTP."""

    code = "malformed_request"


class RequestTimeout(RequestError):
    """Head or body of a request did not come in time."""

    code = "request_timeout"


class IdempotencyConflict(RequestError):
    code = "idempotency_conflict"


class GuardrailBlocked(RequestError):
    """An input rule refused the query, or a guard of the agent's graph what was to be answered.

    Args:
        guardrail: the rule's type, e.g. `topic_filter`; the guard's name.
        message: the configured rejection message, shown to the caller.
        actions: what the rules did, `{stage, type, action, count}` each, the refusal last.
    """

    code = "guardrail_blocked"

    def __init__(self, guardrail: str, message: str, actions: Sequence[Mapping[str, object]] = ()) -> None:
        self.guardrail, self.actions = guardrail, tuple(actions)
        super().__init__(message)


class Unauthorized(RequestError):
    code = "unauthorized"


class Forbidden(RequestError):
    code = "forbidden"


class RateLimited(RequestError):
    """Args: retry_after: seconds until the next try makes sense."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Conflict(RequestError):
    """The request does not fit the present state."""

    code = "conflict"


class SessionBusy(Conflict):
    code = "session_busy"


class Interrupted(Conflict):
    code = "interrupted"


class NotWaiting(Conflict):
    code = "not_waiting"


class NotDurable(Conflict):
    code = "not_durable"


class ApprovalRequired(Conflict):
    """The run waits for a person.

    Args:
        run_id: which one; it goes on when they have decided.
        waiting_for: what they are asked.
    """

    code = "approval_required"

    def __init__(
        self, message: str, run_id: str = "", waiting_for: Mapping[str, object] | None = None
    ) -> None:
        self.run_id, self.waiting_for = run_id, waiting_for
        super().__init__(message)


class RunFailed(AstromeshError):
    """A durable run that somebody waited for has failed, possibly in another process.

    Args:
        code: of what ended it.
        more: what else was said of it, e.g. which guardrail it was.
    """

    def __init__(self, code: str, message: str, more: Mapping[str, object] | None = None) -> None:
        self.code = code  # type: ignore[misc]
        self.more = dict(more or {})
        self.retry_after = self.more.pop("retry_after", 0.0)
        super().__init__(message)


class LeaseLost(Conflict):
    """Another worker has taken over what this one was doing; nothing that this one does counts any more."""

    code = "lease_lost"


class Divergence(Conflict):
    """A run that was taken up again does not do what its log says it did; the message names the place."""

    code = "divergence"


class EventsGone(RequestError):
    code = "events_gone"


# -- someone else's service --------------------------------------------------------------------------------


class UpstreamError(AstromeshError):
    """Another service failed; the next try may work."""

    code = "upstream_error"


class NetError(UpstreamError):
    """An outgoing HTTP call failed without an answer: no connection, a cut or unreadable one.

    The message names the host, never the path, the query or a header: these may hold secrets. Adapters turn
    it into an error of their own seam.
    """

    code = "network_error"


class NetTimeout(NetError):
    code = "network_timeout"


class NetUnreachable(NetError):
    """There was no connection: nothing was sent, so that the call may be made again."""

    code = "network_unreachable"


class NetConnectTimeout(NetTimeout, NetUnreachable):
    """Nobody took the connection in time."""

    code = "network_timeout"


class AnswerTooLarge(NetError):
    code = "answer_too_large"


class AddressForbidden(NetError):
    """The forgery guard refused an address that a model, a user, a document or a redirect chose."""

    code = "address_forbidden"


class ProviderError(UpstreamError):
    """A model call failed.

    Args:
        message: what happened, without keys or prompts.
        provider: name as configured, e.g. `openai/gpt-4o-mini`.
        status: HTTP status of the answer, 0 where there was none.
        retry_after: seconds the provider asked to wait, 0 where it did not say.
        retryable: whether another try at the same provider can help, where that differs from the class; the
            router asks the next one in any case.
        quote: what the service itself said, whole; it is shown behind the message, cut. It may repeat what
            the service was sent.
    """

    code = "provider_error"
    #: characters of a quote that are shown
    longest_quote: ClassVar[int] = 300
    retryable: bool = True
    #: whether the circuit breaker counts it (what the caller caused never opens it)
    counts: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int = 0,
        retry_after: float = 0.0,
        retryable: bool = True,
        quote: str = "",
    ) -> None:
        self.provider, self.status, self.retry_after = provider, status, retry_after
        self.quote = quote
        if not retryable:
            self.retryable = False
        super().__init__(message)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}: {self.quote[: self.longest_quote]}" if self.quote else message


class ProviderTimeout(ProviderError):
    code = "provider_timeout"


class ProviderUnavailable(ProviderError):
    """No connection, a cut answer, 5xx, or an answer that is not of the wire format."""

    code = "provider_unavailable"


class ProviderRateLimited(ProviderError):
    code = "provider_rate_limited"


class ProviderUnauthorized(ProviderError):
    """401 or 403: the key is wrong. Another provider may do; the same one will not."""

    code = "provider_unauthorized"
    retryable = False


class ProviderRejected(ProviderError):
    """400, 413, 422 and their like: this request is wrong for this model and stays wrong."""

    code = "provider_rejected"
    retryable = False
    counts = False


class AllProvidersFailed(UpstreamError):
    """No provider answered.

    Args:
        failures: what each tried provider said, in order.
        begun: the last of them had begun to answer: its text has left, so that nobody else was asked.
    """

    code = "all_providers_failed"

    def __init__(self, failures: Sequence[ProviderError], *, begun: bool = False) -> None:
        self.failures, self.begun = tuple(failures), begun
        tried = "; ".join(f"{f.provider or 'provider'}: {f}" for f in self.failures)
        said = "The model's answer broke off." if begun else "No model provider answered."
        super().__init__(f"{said} {tried or 'None is configured or all circuits are open.'}")


class InvalidOutput(UpstreamError):
    """The model's answer does not fit the agent's output schema, also after its repair turn."""

    code = "invalid_output"


class ToolError(UpstreamError):
    """A tool call failed. It is shown to the model as a tool result and does not end the run."""

    code = "tool_error"


class ToolTimeout(ToolError):
    code = "tool_timeout"


class ToolFailed(ToolError):
    code = "tool_failed"


class ToolBusy(ToolError):
    """The call was not begun: no thread is free, or too many calls of the same hang. Nothing has happened."""

    code = "tool_busy"


class OutcomeUnknown(ToolError):
    """The process died while the tool was called: what it does may have happened, and is not repeated."""

    code = "unknown_outcome"


class ToolDenied(ToolError):
    """A person refused the call, or nobody allowed it in time."""

    code = "tool_denied"


class InvalidToolCall(ToolError):
    """Unknown tool, arguments that are no JSON or do not fit the schema."""

    code = "invalid_tool_call"


class ToolPermissionError(ToolError):
    code = "tool_not_permitted"

    def __init__(self, tool: str, agent: str) -> None:
        super().__init__(f"The agent {agent!r} may not use the tool {tool!r}.")


class ToolRateLimitError(ToolError):
    code = "tool_rate_limited"

    def __init__(self, tool: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        wait = f" Try again in {retry_after:.0f} s." if retry_after >= 1 else ""
        super().__init__(f"The tool {tool!r} was called too often.{wait}")


class StoreError(UpstreamError):
    """A database or file store failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store is locked, full or gone; what was accepted is not lost. Answered 503 with Retry-After."""

    code = "overloaded"
    retry_after: ClassVar[float] = 1.0


class ChannelError(UpstreamError):
    """A messenger did not take a message; another try may work.

    Args:
        retry_after: seconds the messenger asked to wait, 0 where it did not say.
    """

    code = "channel_error"

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ChannelRejected(ChannelError):
    """The messenger will never take this message."""

    code = "channel_rejected"


class OutsideWindow(ChannelRejected):
    """The person has not written for so long that only a template reaches them."""

    code = "channel_outside_window"


# -- the server cannot take it now -------------------------------------------------------------------------


class Unavailable(AstromeshError):
    code = "overloaded"
    retry_after: ClassVar[float] = 1.0


class AgentUnavailable(Unavailable):
    """The agent's manifest has faults, or what it needs could not be opened; the others run.

    Args:
        passing: a store is away; the agent works as soon as that is back.
    """

    code = "agent_unavailable"

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class WorkflowUnavailable(Unavailable):
    """The workflow's manifests have faults; the others run."""

    code = "workflow_unavailable"


class Overloaded(Unavailable):
    code = "overloaded"


class QueueFull(Unavailable):
    """As many Tasks wait as may; the message says how many."""

    code = "queue_full"


class ShuttingDown(Unavailable):
    code = "shutting_down"


# -- a bound that was set ----------------------------------------------------------------------------------


class LimitReached(AstromeshError):
    code = "limit_reached"


class IterationsExhausted(LimitReached):
    code = "iterations_exhausted"


class BudgetExhausted(LimitReached):
    """Args: retry_after: seconds until the budget renews, 0 where it never does."""

    code = "budget_exhausted"

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class DeadlineExceeded(LimitReached):
    code = "deadline_exceeded"


# -- inside a graph's run ----------------------------------------------------------------------------------


class GraphError(AstromeshError):
    """What the graph engine raises between its own parts; a run answers it as a result."""


class NodeFailed(GraphError):
    """A node that another one needed.

    Args:
        path: where in the run's tree it stands.
        error: what its result said.
        cause: what it raised, where it raised.
        stop_reason: of a graph in it that could not go on: `stuck_node`, `unknown_node`.
    """

    code = "node_failed"

    def __init__(
        self, path: str, error: str, cause: BaseException | None = None, stop_reason: str = ""
    ) -> None:
        self.path, self.error, self.cause, self.stop_reason = path, error, cause, stop_reason
        super().__init__(f"{path}: {error}")


class OutputRefused(GraphError):
    """A guard refused what a node made; another try may pass. Out of the run it is a GuardrailBlocked.

    Args:
        guard: the name of the first that refused.
        error: what the node's result says.
    """

    code = "guardrail_blocked"

    def __init__(self, guard: str, error: str) -> None:
        self.guard = guard
        super().__init__(error)


class GraphStopped(GraphError):
    """The run is being stopped: no further node begins."""

    code = "graph_stopped"
