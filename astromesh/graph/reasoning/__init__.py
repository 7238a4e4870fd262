"""The reasoning controller of document 003, itself a reconstruction (docs/reasoning.md): one graph.

It profiles a task, selects a strategy, takes evaluated steps within budgets, drafts, criticises, revises and
reports. It stands beside the other prebuilt graphs because it needs only the engine. The pattern `reasoning`
of an agent's YAML is `astromesh.orchestration.reasoning`.

    controller   the graph: 13 nodes, 21 edges; the     settings   what an operator may set
                 nodes of the loop and the answer       state      the 26 fields of a run, the five budgets
    setup        nodes: prepare, analyze, select        rules      which strategy, which route, which status
    report       the answer and the 12 keys of          prompts    what the model is asked, and the call
                 final_output                           parsing    what a model wrote, made safe
"""

from astromesh.graph.reasoning.controller import reasoning_controller
from astromesh.graph.reasoning.settings import (
    BUDGETS,
    STRATEGIES,
    InvalidSettings,
    ReasoningSettings,
    StrategySpec,
)
from astromesh.graph.reasoning.state import ReasoningState

__all__ = [
    "BUDGETS",
    "STRATEGIES",
    "InvalidSettings",
    "ReasoningSettings",
    "ReasoningState",
    "StrategySpec",
    "reasoning_controller",
]
