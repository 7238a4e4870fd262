"""Every pattern is a graph: this runs one inside a run of the pipeline and says how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from astromesh.abc.provider import ModelPort
from astromesh.abc.run import Outcome, PatternTask
from astromesh.abc.tool import Asked, ToolPort
from astromesh.errors import (
    AstromeshError,
    GraphError,
    GraphStopped,
    GuardrailBlocked,
    NodeFailed,
    OutputRefused,
)
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.human import HumanRequest
from astromesh.graph.records import GraphResult, NodeResult
from astromesh.graph.state import GraphState
from astromesh.node.scope import Scope
from astromesh.types import JsonObject

#: what is answered when a bound ended the run before the model had said anything
UNFINISHED = "I could not finish this within the limits that are set for me."
#: what is answered when a person said no, or nothing in time: never what they were to decide on
NOT_APPROVED = {
    "human_denied": "A person has not approved this, so I stopped here.",
    "human_timeout": "Nobody has approved this in time, so I stopped here.",
}
#: what is said of an answer that a guard of the graph refused; why it did is not the caller's
REFUSED = "A guard of this agent refused what was to be answered."
#: stops that are an answer for the caller; any other one without an output is an error
_BOUNDS = frozenset({"max_iterations", "stuck_node", "budget", "cycle"})


#: role of `spec.model.roles` that nodes with the flag LIGHTWEIGHT ask; without models the main one answers
LIGHT = "lightweight"
#: node executions of a graph whose tool loops are bounded by themselves
_PLENTY = 100_000
#: where nodes find the notes of their run: `config[NOTES]`; request variables cannot reach it
NOTES = "_notes"


class Notes(Protocol):
    """What the nodes of a pattern note about one run."""

    def metadata(self) -> JsonObject:
        """What the run's metadata gains."""


class GraphPattern:
    """A `Pattern` that runs a graph.

    Args:
        make: the graph for a number of iterations; called once for each number.
        notes: makes the notes of a run, which its nodes find as `config[NOTES]`; with them the outcome's
            iterations are the run's model calls, without them the graph's node executions.
    """

    def __init__(
        self, make: Callable[[int], PromptGraphEngine], notes: Callable[[PatternTask], Notes] | None = None
    ) -> None:
        self._make = make
        self._notes = notes
        self._engines: dict[int, PromptGraphEngine] = {}

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        """One run of the graph.

        Raises:
            AstromeshError: what made the graph fail, e.g. AllProvidersFailed.
        """
        notes = self._notes(task) if self._notes else None
        steps = scope.steps[0]
        run = self._engine(task.max_iterations).start(
            task.messages,
            scope,
            model=model,
            tools=tools,
            context=task.context,
            config={NOTES: notes} if notes else None,
        )
        if scope.journal is not None:
            run.setup = replace(run.setup, human_handler=people(scope))
        result = await run.execute()
        if scope.journal is not None and result.report.stop_reason in NOT_APPROVED:
            return outcome(result, len(task.messages)).saying(NOT_APPROVED[result.report.stop_reason])
        if result.output is None:
            _raise_failure(result, run.state)
        found = outcome(result, len(task.messages))
        if result.output is None and run.plan.guarded:
            found = found.saying(UNFINISHED)  # what was said last may be what a guard refused
        elif result.output is None and run.shared.stop_reason == "completed":
            # a tool ended the run: there may be nothing to say
            found = found.saying(_last_words(result, len(task.messages)))
        if notes is None:
            return found
        return replace(found, iterations=scope.steps[0] - steps, metadata=notes.metadata())

    def to_mermaid(self, iterations: int) -> str:
        """The graph as a Mermaid diagram."""
        return self._engine(iterations).graph.to_mermaid()

    def _engine(self, iterations: int) -> PromptGraphEngine:
        engine = self._engines.get(iterations)
        if engine is None:
            engine = self._engines[iterations] = self._make(iterations)
        return engine


def people(scope: Scope) -> Callable[[HumanRequest], Awaitable[JsonObject]]:
    """What human nodes of a durable run ask: the run waits as a row, and is taken up with the decision."""

    async def ask(request: HumanRequest) -> JsonObject:
        journal = scope.journal
        assert journal is not None
        asked = Asked("human", request.node, request.value, request.question)
        if request.seconds is not None:
            asked = asked._replace(seconds=request.seconds)
        said = await journal.person(scope, request.ticket, asked)
        if said["decision"] == "expired":
            raise TimeoutError
        return said

    return ask


def outcome(result: GraphResult, given: int) -> Outcome:
    """What the pipeline is told.

    Args:
        given: how many messages the run began with; only later ones can be an answer.
    """
    report = result.report
    text = result.text if result.output is not None else _last_words(result, given) or UNFINISHED
    return Outcome(text, report.stop_reason, report.iterations, report.usage, report.error)


def engine_of(graph: PromptGraph, iterations: int) -> PromptGraphEngine:
    """An engine whose only bound is the run's number of iterations."""
    return _engine(graph, iterations)


def unbounded_engine_of(graph: PromptGraph) -> PromptGraphEngine:
    """An engine for a graph that ends by itself, because its tool loops are bounded (`ToolLoop`)."""
    return _engine(graph, _PLENTY)


def _engine(graph: PromptGraph, iterations: int) -> PromptGraphEngine:
    return PromptGraphEngine(
        graph, lightweight_model=LIGHT, max_iterations=iterations, max_node_iterations=iterations
    )


def _last_words(result: GraphResult, given: int) -> str:
    """The newest text that the model said in this run, never a tool's result."""
    said = (m.content for m in reversed(result.messages[given:]) if m.role == "assistant" and m.content)
    return next(said, "")


def _raise_failure(result: GraphResult, state: GraphState) -> None:
    report = result.report
    if not report.error or report.stop_reason in _BOUNDS:
        return
    failed = _failed(report.error, state.node_history)
    cause = failed.exception
    if report.stop_reason == "completed" and isinstance(cause, GraphStopped):
        return  # a tool ended the run (`ToolResult.ends_run`) in the middle of a nested loop
    node = _path(failed.node_name, report.nodes_visited)
    while isinstance(cause, NodeFailed) and cause.cause is not None:
        node, cause = cause.path, cause.cause
    if isinstance(cause, OutputRefused):
        raise GuardrailBlocked(cause.guard, REFUSED) from cause
    if isinstance(cause, AstromeshError) and not isinstance(cause, GraphError):
        cause.node = node
        raise cause
    error = GraphError(report.error)
    error.node = node
    raise error from cause


def _failed(error: str, history: Sequence[NodeResult]) -> NodeResult:
    """The result that a run has failed with; what failed before was led around.

    Args:
        error: of the run: that of a node, perhaps with what its finalizer adds; or words of a hook.
    """
    named = (r for r in reversed(history) if r.error and f"{error} ".startswith(f"{r.error} "))
    return next(named, history[-1] if history else NodeResult())


def _path(node: str, visited: Sequence[str]) -> str:
    """Where a node failed: the place of the last visit, where that was inside of it."""
    last = visited[-1] if visited else node
    return last if not node or last.startswith(f"{node}/") else node
