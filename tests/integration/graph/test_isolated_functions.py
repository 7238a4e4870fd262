"""Function nodes with `isolation: process`: what they read and write, failures, time and memory limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from astromesh.graph import FunctionNode, GraphResult, PromptGraph, PromptGraphEngine
from astromesh.tools.process_pool import ISOLATED
from tests.integration.graph import isolated_nodes


def value(state: Any) -> str:
    return "before"


def last(state: Any) -> str:
    return "last"


async def run(*nodes: FunctionNode, **context: Any) -> GraphResult:
    graph = PromptGraph(nodes=nodes).sequential(*(one.name for one in nodes))
    return await PromptGraphEngine(graph).ainvoke("Why?", context=context)


def isolated(function: Callable[..., Any], **keywords: Any) -> FunctionNode:
    return FunctionNode("a", function, isolation="process", **keywords)


@pytest.mark.parametrize("function", [isolated_nodes.where, isolated_nodes.where_async])
async def test_a_function_reads_the_state_in_another_process(function: Callable[..., Any]) -> None:
    inside = (await run(FunctionNode("first", value), FunctionNode("a", function), number=1)).output
    outside = (await run(FunctionNode("first", value), isolated(function), number=1)).output
    assert inside["pid"] == os.getpid() != outside["pid"]
    assert {**inside, "pid": 0} == {**outside, "pid": 0}
    assert (outside["question"], outside["before"]) == ("Why?", "before")


async def test_what_it_writes_reaches_the_run() -> None:
    graph = PromptGraph(nodes=[isolated_nodes.writes, FunctionNode("last", last)])
    graph.add_edge("writes", "last")
    context = {"nested": {"list": [1]}, "gone": True, "stays": "as it was"}
    result = await PromptGraphEngine(graph).ainvoke("Why?", context=context)
    assert result.output == "last"
    assert result.context["found"] == {"n": 1}
    assert result.context["nested"] == {"list": [1, 2]}
    assert result.context["stays"] == "as it was"
    assert "gone" not in result.context
    assert [message.content for message in result.messages] == ["Why?", "from the worker"]


@pytest.mark.parametrize(
    ("function", "message"),
    [(isolated_nodes.fails, "ValueError: as told"),
     (isolated_nodes.dies, "The process that it ran in died (exit code 6)."),
     (isolated_nodes.no_json, "The output of 'a' is not JSON")],
)  # fmt: skip
async def test_failures_are_the_node_s(function: Callable[..., Any], message: str) -> None:
    result = await run(isolated(function))
    assert not result.ok
    assert message in result.report.errors[0].message


async def test_a_context_that_is_not_json_is_an_error_that_names_the_key() -> None:
    result = await run(isolated(isolated_nodes.where), number=1, thing=object())
    assert "The value of 'thing' in the context is not JSON" in result.report.errors[0].message


async def test_a_timeout_ends_the_process_and_drops_its_writes() -> None:
    result = await run(isolated(isolated_nodes.hangs, timeout=2))
    assert "did not end within 2 s" in result.report.errors[0].message
    assert "pid" not in result.context


async def test_a_memory_limit_and_a_stop() -> None:
    result = await run(isolated(isolated_nodes.big, max_memory_mb=256))
    assert result.report.errors[0].message == "MemoryError"
    result = await run(isolated(isolated_nodes.stops), FunctionNode("b", last))
    assert result.report.stop_reason == "cycle"


async def test_functions_of_a_suspected_stage_run_in_another_process() -> None:
    token = ISOLATED.set(lambda takes_context: True)
    try:
        result = await run(FunctionNode("a", isolated_nodes.where), number=1)
    finally:
        ISOLATED.reset(token)
    assert result.output["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"function": lambda state: 1}, "neither a lambda"),
     ({"function": isolated_nodes.with_config}, r"needs a function of \(state\)"),
     ({"inline": True}, "either inline or has isolation"), ({"isolation": "thread"}, "must be process"),
     ({"isolation": None, "max_memory_mb": 9}, "needs isolation: process"),
     ({"max_memory_mb": 0}, "at least 1")],
)  # fmt: skip
def test_keys_fit_the_function(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FunctionNode(**{"name": "a", "function": isolated_nodes.where, "isolation": "process", **keywords})


def test_the_keys_are_read_from_yaml_and_written() -> None:
    data = {
        "name": "g", "nodes": [{"name": "a", "kind": "function", "isolation": "process", "max_memory_mb": 64,
                                "function": f"{isolated_nodes.__name__}:where"}],
    }  # fmt: skip
    graph = PromptGraph.from_config(data)
    found = graph.nodes["a"]
    assert isinstance(found, FunctionNode)
    assert (found.isolation, found.max_memory_mb) == ("process", 64)
    assert graph.to_config()["nodes"][0]["max_memory_mb"] == 64
