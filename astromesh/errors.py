"""Every exception of astromesh, with the code, the HTTP status and the visibility of each.

    AstromeshError
    ├── ConfigError            the operator must change a file
    │   ├── InvalidManifest    (file, line, column, key)
    │   ├── InvalidConfiguration     InvalidWorkflow (ManifestLoadError, SchemaValidationError, …)
    │   ├── UnknownPlugin
    │   ├── MissingExtra
    │   ├── MissingKey         a provider's key is not set: the provider is skipped
    │   ├── CircularAgentReference   (also a ValueError, as in document 001)
    │   ├── TemplateFailed
    │   └── InvalidGraph
    ├── RequestError           the caller must change the request
    │   ├── NotFound           AgentNotFoundError, SessionNotFound, RunNotFound, …
    │   ├── InvalidInput       PayloadTooLarge, MalformedRequest, RequestTimeout, MethodNotAllowed,
    │   │                      GuardrailBlocked, IdempotencyConflict, Refused, ToolNameTaken,
    │   │                      NotOverridable
    │   ├── Unauthorized, Forbidden, RateLimited
    │   └── Conflict           SessionBusy, Interrupted, NotWaiting, NotDurable, ApprovalRequired, EventsGone,
    │                          LeaseLost, Divergence
    ├── UpstreamError          another service failed
    │   ├── NetError           NetTimeout, NetUnreachable, AnswerTooLarge, AddressForbidden: raised by `net`
    │   ├── ProviderError      ProviderTimeout, ProviderRateLimited (ProviderPaused), ProviderUnauthorized,
    │   │                      ProviderRejected, ProviderUnavailable
    │   ├── AllProvidersFailed ProvidersRateLimited
    │   ├── InvalidOutput, EmptyAnswer
    │   ├── ToolError          ModelRetry, ToolTimeout, ToolFailed, ToolBusy, OutcomeUnknown, ToolDenied,
    │   │                      InvalidToolCall, ToolPermissionError, ToolRateLimitError,
    │   │                      ToolCallLimitReached
    │   ├── ChannelError       ChannelRejected, OutsideWindow: raised by messengers
    │   └── StoreError         StoreUnavailable
    ├── Unavailable            the server cannot serve now: AgentUnavailable, Overloaded, QueueFull, …
    ├── ForeignError           code in a worker process raised: ProcessDied
    ├── RunCrashed             processes died while they executed a durable run
    ├── LimitReached           a configured limit: IterationsExhausted, BudgetExhausted, DeadlineExceeded,
    │                          AnswerTooLong, ClientToolExpired
    └── GraphError             a run of a graph did not complete: NodeFailed; inside the run alone:
                               OutputRefused, GraphStopped

This module is the only table of errors. A class states its stable `code` (for logs, metrics and events), its
HTTP `status`, and whether it is `public`: clients see the code and the message of a public error, and
`internal` in place of any other. A message is one or two sentences that say what is wrong and what to do. It
never contains a secret or another caller's text.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from opcode import opmap
from types import TracebackType
from typing import Any, ClassVar

#: message of a cancelled `append` that is certain to write nothing
NOT_DONE = "not done"


class AstromeshError(Exception):
    """Root of the tree.

    The runtime sets `run_id` and `trace_id` if the error ended a run, and `node` if a node of its graph
    failed.

    Attributes:
        code: stable name of the error.
        status: HTTP status; 500 for every error that is not public.
        public: whether clients see the code and the message.
        public_code: what clients see instead of `code`; empty for `code` itself.
    """

    code: str = "internal"
    status: int = 500
    public: bool = False
    public_code: str = ""
    run_id: str = ""
    trace_id: str = ""
    node: str = ""

    def __init_subclass__(
        cls, *, code: str = "", status: int = 0, public: bool | None = None, public_code: str = ""
    ) -> None:
        """Takes what differs from the base as keywords: `class X(NotFound, code="x_not_found")`."""
        if code:
            cls.code = code
        if status:
            cls.status = status
        if public is not None:
            cls.public = public
        if public_code:
            cls.public_code = public_code
        if "code" in cls.__dict__:
            _CLASSES.setdefault(cls.code, cls)


#: code -> the first class that has it; classes of one code have one status
_CLASSES: dict[str, type[AstromeshError]] = {AstromeshError.code: AstromeshError}


def error_class(code: str) -> type[AstromeshError]:
    """Returns the class of a code, e.g. of a `run.failed` event; `AstromeshError` for an unknown code."""
    return _CLASSES.get(code, AstromeshError)


def error_classes() -> tuple[type[AstromeshError], ...]:
    """Returns one class for each code."""
    return tuple(_CLASSES.values())


# -- the operator must change a file -----------------------------------------------------------------------


class ConfigError(AstromeshError, code="config_error"):
    """The configuration is wrong."""


class InvalidManifest(ConfigError, code="invalid_manifest"):
    """One fault in one file.

    Args:
        message: what is wrong, without the place.
        file: path as the operator wrote it.
        line, column: 1-based; 0 if the fault has no place in the file.
        key: dotted path of the key, e.g. `spec.model.primary.timeout`.
        hint: what to do, as a sentence, e.g. "Did you mean `timeout`?".
        rule: stable name of the broken rule, e.g. `cycle`; empty if there is none.
    """

    def __init__(  # noqa: PLR0913 (one keyword for each part of a fault)
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
        text = f"{self.message.rstrip('.')}. {self.hint}" if self.hint else self.message
        return f"{where}: {text}" if where else text


class InvalidConfiguration(ConfigError, code="invalid_manifest"):
    """All faults of a load at once.

    Args:
        faults: every fault found, in file and line order.
    """

    def __init__(self, faults: Sequence[InvalidManifest]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(f) for f in self.faults))


class InvalidWorkflow(InvalidConfiguration, code="invalid_workflow"):
    """A workflow's folder is not valid; all faults at once, of every type (document 004, section 4)."""


class ManifestLoadError(InvalidWorkflow, code="manifest_load_error"):
    """A file is missing, cannot be read, or refers to something that does not exist."""


class SchemaValidationError(InvalidWorkflow, code="schema_validation_error"):
    """A file holds keys or values that its schema does not allow."""


class DAGValidationError(InvalidWorkflow, code="dag_validation_error"):
    """Each file is valid, but the nodes and edges do not form a workflow."""


class UnknownPlugin(ConfigError, code="unknown_plugin"):
    """No installed plugin has this name; the message lists the known names."""


class MissingExtra(ConfigError, code="missing_extra"):
    """An optional dependency is not installed; the message says what to install."""


class MissingKey(ConfigError, code="missing_key"):
    """A provider's key is not set. The provider is skipped, `doctor` reports it, and its agent still runs."""


class CircularAgentReference(ConfigError, ValueError, code="circular_agent_reference"):
    """Agents call each other in a circle; the message shows the circle (document 001)."""


class TemplateFailed(ConfigError, code="template_failed"):
    """A template that was valid at load failed on the values of a run; the message says where and how."""


class InvalidGraph(ConfigError, code="invalid_graph"):
    """A graph or workflow that cannot run.

    Args:
        problems: every problem found.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


# -- the caller must change the request --------------------------------------------------------------------


class RequestError(AstromeshError, code="invalid_input", status=422, public=True):
    """The caller must change the request."""


class NotFound(RequestError, code="not_found", status=404):
    """The requested object does not exist, or the caller may not see it."""


class AgentNotFoundError(NotFound, code="agent_not_found"):
    def __init__(self, agent: str, hint: str = "") -> None:
        self.agent = agent
        super().__init__(f"There is no agent named {agent!r}.{' ' + hint if hint else ''}")


class SessionNotFound(NotFound, code="session_not_found"): ...


class RunNotFound(NotFound, code="run_not_found"): ...


class CallbackNotFound(NotFound, code="callback_not_found"): ...


class ScheduleNotFound(NotFound, code="schedule_not_found"): ...


class PipelineNotFound(NotFound, code="pipeline_not_found"): ...


class DocumentNotFound(NotFound, code="document_not_found"): ...


class ChannelNotFound(NotFound, code="channel_not_found"):
    """channels.yaml has no such channel."""


class TraceNotFound(NotFound, code="trace_not_found"): ...


class TaskNotFound(NotFound, code="task_not_found"): ...


class WorkflowNotFound(NotFound, code="workflow_not_found"): ...


class ApprovalNotFound(NotFound, code="approval_not_found"): ...


class EvaluationNotFound(NotFound, code="evaluation_not_found"): ...


class InvalidInput(RequestError, code="invalid_input"):
    """The request is not valid.

    Args:
        param: name of the parameter that is wrong, where there is one.
    """

    def __init__(self, message: str = "", *, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class PayloadTooLarge(RequestError, code="payload_too_large", status=413): ...


class UriTooLong(RequestError, code="uri_too_long", status=414): ...


class MalformedRequest(RequestError, code="malformed_request", status=400):
    """The received bytes are not HTTP."""


class RequestTimeout(RequestError, code="request_timeout", status=408):
    """The head or the body of a request did not arrive in time."""


class MethodNotAllowed(RequestError, code="method_not_allowed", status=405): ...


class IdempotencyConflict(RequestError, code="idempotency_conflict"): ...


class ToolNameTaken(InvalidInput, code="tool_name_taken"):
    """A request brings a tool with the name of one of the agent's own tools."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"Rename the tool {tool!r}: the agent has one of this name.", param="tools")


class InvalidCursor(InvalidInput, code="invalid_cursor"):
    """The cursor of a page is not one that its list has returned."""


class NotOverridable(InvalidInput, code="not_overridable"):
    """A request changes what its agent does not open.

    Args:
        message: names the key of the agent that opens it.
    """


class GuardrailBlocked(RequestError, code="guardrail_blocked"):
    """An input rule rejected the query, or a guard of the agent's graph rejected the answer.

    Args:
        guardrail: type of the rule, e.g. `topic_filter`, or name of the guard.
        message: the configured rejection message, shown to the caller.
        actions: actions of the rules, `{stage, type, action, count}` each, the rejection last.
    """

    def __init__(self, guardrail: str, message: str, actions: Sequence[Mapping[str, object]] = ()) -> None:
        self.guardrail, self.actions = guardrail, tuple(actions)
        super().__init__(message)


class Refused(RequestError, code="refused"):
    """The model refused to answer, or its service withheld the answer, and the agent has an output schema.

    Args:
        finish_reason: of the model call, `content_filter`.
    """

    def __init__(self, finish_reason: str) -> None:
        self.finish_reason = finish_reason
        super().__init__(
            f"The model refused to answer (finish_reason: {finish_reason}), so there is no answer in the "
            "required format; change the query."
        )


class Unauthorized(RequestError, code="unauthorized", status=401): ...


class Forbidden(RequestError, code="forbidden", status=403): ...


class RateLimited(RequestError, code="rate_limited", status=429):
    """Args: retry_after: seconds until the next try makes sense."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Conflict(RequestError, code="conflict", status=409):
    """The request conflicts with the current state."""


class SessionBusy(Conflict, code="session_busy"): ...


class Interrupted(Conflict, code="interrupted"): ...


class AmbiguousSession(Conflict, code="ambiguous_session"): ...


class NotWaiting(Conflict, code="not_waiting"): ...


class NotDurable(Conflict, code="not_durable"): ...


class NotRecorded(Conflict, code="not_recorded"):
    """The run, or a part of it, has no record that others could see or repeat."""


class ApprovalRequired(Conflict, code="approval_required"):
    """The run waits for a person.

    Args:
        run_id: of the waiting run; it continues after the decision.
        waiting_for: the question and its parameters.
        questions: all questions with their ids (`question`), where a channel can put them to people.
    """

    def __init__(
        self,
        message: str,
        run_id: str = "",
        waiting_for: Mapping[str, object] | None = None,
        questions: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.run_id, self.waiting_for, self.questions = run_id, waiting_for, questions
        super().__init__(message)


class RunFailed(AstromeshError):
    """A durable run that a caller waited for failed, possibly in another process.

    Args:
        code: of the error that ended the run.
        details: further fields of that error, e.g. `guardrail`.
    """

    def __init__(self, code: str, message: str, details: Mapping[str, object] | None = None) -> None:
        kind = error_class(code)
        self.code, self.status = code, kind.status
        self.public, self.public_code = kind.public, kind.public_code
        self.details = dict(details or {})
        self.retry_after = self.details.pop("retry_after", 0.0)
        super().__init__(message)


def details_of(error: AstromeshError) -> dict[str, object]:
    """Returns the fields of an error's problem document beside those that all errors have."""
    match error:
        case GuardrailBlocked():
            return {"guardrail": error.guardrail}
        case Refused():
            return {"finish_reason": error.finish_reason}
        case InvalidInput() if error.param:
            return {"param": error.param}
        case NodeFailed():
            return {"node": error.path}
        case RunFailed():
            return error.details
        case AllProvidersFailed():
            failed = error.failures
            return {
                "failures": [
                    {"provider": f.provider, "code": f.code, "status": f.upstream_status} for f in failed
                ]
            }
    return {}


def stored_details(error: AstromeshError) -> dict[str, object]:
    """Returns the `details` from which `RunFailed` makes the same answer."""
    seconds = getattr(error, "retry_after", 0.0)
    return details_of(error) | ({"retry_after": seconds} if seconds else {})


class LeaseLost(Conflict, code="lease_lost", status=503):
    """Another worker has taken over the work; writes of this worker are rejected."""


class Divergence(Conflict, code="divergence", status=500, public=False):
    """A resumed run differs from its log; the message names the place."""


class NondeterministicGraph(Divergence, code="nondeterministic_graph", public=True):
    """A resumed run of a graph takes another path than the recorded one; the message names the node."""


class EventsGone(RequestError, code="events_gone", status=410): ...


# -- another service ---------------------------------------------------------------------------------------


class UpstreamError(AstromeshError, code="upstream_error"):
    """Another service failed; a retry may work."""


class NetError(UpstreamError, code="network_error"):
    """An outgoing HTTP call failed without a response: no connection, or a broken or unreadable one.

    The message names the host, never the path, the query or a header, which may contain secrets. Adapters
    translate it into their own error.
    """


class NetTimeout(NetError, code="network_timeout"): ...


class NetUnreachable(NetError, code="network_unreachable"):
    """There was no connection. Nothing was sent, so the call may be repeated."""


class NetConnectTimeout(NetTimeout, NetUnreachable, code="network_timeout"):
    """The connection was not accepted in time."""


class AnswerTooLarge(NetError, code="answer_too_large"): ...


class AddressForbidden(NetError, code="address_forbidden"):
    """The request-forgery guard rejected an address that a model, a user, a document or a redirect chose."""


class ProviderError(UpstreamError, code="provider_error"):
    """A model call failed.

    Args:
        message: what happened, without keys or prompts.
        provider: name as configured, e.g. `openai/gpt-4o-mini`.
        status: HTTP status of the response (attribute `upstream_status`), 0 if there was none.
        retry_after: seconds that the provider requested, 0 if none.
        retryable: whether a retry at the same provider can help, if that differs from the class; the
            router tries the next provider in any case.
        quote: the service's own message, shown after the message and truncated. It may repeat parts of the
            request.
    """

    #: characters of a quote that are shown
    max_quote: ClassVar[int] = 300
    #: a sentence that says what to do if no other model answers
    advice: ClassVar[str] = "Try again, or add a fallback model."
    retryable: bool = True
    #: whether the circuit breaker counts the error; errors caused by the caller never open it
    trips_breaker: ClassVar[bool] = True

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
        self.provider, self.upstream_status, self.retry_after = provider, status, retry_after
        self.quote = quote
        if not retryable:
            self.retryable = False
        super().__init__(message)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}: {self.quote[: self.max_quote]}" if self.quote else message


class ProviderTimeout(ProviderError, code="provider_timeout"): ...


class ProviderUnavailable(ProviderError, code="provider_unavailable"):
    """No connection, a truncated response, 5xx, or a response that is not in the wire format."""


class ProviderRateLimited(ProviderError, code="provider_rate_limited"): ...


class ProviderPaused(ProviderRateLimited, code="provider_paused"):
    """The provider has answered 429 and asked for a pause, so that it is not called."""


class ProviderUnauthorized(ProviderError, code="provider_unauthorized"):
    """401 or 403: the key is wrong. Another provider may succeed, this one will not."""

    retryable = False
    advice = "Check the API key of the model."


class ProviderRejected(
    ProviderError, code="provider_rejected", status=422, public=True, public_code=InvalidInput.code
):
    """400, 413, 422 and similar: the request is invalid for this model and stays invalid."""

    retryable = False
    advice = "Check the name of the model, its parameters and the length of the request."
    trips_breaker = False


class AllProvidersFailed(UpstreamError, code="all_providers_failed", status=502, public=True):
    """No provider answered.

    Args:
        failures: the error of each tried provider, in order.
        begun: the last provider had started to answer and its text was sent on, so no other one was called.
    """

    def __init__(self, failures: Sequence[ProviderError], *, begun: bool = False) -> None:
        self.failures, self.begun = tuple(failures), begun
        tried = "; ".join(f"{f.provider or 'provider'}: {f}" for f in self.failures)
        message = "The model's answer broke off." if begun else "No model provider answered."
        if not self.failures:
            super().__init__(f"{message} None is configured or all circuits are open.")
            return
        last = self.failures[-1]
        super().__init__(f"{message} {tried.rstrip('.')}. {last.advice}")
        self.__cause__ = last


class ProvidersRateLimited(AllProvidersFailed, code="providers_rate_limited", status=503):
    """No provider answered, and each of them limits the rate of calls.

    Args:
        failures: the error of each tried provider, in order.
        retry_after: seconds until the first of them may answer again.
    """

    def __init__(self, failures: Sequence[ProviderError], *, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(failures)


class InvalidOutput(UpstreamError, code="invalid_output", status=502, public=True):
    """The model's answer does not match the agent's output schema, even after the repair turn."""


class EmptyAnswer(UpstreamError, code="empty_answer", status=502, public=True):
    """The model's answer has no text."""

    def __init__(self, message: str = "The model's answer is empty; send the request again.") -> None:
        super().__init__(message)


class ToolError(UpstreamError, code="tool_error"):
    """A tool call failed. The model receives the error as the tool result; the run continues."""


class ModelRetry(ToolError, code="model_retry"):
    """A tool raises this to have the model correct itself: the model reads the text and may call again."""


class ToolTimeout(ToolError, code="tool_timeout"): ...


class ToolFailed(ToolError, code="tool_failed"): ...


class ToolBusy(ToolError, code="tool_busy"):
    """The call was not started: no thread is free, or too many calls of the same function hang."""


class OutcomeUnknown(ToolError, code="unknown_outcome"):
    """The process died during the call: its effect may have happened, and the call is not repeated."""


class ToolDenied(ToolError, code="tool_denied"):
    """A person denied the call, or nobody approved it in time."""


class InvalidToolCall(ToolError, code="invalid_tool_call"):
    """The tool is unknown, or the arguments are not JSON or do not match the schema."""


class ToolPermissionError(ToolError, code="tool_not_permitted"):
    def __init__(self, tool: str, agent: str) -> None:
        super().__init__(f"The agent {agent!r} may not use the tool {tool!r}.")


class ToolRateLimitError(ToolError, code="tool_rate_limited"):
    def __init__(self, tool: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        wait = f" Try again in {retry_after:.0f} s." if retry_after >= 1 else ""
        super().__init__(f"The tool {tool!r} was called too often.{wait}")


class ToolCallLimitReached(ToolError, code="tool_call_limit_reached"):
    def __init__(self, tool: str, most: int) -> None:
        times = "once" if most == 1 else f"{most} times"
        super().__init__(f"A run may call the tool {tool!r} at most {times}. Answer with what you have.")


class StoreError(UpstreamError, code="store_error"):
    """A database or file store failed."""


class StoreUnavailable(StoreError, code="overloaded", status=503, public=True):
    """The store is locked, full or unreachable; accepted data is not lost. Answered 503 with Retry-After."""

    retry_after: ClassVar[float] = 1.0


class ChannelError(UpstreamError, code="channel_error"):
    """A messenger did not accept a message; a retry may work.

    Args:
        retry_after: seconds that the messenger requested, 0 if none.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ChannelRejected(ChannelError, code="channel_rejected"):
    """The messenger will never accept this message."""


class OutsideWindow(ChannelRejected, code="channel_outside_window"):
    """The user has not written for so long that only a template message may be sent."""


# -- the server cannot serve the request now ---------------------------------------------------------------


class Unavailable(AstromeshError, code="overloaded", status=503, public=True):
    retry_after: float = 1.0


class AgentUnavailable(Unavailable, code="agent_unavailable"):
    """The agent's manifest has faults, or a dependency could not be opened; other agents run.

    Args:
        temporary: a store is unreachable; the agent works again as soon as the store does.
    """

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary


class WorkflowUnavailable(Unavailable, code="workflow_unavailable"):
    """The workflow's manifests have faults; other workflows run."""


class UnreadableModule(Unavailable, LookupError, code="unreadable_module"):
    """A Python module of a workflow exists and cannot be imported now."""


class Overloaded(Unavailable, code="overloaded"):
    """Args: retry_after: seconds until the next try makes sense."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class QueueFull(Unavailable, code="queue_full"):
    """The queue of Tasks is full; the message says how many wait."""


class ShuttingDown(Unavailable, code="shutting_down"): ...


# -- a configured limit ------------------------------------------------------------------------------------


class LimitReached(AstromeshError, code="limit_reached"): ...


class IterationsExhausted(LimitReached, code="iterations_exhausted"): ...


class BudgetExhausted(LimitReached, code="budget_exhausted", status=429, public=True):
    """A budget has too little left.

    Args:
        retry_after: seconds until the budget renews, 0 if it never does.
        budget: its name below `spec.budgets`, e.g. `per_session.tokens`; empty where it is a graph's own.
    """

    def __init__(self, message: str, retry_after: float = 0.0, budget: str = "") -> None:
        self.retry_after, self.budget = retry_after, budget
        super().__init__(message)


class DeadlineExceeded(LimitReached, code="deadline_exceeded", status=504, public=True): ...


class ClientToolExpired(LimitReached, Interrupted, code="client_tool_expired"):
    """The client of a run has not sent the result of a tool that it executes: the run is cancelled.

    A client that wanted nothing but the arguments, e.g. a structured answer, never comes back.
    """

    def __init__(self, tool: str, seconds: float) -> None:
        super().__init__(f"The client did not send the result of its tool {tool!r} within {seconds:g} s.")


class AnswerTooLong(LimitReached, code="answer_too_long", status=502, public=True):
    """An answer has more bytes than `limits.max_answer_bytes`."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The answer has more than {limit} bytes (limits.max_answer_bytes). Ask for a shorter one."
        )


# -- inside a graph's run ----------------------------------------------------------------------------------


class GraphError(AstromeshError):
    """A run of a graph did not complete; within the engine, a part of it did not."""


class NodeFailed(GraphError, code="node_failed", public=True):
    """A required node failed.

    Args:
        path: of the node in the run's tree.
        error: of its result.
        cause: the exception that it raised, if any.
        stop_reason: of a nested graph that could not continue: `stuck_node`, `unknown_node`.
    """

    def __init__(
        self, path: str, error: str, cause: BaseException | None = None, stop_reason: str = ""
    ) -> None:
        self.path, self.error, self.cause, self.stop_reason = path, error, cause, stop_reason
        super().__init__(f"{path}: {error}")


class OutputRefused(GraphError, code="guardrail_blocked", status=422, public=True):
    """A guard rejected a node's output; a retry may pass. Outside the run it becomes GuardrailBlocked.

    Args:
        guard: name of the first guard that rejected it.
        error: of the node's result.
    """

    def __init__(self, guard: str, error: str) -> None:
        self.guard = guard
        super().__init__(error)


class ConflictingWrites(GraphError, code="conflicting_writes"):
    """Nodes that ran concurrently wrote different values under one key, and the graph has no reducer for it.

    Args:
        key: of the context.
        nodes: names of the two nodes.
    """

    def __init__(self, key: str, nodes: tuple[str, str]) -> None:
        self.key, self.nodes = key, nodes
        super().__init__(
            f"{nodes[0]!r} and {nodes[1]!r} ran at once and wrote different values under {key!r}. "
            f"Let the graph join them by reducers={{{key!r}: FUNCTION}}, or give the nodes different keys."
        )


class BranchDropped(GraphError, code="branch_dropped"):
    """A resumed run comes to where a branch was cancelled by a join; it never leaves the run."""


class BranchFailed(GraphError, code="branch_failed"):
    """A branch of a graph failed, so that the others are cancelled; it never leaves the run.

    Args:
        result: NodeResult of its last node.
    """

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__(result.error)


class UnknownStateKey(GraphError, code="unknown_state_key"):
    """A node updates a field that the state of its graph does not have."""


class InvalidStateUpdate(GraphError, code="invalid_state_update"):
    """A node updates a field of the state with a value that does not fit."""


class GraphStopped(GraphError, code="graph_stopped"):
    """The run is being stopped; no further node starts."""


# -- worker processes ----------------------------------------------------------------------------------------


class ForeignError(AstromeshError, code="operation_error"):
    """Foreign code in a worker process raised an exception. The message is its type and its text.

    Args:
        code: replaces the code; empty: `operation_error`.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class ProcessDied(ForeignError):
    """A worker process died during a call.

    Args:
        exit_code: as `subprocess` returns it: a negative number is a signal.
    """

    def __init__(self, exit_code: int) -> None:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(f"The process that it ran in died ({how}).", "crashed")


class RunCrashed(AstromeshError, code="crashed", public=True):
    """Several processes in a row died while they executed a durable run."""


# -- exceptions of foreign code ------------------------------------------------------------------------------

_RAISE = opmap["RAISE_VARARGS"]


def is_failure(error: BaseException) -> bool:
    """Whether an exception is the failure of the foreign code that raised it.

    `SystemExit` is one, because `argparse` and `sys.exit` raise it, and so is a `KeyboardInterrupt` that no
    signal caused, a panic of an extension, and every other exception outside `Exception`. Not of the code are
    the cancellation of the current task, and the `GeneratorExit` of a coroutine that is closed. A
    cancellation that comes from something inside the code is its failure.
    """
    asyncio = sys.modules.get("asyncio")  # who has not loaded it has no task; `--help` has not
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return not _is_of_signal(error)
    return not isinstance(error, GeneratorExit) or _is_raised(error)


def text_of(error: BaseException) -> str:
    """Returns the text of an exception, or an empty string if its `__str__` fails.

    What UTF-8 cannot represent is escaped: names of files, among others, may contain lone surrogates.
    """
    try:
        text = str(error)
        return text if text.isascii() else text.encode(errors="backslashreplace").decode()
    except BaseException as broken:
        if not is_failure(broken):
            raise
        return ""


def described(error: BaseException) -> str:
    """Returns class and text of an exception, or the class alone if it has no text."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_raised(error: GeneratorExit) -> bool:
    """Whether code raises this by itself. Closing a coroutine or generator throws it in where that waits."""
    innermost = _innermost(error)
    return innermost is not None and innermost.tb_frame.f_code.co_code[innermost.tb_lasti] == _RAISE


def _innermost(error: BaseException) -> TracebackType | None:
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost


def _is_of_signal(error: KeyboardInterrupt | SystemExit) -> bool:
    """Whether a signal handler raised this. Python runs handlers in the main thread, inside any function."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    if isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers:
        return True  # it has no frame of its own
    innermost = _innermost(error)
    codes = [getattr(getattr(one, "func", one), "__code__", None) for one in handlers]
    return innermost is not None and innermost.tb_frame.f_code in codes
