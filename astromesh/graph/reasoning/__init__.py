"""The reasoning controller of document 003, itself a reconstruction (docs/reasoning.md): one graph.

It profiles a task, picks a strategy, takes evaluated steps within budgets, drafts, critiques, revises and
reports. It stands here, beside the other prebuilt graphs, because it needs nothing but the engine; the
pattern `reasoning` of an agent's YAML is `astromesh.orchestration.reasoning`.

    controller   the graph: 13 nodes, 21 edges        settings     what an operator may set
    state        the 26 fields of a run               budgets      the five budgets on the run's ledger
    setup        nodes: prepare, analyze, select      decisions    which strategy, which route, which status
    steps        nodes: propose, execute, tool,       asking       the one seam to the model
                 evaluate, switch                     prompts      what the model is told and shown
    answers      nodes: draft, critique, revise,      reading      what a model wrote, made safe
                 finalize                             report       the answer and the 12 keys of final_output
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
