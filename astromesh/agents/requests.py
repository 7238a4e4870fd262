"""What the runs of an agent begin and end with: requests, watchers and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from astromesh.errors import ApprovalRequired, AstromeshError, described
from astromesh.graph.records import ExecutionReport, GraphResult, Interrupt
from astromesh.runtime.records import RunRequest
from astromesh.runtime.run import Run
from astromesh.types import Message


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
        images=last.images,
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
    if isinstance(error, ApprovalRequired) and (asked := error.waiting_for) is not None:
        question = Interrupt(
            str(asked.get("id", "")),
            cast("Any", asked["kind"]),
            str(asked["name"]),
            asked["arguments"],
            str(asked["question"]),
        )
        report = ExecutionReport([], stop_reason="waiting", error=str(error))
        return GraphResult([], None, {}, report, run_id=error.run_id, interrupts=[question])
    made: GraphResult | None = runs[0].scope.graph_result if runs else None
    if made is not None and made.report.error:
        return made
    return GraphResult([], None, {}, ExecutionReport([], stop_reason="critical_error", error=str(error)))
