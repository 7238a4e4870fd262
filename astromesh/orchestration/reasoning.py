"""The pattern `reasoning`: the reasoning controller inside a run of the pipeline."""

from __future__ import annotations

from astromesh.errors import GraphError
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.reasoning import ReasoningSettings, reasoning_controller
from astromesh.graph.scope import Scope
from astromesh.orchestration.base import Outcome, PatternTask
from astromesh.plugins import Deps
from astromesh.providers.base import ModelPort
from astromesh.tools.base import ToolPort

#: The only key of a request's context that the controller reads.
REQUEST = "reasoning"


class Reasoning:
    """A bounded controller: profile, strategy, evaluated steps, draft, critique, revision, report.

    Args:
        settings: The bounds. A request's `context.reasoning` may narrow them.
    """

    Options = ReasoningSettings

    def __init__(self, settings: ReasoningSettings) -> None:
        most = settings.max_iterations
        self._engine = PromptGraphEngine(
            reasoning_controller(settings), max_iterations=most, max_node_iterations=most
        )

    @classmethod
    async def open(cls, options: ReasoningSettings, deps: Deps) -> Reasoning:
        return cls(options)

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        """Runs the controller once. Its final_output becomes `metadata["reasoning"]`.

        Raises:
            GraphError: The controller ended without a report.
        """
        # other keys are for templates, and must not replace the checked query
        context = {REQUEST: task.context[REQUEST]} if REQUEST in task.context else {}
        run = self._engine.start(task.messages, scope, model=model, tools=tools, context=context)
        result = await run.execute()
        final = result.output
        if not isinstance(final, dict):  # only if finalize_response itself failed
            raise GraphError(f"The reasoning controller ended without a report: {result.report.error}")
        return Outcome(
            final["answer"],
            final["termination_reason"],
            final["budget_used"]["model_calls"],
            result.report.usage,
            metadata={REQUEST: final},
        )
