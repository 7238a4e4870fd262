"""The pattern `reasoning`: the reasoning controller inside a run of the pipeline."""

from __future__ import annotations

from astromesh.errors import GraphError
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.node_record import NodeRecorder
from astromesh.graph.reasoning import ReasoningSettings, reasoning_controller
from astromesh.graph.scope import Scope
from astromesh.orchestration.base import Outcome, PatternTask
from astromesh.plugins import Deps
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import TimeLimit
from astromesh.tools.base import ToolPort

_TIMED_OUT = "timeout_seconds: the time of the run was used up before the work was finished."
#: The only key of a request's context that the controller reads.
REQUEST = "reasoning"


class Reasoning:
    """A bounded controller: profile, strategy, evaluated steps, draft, critique, revision, report.

    Args:
        settings: The bounds. A request's `context.reasoning` may narrow them.
    """

    Options = ReasoningSettings
    #: The finalizer, the output rules and memory need no model.
    grace_seconds = 10.0

    def __init__(self, settings: ReasoningSettings) -> None:
        most = settings.max_iterations
        self._engine = PromptGraphEngine(
            reasoning_controller(settings), max_iterations=most, max_node_iterations=most
        )

    @classmethod
    async def open(cls, options: ReasoningSettings, deps: Deps) -> Reasoning:
        return cls(options)

    def to_mermaid(self, iterations: int) -> str:
        """Returns the graph of the controller as a Mermaid diagram, whatever the iterations."""
        return self._engine.graph.to_mermaid()

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        """Runs the controller once. Its final_output becomes `metadata["reasoning"]`.

        At the deadline of the run the controller ends as at any other budget.

        Raises:
            GraphError: The controller ended without a report.
        """
        # other keys are for templates, and must not replace the checked query
        context = {REQUEST: task.context[REQUEST]} if REQUEST in task.context else {}
        run = self._engine.start(task.messages, scope, model=model, tools=tools, context=context)
        if scope.journal is not None:
            run.recorder = NodeRecorder(scope.journal)
        left = None if scope.deadline is None else scope.deadline - scope.clock.monotonic()
        timed_out = False
        try:
            async with TimeLimit(left):
                await run.execute()
        except TimeoutError:
            timed_out = True
        result = run.result
        final = result.output if result is not None else None
        if result is None or not isinstance(final, dict):  # only if finalize_response itself failed
            error = f": {result.report.error}" if result is not None else "."
            raise GraphError(f"The reasoning controller ended without a report{error}")
        if timed_out:
            final["errors"].append(_TIMED_OUT)
        return Outcome(
            final["answer"],
            final["termination_reason"],
            final["budget_used"]["model_calls"],
            result.report.usage,
            metadata={REQUEST: final},
        )
