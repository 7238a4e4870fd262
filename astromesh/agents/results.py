"""The result of an agent's run, and its stream: events, text, and the result at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, cast
from uuid import uuid4

from msgspec import UNSET, convert
from msgspec.structs import replace
from typing_extensions import TypeVar

from astromesh.errors import (
    ApprovalRequired,
    AstromeshError,
    BudgetExhausted,
    GraphError,
    IterationsExhausted,
    described,
)
from astromesh.events import typed
from astromesh.graph.audibility import AnswerText
from astromesh.graph.records import ExecutionReport, GraphResult, Interrupt
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.telemetry.events import EventSink
from astromesh.types import Event, JsonObject, Message, Usage

#: the type of an agent's answer
OutputT = TypeVar("OutputT", default=str)


@dataclass(frozen=True, slots=True)
class Question:
    """What a run asks a person: `agent.resume(run_id, …)` answers.

    Args:
        id: Names it among several of one run: `agent.resume(run_id, …, question=id)`.
        kind: `approval` of a tool call, `human` or `interrupt` of a node, or `unknown_outcome` of a call that
            the end of a process has interrupted.
        name: The tool or node.
        arguments: Those of the call, or what the node shows.
        text: What the person has to do, if the node says it.
        agent: The agent of the call or node: that of the run, or one that it has called.
        asked_at, expires_at: Seconds since the epoch. A question that expires is denied.
    """

    run_id: str
    id: str
    kind: str
    name: str
    arguments: Any = None
    text: str = ""
    agent: str = ""
    asked_at: float = 0.0
    expires_at: float = 0.0


def question_of(waiting: Mapping[str, Any]) -> Question:
    """Returns what a run waits for (docs/api.md, People)."""
    return Question(
        waiting["run_id"],
        waiting.get("id", ""),
        waiting["kind"],
        waiting["name"],
        waiting["arguments"],
        waiting["question"],
        waiting["asking_agent"],
        waiting["asked_at"],
        waiting["expires_at"],
    )


@dataclass(frozen=True, slots=True)
class Result(Generic[OutputT]):
    """The result of one run.

    Args:
        text: The answer as text, JSON if the agent has an `output_type`. Of a failed run what it has
            released.
        messages: The conversation without the system prompt: pass it as `history` of the next run.
        usage: Tokens and cost of the run, with the runs that it has started.
        stop_reason: `completed`, or why it stopped (docs/graph/graph.md, Stops).
        metadata: Pattern, provider, attempts and the rest that the HTTP API answers (docs/api.md, Runs).
        error: The error of a run that has not completed, else None.
        citations: The passages that the answer draws on, as the HTTP API answers them.
        waiting_for: What the run waits for, the oldest of several questions: it goes on with
            `agent.resume(result.run_id, …)`. Else None.
    """

    text: str
    messages: Sequence[Message] = ()
    usage: Usage = Usage()
    run_id: str = ""
    session_id: str = ""
    trace_id: str = ""
    stop_reason: str = "completed"
    metadata: JsonObject = field(default_factory=dict, repr=False)
    error: AstromeshError | None = None
    waiting_for: Question | None = None
    _output: Any = field(default=None, repr=False)
    citations: Sequence[JsonObject] = ()

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.error is None

    @property
    def output(self) -> OutputT:
        """The answer in the agent's `output_type`, a text without one.

        Raises:
            AstromeshError: The run failed. `ok` tells, and `raise_for_error()` raises the same.
        """
        self.raise_for_error()
        output: OutputT = self._output
        return output

    def raise_for_error(self) -> None:
        """Returns if the run completed.

        Raises:
            AstromeshError: The error of the run. Its cause is the error of the provider or tool, if one
                failed.
        """
        if self.error is not None:
            raise self.error


def stop_error(stop_reason: str) -> AstromeshError | None:
    """Returns the error of a run that stopped before its end; None if it completed."""
    match stop_reason:
        case "completed":
            return None
        case "max_iterations":
            return IterationsExhausted(
                "The run reached its limit of model calls before it was done. Raise `max_iterations`."
            )
        case "budget":
            return BudgetExhausted("The run used up its budget before it was done. Raise `budgets`.")
    return GraphError(f"The run stopped before it was done: {stop_reason}.")


def result_of(answer: RunAnswer, run: Run | None, request: RunRequest, output: Any) -> Result[Any]:
    """Returns the result of a run with an answer.

    Args:
        run: The run itself; None for a durable one.
        output: The answer in the agent's `output_type`.
    """
    metadata = answer.metadata
    stop = metadata.get("stop_reason", "completed")
    return Result(
        answer.response,
        messages_of(run, request, answer.response),
        run.scope.ledger.usage if run is not None else convert(metadata.get("usage", {}), Usage),
        answer.run_id,
        answer.session_id,
        metadata.get("trace_id", ""),
        stop,
        metadata,
        stop_error(stop),
        None,
        output,
        answer.citations if answer.citations is not UNSET else (),
    )


def waiting_result(error: ApprovalRequired, session_id: str = "") -> Result[Any]:
    """Returns the result of a run that waits for a person."""
    question = question_of(error.waiting_for or {})
    text = f"The run waits for a person, about {question.name!r}: `agent.resume({error.run_id!r}, …)`."
    explained = ApprovalRequired(text, error.run_id, error.waiting_for)
    explained.trace_id = error.trace_id
    return Result(
        "",
        run_id=error.run_id,
        session_id=session_id,
        trace_id=error.trace_id,
        stop_reason="waiting",
        error=explained,
        waiting_for=question,
    )


def failed_result(error: AstromeshError, run: Run | None, request: RunRequest | None) -> Result[Any]:
    """Returns the result of a run that ended with an error."""
    if run is None or request is None:
        return Result("", run_id=error.run_id, trace_id=error.trace_id, stop_reason="failed", error=error)
    text = run.events.partial
    return Result(
        text,
        messages_of(run, request, text),
        run.scope.ledger.usage,
        run.id,
        request.session_id,
        run.trace_id,
        "failed",
        {"errors": list(run.events.node_errors), "attempts": list(run.model.attempts)},
        error,
    )


def messages_of(run: Run | None, request: RunRequest, text: str) -> list[Message]:
    """Returns the conversation of a run, with the answer as the output rules have released it."""
    made = run.scope.graph_result if run is not None else None
    if made is None:
        query = run.admitted_query if run is not None else request.query
        found = [
            *(request.history or ()),
            Message("user", query or request.query, attachments=request.attachments),
        ]
    else:
        found = [message for message in made.messages if message.role != "system"]
    if found and found[-1].role == "assistant" and not found[-1].tool_calls:
        found[-1] = replace(found[-1], content=text)
    elif text:
        found.append(Message("assistant", text))
    return found


def released_messages(messages: Iterable[Message], answer: str, released: str) -> list[Message]:
    """Returns the messages of a graph, with the answer as the output rules have released it."""
    return [
        replace(one, content=released) if one.role == "assistant" and one.content == answer else one
        for one in messages
    ]


# -- runs and errors of a program --------------------------------------------------------------------------


def keeping_graph_results(runs: list[Run]) -> Callable[[Run], None]:
    """Returns a watcher that notes each run, with the result of its graph."""

    def watch(run: Run) -> None:
        run.scope.keeps_graph_result = True
        runs.append(run)

    return watch


def request_of_messages(messages: tuple[Message, ...], context: Mapping[str, Any]) -> RunRequest:
    """Returns a conversation as a request: the last message of the user, and those before it."""
    *history, last = messages or (Message("user"),)
    if last.role != "user":
        history, last = [*messages], Message("user")
    return RunRequest(
        last.content,
        f"run-{uuid4().hex}",
        context,
        attachments=last.attachments,
        history=tuple(history),
        persist=False,
    )


def explained(error: AstromeshError) -> AstromeshError:
    """Returns an error for the program that made the agent: there is no server's log that has the details."""
    cause = error.__cause__
    if type(error) is not AstromeshError or cause is None:
        return error
    explained = AstromeshError(f"The run failed: {described(cause)}")
    explained.run_id, explained.trace_id = error.run_id, error.trace_id
    explained.__cause__ = cause
    return explained


def failed_graph_result(error: AstromeshError, runs: Sequence[Run]) -> GraphResult:
    """Returns what a failed run is for `ainvoke`, which raises nothing."""
    if isinstance(error, ApprovalRequired) and (waiting := error.waiting_for) is not None:
        question = Interrupt(
            str(waiting.get("id", "")),
            cast("Any", waiting["kind"]),
            str(waiting["name"]),
            waiting["arguments"],
            str(waiting["question"]),
        )
        report = ExecutionReport([], stop_reason="waiting", error=str(error))
        return GraphResult([], None, {}, report, run_id=error.run_id, interrupts=[question])
    made: GraphResult | None = runs[0].scope.graph_result if runs else None
    if made is not None and made.report.error:
        return made
    return GraphResult([], None, {}, ExecutionReport([], stop_reason="critical_error", error=str(error)))


#: starts a run with these listeners
StartRun = Callable[[Iterable[EventSink]], Awaitable[Result[OutputT]]]


class _Queue:
    """Puts events into a queue, deltas too; None ends it."""

    wants_deltas = True

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()

    def send(self, event: Event) -> None:
        self.events.put_nowait(event)


class RunStream(Generic[OutputT]):
    """A run whose events arrive while it works: `agent.stream(…)`.

    Use it as `async with`, which cancels the run when the block is left before its end, or iterate over it.
    It can be read once: as events, or as `text()`.
    """

    def __init__(self, start: StartRun[OutputT]) -> None:
        self._start = start
        self._queue = _Queue()
        self._task: asyncio.Future[Result[OutputT]] | None = None
        self._is_left = self._is_read = False

    @property
    def result(self) -> Result[OutputT]:
        """The result of the run, after the last event.

        Raises:
            RuntimeError: The run has not ended yet.
            AstromeshError: The run failed, and `on_error` is "raise".
        """
        task = self._task
        if task is None or not task.done() or task.cancelled():
            raise RuntimeError(
                "The run has not ended: read the stream to its end before you ask for its result."
            )
        return task.result()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def text(self) -> AsyncGenerator[str, None]:
        """Yields the pieces of the answer as they arrive.

        Text beside tool calls is not among them, so the text of a step that offers tools arrives when the
        step has ended. Read the events to have such text at once.

        Raises:
            AstromeshError: The run failed, and `on_error` is "raise".
        """
        answer = AnswerText()
        async for event in self._events():
            for text in answer.of(event):
                yield text
        for text in answer.rest():
            yield text

    async def close(self) -> None:
        """Cancels the run if it has not ended."""
        task = self._task
        if task is not None and not task.done():
            if not self._is_left:  # a second cancel would interrupt the clean-up of the first one
                self._is_left = True
                task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if self._task is not None and not self._task.cancelled():
            self._task.exception()  # it is known to the reader, or the reader has left

    def _begin(self) -> asyncio.Future[Result[OutputT]]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._start([self._queue]))
            self._task.add_done_callback(lambda _: self._queue.events.put_nowait(None))
        return self._task

    async def _events(self) -> AsyncGenerator[Event, None]:
        if self._is_read:
            raise RuntimeError("A stream can be read once, as events or as text. Start another one.")
        self._is_read = True
        task = self._begin()
        try:
            while (event := await self._queue.events.get()) is not None:
                yield typed(event)
            await task
        finally:
            await self.close()
