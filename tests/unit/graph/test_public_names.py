"""The public names of documents 000 and 002 and of the graph engine: they exist, with their defaults."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
from msgspec import Struct

import astromesh
import astromesh.graph as graph
from astromesh.graph import (
    ExecutionReport,
    GraphResult,
    GraphState,
    Hook,
    NodeFlag,
    NodeResult,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    prebuilt,
)
from astromesh.graph.base import DEFAULTS
from astromesh.graph.nodes import KINDS
from astromesh.types import CallerContext


def words(text: str) -> list[str]:
    return text.split()


NAMES = words(
    """
    PromptGraph PromptGraphEngine NodeFlag BaseNode node PromptNode ToolNode RouterNode GuardNode
    ParallelNode FanOutNode LoopNode HumanNode TransformNode SubgraphNode AutonomousNode RetryNode
    ThinkNode ReflectNode ObserveNode JustifyNode CritiqueNode PlanNode SynthesizeNode ValidateNode
    GraphState NodeResult ExecutionReport GraphResult Hook TimingHook BudgetHook CycleDetectionHook
    LoggingHook MetricsHook prebuilt
    """
)

#: class → its public names
MEMBERS: dict[Any, list[str]] = {
    PromptGraph: words(
        """
        add_node remove_node get_node has_node nodes edges entry set_entry add_edge get_edges_from
        always when sequential on_tool_call on_no_tool_call on_error on_guard_fail on_output
        on_confidence loop_until set_finalizer from_pool copy validate describe to_mermaid to_config
        from_config
        """
    ),
    PromptGraphEngine: words("ainvoke astream_events"),
    GraphState(): words(
        """
        messages context current_node visited iteration node_iterations plan observations
        reflections node_history ledger
        """
    ),
    Hook: words(
        """
        pre_node post_node pre_tool post_tool on_error on_node_metrics on_observable_event
        on_human_required on_graph_mutation
        """
    ),
    prebuilt: words("react plan_and_execute deliberate debate pipeline autonomous reasoning_controller"),
    PromptNode("n"): words("has_flag execute"),
    astromesh: words("build_agent CallerContext get_current_caller"),
}

#: record → its fields; more are allowed behind them
FIELDS: dict[type[Any], list[str]] = {
    GraphResult: words("messages output context report"),
    NodeResult: words(
        """
        node_name output raw_output next_node transition_reason tool_calls messages_added
        guards_passed guards_failed graph_mutations error usage duration_ms
        """
    ),
    ExecutionReport: words(
        """
        nodes_visited iterations usage duration_ms tool_calls mutations guards stop_reason error
        """
    ),
    CallerContext: words("user_id tenant_id bearer_token roles scopes metadata"),
}

#: function → defaults of its arguments
ARGUMENTS: dict[Any, dict[str, Any]] = {
    PromptGraph: {"mode": "static", "nodes": None},
    PromptGraph.add_edge: {"condition": None, "label": "", "priority": 0},
    PromptGraph.on_output: {"value": True},
    PromptGraphEngine: {
        "tools": None, "hooks": (), "lightweight_model": None, "max_iterations": 50,
        "max_node_iterations": 25, "max_mutations_per_run": 10, "allow_self_modification": False,
        "human_handler": None,
    },
    PromptGraphEngine.ainvoke: {"context": None, "config": None, "caller": None},
    graph.AutonomousNode: {"max_steps": 10},
    astromesh.build_agent: {"servers": None, "tools": None, "pattern": None, "node_pool": None},
}  # fmt: skip

KEYWORDS = words(
    """
    instructions blocks strategy perspective preprocessor postprocessor guards tools inject_tools
    input_keys output_key inherit_context_from output_schema model_override flags is_entry
    is_terminal transitions default_next routes timeout pure max_iterations
    """
)


def test_every_name_is_exported() -> None:
    assert [name for name in NAMES if name not in graph.__all__ or not hasattr(graph, name)] == []


@pytest.mark.parametrize("owner", MEMBERS)
def test_every_member_is_there(owner: Any) -> None:
    assert [name for name in MEMBERS[owner] if not hasattr(owner, name)] == []


@pytest.mark.parametrize("record", FIELDS)
def test_records_have_their_fields_in_order_and_all_of_a_result_have_defaults(record: type[Any]) -> None:
    names = FIELDS[record]
    found = list(record.__struct_fields__) if issubclass(record, Struct) else [f.name for f in fields(record)]
    assert found[: len(names)] == names
    if record in (NodeResult, CallerContext):
        record()


@pytest.mark.parametrize("function", ARGUMENTS)
def test_arguments_have_their_defaults(function: Any) -> None:
    given = inspect.signature(function).parameters
    assert {name: given[name].default for name in ARGUMENTS[function]} == ARGUMENTS[function]


def test_every_node_takes_every_keyword() -> None:
    assert set(KEYWORDS) <= DEFAULTS.keys()
    made = PromptNode("n", **{key: DEFAULTS[key] for key in KEYWORDS})
    assert all(hasattr(made, key) for key in KEYWORDS)


def test_every_kind_of_node_is_exported_and_is_written_to_yaml_by_a_name() -> None:
    """The table of nodes in the docs names them all."""
    assert {kind.__name__ for kind in KINDS.values()} <= set(graph.__all__)
    assert len(KINDS) == 21


def test_the_flags_of_the_table_are_18_and_the_users_own_are_flags_as_well() -> None:
    assert len(NodeFlag) == 18
    assert PromptNode("n", flags={"mine", 7, NodeFlag.CRITICAL}).has_flag(7)
