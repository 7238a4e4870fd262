"""Runs the reasoning controller as an agent's pattern."""

from __future__ import annotations

from astromesh.abc.deps import Deps
from astromesh.abc.provider import ModelPort
from astromesh.abc.run import Outcome, PatternTask
from astromesh.abc.tool import ToolPort
from astromesh.errors import GraphError
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.reasoning import ReasoningSettings, reasoning_controller
from astromesh.node.scope import Scope
from astromesh.orchestration.reasoning.options import ReasoningOptions

#: the one key of a request's context that the controller reads
REQUEST = "reasoning"


class Reasoning:
    """A bounded controller: profile, strategy, evaluated steps, draft, critique, revision, report.

    Args:
        settings: the bounds; a request's `context.reasoning` may narrow them.
    """

    Options = ReasoningOptions

    def __init__(self, settings: ReasoningSettings) -> None:
        most = settings.max_iterations
        self._engine = PromptGraphEngine(
            reasoning_controller(settings), max_iterations=most, max_node_iterations=most
        )

    @classmethod
    async def open(cls, options: ReasoningOptions, deps: Deps) -> Reasoning:
        return cls(options.settings())

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        """One run. However it ends, it answers: `metadata["reasoning"]` is the controller's final_output."""
        # the rest of the context is the template's; above all it must not stand in for the checked query
        context = {REQUEST: task.context[REQUEST]} if REQUEST in task.context else {}
        run = self._engine.start(task.messages, scope, model=model, tools=tools, context=context)
        result = await run.execute()
        final = result.output
        if not isinstance(final, dict):  # only where finalize_response itself broke
            raise GraphError(f"The reasoning controller ended without a report: {result.report.error}")
        return Outcome(
            final["answer"],
            final["termination_reason"],
            final["budget_used"]["model_calls"],
            result.report.usage,
            metadata={REQUEST: final},
        )
