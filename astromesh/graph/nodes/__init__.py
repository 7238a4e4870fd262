"""The nodes, one module per concept. `KINDS` maps the names that YAML uses to the classes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from astromesh.graph.base import BaseNode
from astromesh.graph.nodes.composite import FanOutNode, LoopNode, ParallelNode, RetryNode, SubgraphNode
from astromesh.graph.nodes.function import FunctionNode, ToolNode, TransformNode
from astromesh.graph.nodes.guard import GuardNode
from astromesh.graph.nodes.human import HumanNode
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.nodes.reasoning import (
    CritiqueNode,
    JustifyNode,
    ObserveNode,
    PlanNode,
    ReflectNode,
    SynthesizeNode,
    ThinkNode,
    ValidateNode,
)
from astromesh.graph.nodes.routing import AutonomousNode, RouterNode

KINDS: Mapping[str, type[BaseNode]] = MappingProxyType({
    "prompt": PromptNode,
    "tool": ToolNode,
    "router": RouterNode,
    "guard": GuardNode,
    "parallel": ParallelNode,
    "fan_out": FanOutNode,
    "loop": LoopNode,
    "human": HumanNode,
    "transform": TransformNode,
    "subgraph": SubgraphNode,
    "autonomous": AutonomousNode,
    "retry": RetryNode,
    "function": FunctionNode,
    "think": ThinkNode,
    "reflect": ReflectNode,
    "observe": ObserveNode,
    "justify": JustifyNode,
    "critique": CritiqueNode,
    "plan": PlanNode,
    "synthesize": SynthesizeNode,
    "validate": ValidateNode,
})  # fmt: skip

__all__ = [
    "AutonomousNode",
    "CritiqueNode",
    "FanOutNode",
    "FunctionNode",
    "GuardNode",
    "HumanNode",
    "JustifyNode",
    "LoopNode",
    "ObserveNode",
    "ParallelNode",
    "PlanNode",
    "PromptNode",
    "ReflectNode",
    "RetryNode",
    "RouterNode",
    "SubgraphNode",
    "SynthesizeNode",
    "ThinkNode",
    "ToolNode",
    "TransformNode",
    "ValidateNode",
]

#: Kinds whose results are made by a function of the user.
_FUNCTION_KINDS = (FunctionNode, TransformNode)


def is_built_in(node: BaseNode) -> bool:
    """Whether the engine's own code makes the results of a node, so that they need no check."""
    return type(node) in KINDS.values() and not isinstance(node, _FUNCTION_KINDS)
