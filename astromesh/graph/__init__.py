"""The graph engine (documents 000 and 002): nodes, flags, edges, hooks, one loop.

To write a node, subclass `BaseNode` and implement `async execute(state, config) -> NodeResult`, or decorate a
function with `@node`. During `execute`:

* `state` (GraphState) holds messages, context, plan, observations, reflections. A node may read and append.
  The engine, not the node, writes `output` to `context[output_key]` and `context[NAME_output]` and appends
  `messages_added`, after SUMMARIZE_OUTPUT and VALIDATE_OUTPUT. READONLY forbids direct writes. Under
  NO_HISTORY, ISOLATED_CONTEXT and READONLY `state` is a view: keep no reference to it.
* `config` (NodeConfig) gives access to everything else:
    `await config.complete(request, role=...)`  the node's model, with model_override and LIGHTWEIGHT applied
    `config.specs()`, `await config.call_tools(calls, state)`  its tools, with hooks, budgets and events
    `config.lightweight_model`, `config.human_handler`, `config.caller`, `config.clock`
    `config.scope`, `config.ledger`, `config.events`  the run at this node's path
    `config[...]`  the run's own values, stored between executions (`_node_cache_PATH`)
* To ask for another round of tools, return a NodeResult with `tool_calls`, `messages_added` (the assistant
  message and one tool message per call) and `transition_reason="tool_calls_present"`.
* To fail, raise an exception or set `result.error`. To end the run with a reason, set `result.stop_reason`.
* Children (`BaseNode.children()` names them, so that they are checked, drawn and their tools collected):
    `await config.run(child, state, name)`            one child to its answer, tool loop included
    `await config.together([Child(...)], state)`      several: safe ones concurrently, merged in declared
    order `await config.run_graph(graph, state, name)`      a whole graph
  Hooks, flags, budgets, limits, cancellation and events apply to them. Their visits are reported as
  `outer/inner`, and `config.scope.path` is that path. Do not catch the exceptions of these calls.
* A class that no model may skip or bypass sets `protected = True` (guards, humans).
"""

from astromesh.graph import prebuilt
from astromesh.graph.active_node import emit, interrupt
from astromesh.graph.base import BaseNode
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.hooks import (
    BudgetHook,
    CycleDetectionHook,
    Hook,
    LoggingHook,
    MetricsHook,
    NodeMetrics,
    TimingHook,
)
from astromesh.graph.node_config import Child, NodeConfig
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
from astromesh.graph.nodes.function import FunctionNode, node
from astromesh.graph.nodes.guard import Guard, GuardVerdict
from astromesh.graph.nodes.human import HumanDecision, HumanRequest
from astromesh.graph.nodes.system_prompt import Examples, FromState, Rules, Text
from astromesh.graph.policies import CachePolicy, RetryPolicy
from astromesh.graph.records import (
    END,
    Checkpoint,
    ExecutionReport,
    GraphResult,
    GraphSnapshot,
    Interrupt,
    Mutation,
    NodeResult,
)
from astromesh.graph.state import GraphState
from astromesh.graph.streams import GraphStream, StreamPart
from astromesh.graph.transitions import Edge, Fork, Send
from astromesh.types import Command

__all__ = [
    "END",
    "AutonomousNode",
    "BaseNode",
    "BudgetHook",
    "CachePolicy",
    "Checkpoint",
    "Child",
    "Command",
    "CritiqueNode",
    "CycleDetectionHook",
    "Edge",
    "Examples",
    "ExecutionReport",
    "FanOutNode",
    "Fork",
    "FromState",
    "FunctionNode",
    "GraphResult",
    "GraphSnapshot",
    "GraphState",
    "GraphStream",
    "Guard",
    "GuardNode",
    "GuardVerdict",
    "Hook",
    "HumanDecision",
    "HumanNode",
    "HumanRequest",
    "Interrupt",
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
    "RetryPolicy",
    "RouterNode",
    "Rules",
    "Send",
    "StreamPart",
    "SubgraphNode",
    "SynthesizeNode",
    "Text",
    "ThinkNode",
    "TimingHook",
    "ToolNode",
    "TransformNode",
    "ValidateNode",
    "emit",
    "interrupt",
    "node",
    "prebuilt",
]
