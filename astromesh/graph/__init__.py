"""The graph engine (documents 000 and 002): nodes, flags, edges, hooks, one loop.

Writing a node: subclass `BaseNode` and implement `async execute(state, config) -> NodeResult`, or decorate a
function with `@node`. During `execute`:

* `state` (GraphState) holds messages, context, plan, observations, reflections; a node may read and append.
  The engine, not the node, writes `output` to `context[output_key]` and `context[NAME_output]` and appends
  `messages_added`: SUMMARIZE_OUTPUT and VALIDATE_OUTPUT come first, and READONLY forbids direct writes.
  Where flags ask for it (NO_HISTORY, ISOLATED_CONTEXT, READONLY) `state` is a view: keep no reference to it.
* `config` (NodeConfig) reaches everything else:
    `await config.complete(request, role=...)`  the node's model: model_override and LIGHTWEIGHT are applied
    `config.specs()`, `await config.call_tools(calls, state)`  its tools, through hooks, budgets and events
    `config.lightweight_model`, `config.human_handler`, `config.caller`, `config.clock`
    `config.scope`, `config.ledger`, `config.events`  the run at this node's path
    `config[...]`  the run's own values, kept between re-entries (`_node_cache_PATH`)
* Asking for another round of tools: return a NodeResult with `tool_calls`, `messages_added` (the assistant
  message and one tool message per call) and `transition_reason="tool_calls_present"`.
* Failing: raise, or set `result.error`. Ending the run with a reason: set `result.stop_reason`.
* Children (`BaseNode.children()` names them, so that they are checked, drawn and their tools collected):
    `await config.run(child, state, name)`            one child to its answer, re-entries included
    `await config.together([Child(...)], state)`      several: safe ones at once, merged in declared order
    `await config.run_graph(graph, state, name)`      a whole graph
  Hooks, flags, budgets, limits, cancellation and events hold inside; visits appear as `outer/inner`, and
  `config.scope.path` is that path. Exceptions of these calls are the engine's to handle: let them pass.
* A class that must not be skipped or bypassed at the model's word sets `protected = True` (guards, humans).
"""

from importlib import import_module
from types import ModuleType

from astromesh.graph.base import BaseNode
from astromesh.graph.config import Child, NodeConfig
from astromesh.graph.edges import Edge
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.flags import NodeFlag
from astromesh.graph.function import FunctionNode, node
from astromesh.graph.graph import PromptGraph
from astromesh.graph.hooks import Hook, NodeMetrics
from astromesh.graph.monitors import (
    BudgetHook,
    CycleDetectionHook,
    LoggingHook,
    MetricsHook,
    TimingHook,
)
from astromesh.graph.nodes import (
    AutonomousNode,
    CritiqueNode,
    FanOutNode,
    GuardNode,
    HumanNode,
    JustifyNode,
    LoopNode,
    ObserveNode,
    ParallelNode,
    PlanNode,
    PromptNode,
    ReflectNode,
    RetryNode,
    RouterNode,
    SubgraphNode,
    SynthesizeNode,
    ThinkNode,
    ToolNode,
    TransformNode,
    ValidateNode,
)
from astromesh.graph.nodes.blocks import Examples, FromState, Rules, Text
from astromesh.graph.nodes.guards import Guard, GuardVerdict
from astromesh.graph.nodes.human import HumanDecision, HumanRequest
from astromesh.graph.records import END, ExecutionReport, GraphResult, Mutation, NodeResult
from astromesh.graph.state import GraphState

__all__ = [
    "END",
    "AutonomousNode",
    "BaseNode",
    "BudgetHook",
    "Child",
    "CritiqueNode",
    "CycleDetectionHook",
    "Edge",
    "Examples",
    "ExecutionReport",
    "FanOutNode",
    "FromState",
    "FunctionNode",
    "GraphResult",
    "GraphState",
    "Guard",
    "GuardNode",
    "GuardVerdict",
    "Hook",
    "HumanDecision",
    "HumanNode",
    "HumanRequest",
    "JustifyNode",
    "LoggingHook",
    "LoopNode",
    "MetricsHook",
    "Mutation",
    "NodeConfig",
    "NodeFlag",
    "NodeMetrics",
    "NodeResult",
    "ObserveNode",
    "ParallelNode",
    "PlanNode",
    "PromptGraph",
    "PromptGraphEngine",
    "PromptNode",
    "ReflectNode",
    "RetryNode",
    "RouterNode",
    "Rules",
    "SubgraphNode",
    "SynthesizeNode",
    "Text",
    "ThinkNode",
    "TimingHook",
    "ToolNode",
    "TransformNode",
    "ValidateNode",
    "node",
    "prebuilt",
]


def __getattr__(name: str) -> ModuleType:
    """`prebuilt`, when it is first asked for: the reasoning controller is a tenth of the time to import."""
    if name == "prebuilt":
        return import_module("astromesh.graph.prebuilt")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
