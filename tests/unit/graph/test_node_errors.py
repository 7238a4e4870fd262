"""No exception of a node vanishes: report, events, log, the end of the run and what callers raise."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from astromesh.errors import (
    AllProvidersFailed,
    GraphError,
    InvalidGraph,
    MissingKey,
    NodeFailed,
    ProviderUnavailable,
)
from astromesh.graph import (
    FunctionNode,
    Guard,
    GuardVerdict,
    HumanNode,
    LoggingHook,
    LoopNode,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    SubgraphNode,
)
from astromesh.testing import ManualClock, ScriptedProvider


def says(name: str, value: Any = None, **keywords: Any) -> FunctionNode:
    return FunctionNode(name, lambda state: value(state) if callable(value) else value, **keywords)


def fails(name: str, error: Exception | None = None, **keywords: Any) -> FunctionNode:
    def body(state: Any) -> None:
        raise error or ValueError("broken")

    return FunctionNode(name, body, **keywords)


async def run(graph: PromptGraph, **engine: Any) -> Any:
    return await PromptGraphEngine(graph, **engine).ainvoke("Why?")


def chain(*nodes: Any, **keywords: Any) -> PromptGraph:
    return PromptGraph(nodes=nodes, **keywords).sequential(*(node.name for node in nodes))


def found(result: Any) -> list[tuple[str, str, str]]:
    return [(error.node, error.type, error.message) for error in result.report.errors]


async def test_an_error_that_a_later_node_heals_is_still_told(caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on and completes; the error is in the report and, with its traceback, in the log."""
    result = await run(chain(fails("a"), says("b", "fine")))
    assert (result.output, result.ok, result.error) == ("fine", True, "")
    assert found(result) == [("a", "ValueError", "broken")]
    assert result.report.to_json()["errors"] == [{"node": "a", "type": "ValueError", "message": "broken"}]
    (line,) = [record for record in caplog.records if "'a'" in record.message]
    assert line.levelno == logging.WARNING
    assert line.exc_info is not None
    assert line.exc_info[0] is ValueError
    result.raise_for_error()


async def test_a_run_whose_last_error_nothing_took_up_has_failed() -> None:
    """`failed`, and the caller can raise it with the original exception as its cause."""
    original = ValueError("broken")
    result = await run(chain(says("a", 1), fails("b", original)))
    assert (result.output, result.ok, result.error) == (None, False, "ValueError: broken")
    assert result.report.stop_reason == "failed"
    with pytest.raises(NodeFailed, match="b: broken") as raised:
        result.raise_for_error()
    assert raised.value.__cause__ is original


class Mute(Exception):
    """One that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def mute(*arguments: Any) -> Any:
    raise Mute


class MuteHook:
    def pre_node(self, node: Any, state: Any) -> None:
        raise Mute


async def write_one(state: Any) -> None:
    state.context["k"] = 1


@pytest.mark.parametrize(
    ("graph", "says_what"),
    [
        (lambda: chain(FunctionNode("a", mute)), "Mute"),
        (lambda: chain(FunctionNode("a", mute, output_key="k")), "Mute"),
        (lambda: chain(says("a", 1, guards=[Guard(mute)])), "Mute"),
        (lambda: chain(HumanNode("a")), "The handler of 'a' failed: Mute"),
        (lambda: PromptGraph(nodes=[says("a", 1), says("b")]).when("a", "b", mute), "failed: Mute"),
        (
            lambda: chain(
                ParallelNode("a", [FunctionNode("b", write_one), FunctionNode("c", write_one)]),
                reducers={"k": lambda value, written: mute()},
            ),
            "The reducer of 'k' failed: Mute",
        ),
    ],
    ids=["node", "output key", "guard", "handler", "condition", "reducer"],
)
async def test_an_exception_without_a_text_is_named_by_its_class(graph: Any, says_what: str) -> None:
    result = await run(graph(), human_handler=mute)
    assert not result.ok
    assert says_what in result.error
    assert all(error.message for error in result.report.errors)
    with pytest.raises(GraphError):
        result.raise_for_error()


async def test_a_hook_whose_exception_has_no_text_harms_nobody() -> None:
    assert (await run(chain(says("a", "fine")), hooks=[MuteHook()])).output == "fine"
    result = await run(chain(FunctionNode("a", mute), says("b", "fine")), hooks=[LoggingHook()])
    assert (result.output, found(result)) == ("fine", [("a", "Mute", "Mute")])


async def test_a_stop_without_a_node_error_is_raised_too() -> None:
    result = await run(PromptGraph(nodes=[says("a")]).always("a", "a"), max_iterations=2)
    assert (result.ok, result.report.errors) == (False, [])
    with pytest.raises(GraphError, match="2 node executions"):
        result.raise_for_error()


@pytest.mark.parametrize(
    "handled",
    [
        lambda: chain(fails("a")).on_error("a", "__end__"),
        lambda: chain(fails("a"), says("b", flags={NodeFlag.SKIP_ON_ERROR}), says("c")).on_error("a", "c"),
        lambda: PromptGraph(nodes=[fails("a", transitions={"error": "__end__"})]),
        lambda: PromptGraph(nodes=[fails("a"), says("__error__")]).always("a", "__error__"),
        lambda: chain(fails("a"), says("b")),
        lambda: PromptGraph(nodes=[says("a", NodeResult(error="no", next_node="__end__"))]),
        lambda: PromptGraph(nodes=[fails("a")]).when("a", "__end__", lambda result: bool(result.error)),
    ],
    ids=["error edge", "to a node", "transition", "__error__", "later success", "own choice", "condition"],
)
async def test_what_takes_an_error_up(handled: Any) -> None:
    result = await run(handled())
    assert (result.report.stop_reason, result.report.error) == ("completed", "")
    assert [error.node for error in result.report.errors] == ["a"]


async def test_what_takes_no_error_up() -> None:
    """Neither plain edges nor the default, nor an error edge to a node that is skipped."""
    skipped = says("b", flags={NodeFlag.SKIP_ON_ERROR})
    for graph in (
        chain(fails("a"), skipped),
        PromptGraph(nodes=[fails("a", default_next="b"), skipped]),
        PromptGraph(nodes=[fails("a"), skipped]).on_error("a", "b"),
        chain(fails("x"), says("y"), fails("a")),
        PromptGraph(nodes=[fails("a")]).always("a", "__end__"),
    ):
        result = await run(graph)
        assert (result.report.stop_reason, result.report.error) == ("failed", "ValueError: broken")


async def test_a_handler_that_fails_fails_the_run() -> None:
    result = await run(chain(fails("a")).add_node(fails("h", KeyError("k"))).on_error("a", "h"))
    assert result.report.stop_reason == "failed"
    assert [error.node for error in result.report.errors] == ["a", "h"]
    assert result.report.failure is result.report.errors[1]


# -- on_error: stop ----------------------------------------------------------------------------------------


async def test_a_graph_may_stop_at_its_first_error() -> None:
    """No unconditional edge and no default is followed; edges for failures are."""
    stopped = await run(chain(fails("a"), says("b", "fine"), on_error="stop"))
    assert (stopped.report.nodes_visited, stopped.report.stop_reason) == (["a"], "failed")
    by_default = PromptGraph(nodes=[fails("a", default_next="b"), says("b")], on_error="stop")
    assert (await run(by_default)).report.nodes_visited == ["a"]
    led_on = chain(fails("a"), says("b", "fine"), on_error="stop").add_node(says("h", "helped"))
    assert (await run(led_on.on_error("a", "h"))).output == "helped"
    assert (await run(chain(says("a"), says("b", "fine"), on_error="stop"))).output == "fine"


def test_on_error_is_a_key_of_the_graph_and_survives_yaml() -> None:
    plain = {"name": "g", "nodes": [{"name": "a", "kind": "prompt"}]}
    graph = PromptGraph.from_config({**plain, "on_error": "stop"})
    assert graph.stops_on_error
    assert graph.copy().stops_on_error
    assert graph.to_config()["on_error"] == "stop"
    assert "on_error" not in PromptGraph.from_config(plain).to_config()
    with pytest.raises(InvalidGraph, match="on_error: must be one of continue, stop"):
        PromptGraph.from_config({**plain, "on_error": "halt"})
    with pytest.raises(ValueError, match="on_error must be 'continue' or 'stop'"):
        PromptGraph(on_error="halt")  # type: ignore[arg-type]


async def test_a_finalizer_answers_for_a_failed_run() -> None:
    """It runs on any stop but `completed`; the error stays in the report."""
    graph = chain(fails("a")).add_node(says("sum_up", lambda s: f"sorry: {s.shared.error}"))
    result = await run(graph.set_finalizer("sum_up"))
    assert result.output == "sorry: ValueError: broken"
    assert (result.report.stop_reason, result.report.error) == ("failed", "ValueError: broken")


# -- nested, repeated, collected ---------------------------------------------------------------------------


async def test_errors_inside_are_told_by_their_paths() -> None:
    """The child first, then the node that passes its failure on; the innermost is the one that counts."""
    original = ValueError("broken")
    inner = PromptGraph("inner", nodes=[fails("x", original)])
    result = await run(PromptGraph(nodes=[SubgraphNode("s", inner)]))
    assert found(result) == [("s/x", "ValueError", "broken"), ("s", "ValueError", "broken")]
    assert result.report.failure.node == "s/x"
    loop = await run(PromptGraph(nodes=[LoopNode("l", fails("x", original), "done")]))
    assert [error.node for error in loop.report.errors] == ["l/x", "l"]
    assert loop.report.failure.exception is original


async def test_an_inner_error_that_is_handled_inside_does_not_fail_the_outer_node() -> None:
    inner = PromptGraph("inner", nodes=[fails("x")]).on_error("x", "__end__")
    result = await run(PromptGraph(nodes=[SubgraphNode("s", inner)]))
    assert (result.ok, [error.node for error in result.report.errors]) == (True, ["s/x"])


async def test_collected_failures_of_children_are_told(caplog: pytest.LogCaptureFixture) -> None:
    flags = {NodeFlag.PARALLEL_SAFE}
    node = ParallelNode("p", [fails("x", flags=flags), says("y", 1, flags=flags)], on_error="collect")
    result = await run(PromptGraph(nodes=[node]))
    assert (result.ok, found(result)) == (True, [("p/x", "ValueError", "broken")])


async def test_the_traceback_of_a_child_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    await run(PromptGraph(nodes=[ParallelNode("p", [fails("x")])]))
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


async def test_failed_attempts_are_told_too() -> None:
    """A RETRYABLE node that succeeds in the end has failed before, and the report says how."""
    left = [ValueError("one"), OSError("two")]

    def body(state: Any) -> str:
        if left:
            raise left.pop(0)
        return "done"

    node = FunctionNode("a", body, flags={NodeFlag.RETRYABLE})
    result = await run(PromptGraph(nodes=[node]), clock=ManualClock(jump=True))
    assert (result.output, result.ok) == ("done", True)
    assert found(result) == [("a", "ValueError", "one"), ("a", "OSError", "two")]


async def test_a_guard_that_raises_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def broken(output: Any) -> bool:
        raise ValueError("in the guard")

    result = await run(PromptGraph(nodes=[says("a", 1, guards=[Guard(broken, name="g")])]))
    assert found(result)[0][:2] == ("a", "OutputRefused")
    assert any(record.exc_info and record.exc_info[0] is ValueError for record in caplog.records)


async def test_a_condition_that_raises_fails_its_node() -> None:
    def broken(result: Any) -> bool:
        raise ValueError("in the condition")

    result = await run(PromptGraph(nodes=[says("a", 1), says("b")]).when("a", "b", broken))
    assert result.report.stop_reason == "failed"
    assert [(error.node, error.type) for error in result.report.errors] == [("a", "ValueError")]


async def test_what_a_person_denies_is_no_error_of_the_node_but_a_broken_handler_is() -> None:
    def broken(request: Any) -> Any:
        raise ValueError("no handler today")

    graph = chain(says("a", 1), HumanNode("h"))
    assert (await run(graph, human_handler=lambda request: "deny")).report.errors == []
    result = await run(graph, human_handler=broken)
    assert result.report.stop_reason == "human_denied"
    assert [(error.node, error.type) for error in result.report.errors] == [("h", "ValueError")]


@pytest.mark.parametrize(
    "error", [AllProvidersFailed([ProviderUnavailable("down")]), MissingKey("OPENAI_API_KEY is not set.")]
)
async def test_an_error_that_says_what_to_do_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """When no model answers, a traceback for each run would only fill the log."""
    await run(PromptGraph(nodes=[fails("a", error)]))
    assert [bool(record.exc_info) for record in caplog.records] == [False]


# -- events ------------------------------------------------------------------------------------------------


async def test_an_error_is_an_event_without_secrets() -> None:
    graph = chain(fails("a", ValueError("password=hunter22")), says("b", "fine"))
    events = [event async for event in PromptGraphEngine(graph).astream_events("Why?")]
    (failed,) = [event.data for event in events if event.type == "node.failed"]
    assert failed == {"node": "a", "type": "ValueError", "message": "password=***"}
    assert events[-1].type == "run.completed"
    assert events[-1].data["metadata"]["errors"] == [failed]


async def test_a_long_message_is_cut_in_events() -> None:
    graph = PromptGraph(nodes=[fails("a", ValueError("x" * 10_000))])
    events = [event async for event in PromptGraphEngine(graph).astream_events("Why?")]
    (failed,) = [event.data for event in events if event.type == "node.failed"]
    assert len(failed["message"]) == 500


async def test_a_model_that_fails_is_an_error_of_its_node() -> None:
    model = ScriptedProvider(ProviderUnavailable("down"))
    result = await run(PromptGraph(nodes=[PromptNode("p")]), model=model)
    assert found(result) == [("p", "ProviderUnavailable", "down")]
    with pytest.raises(NodeFailed) as raised:
        result.raise_for_error()
    assert isinstance(raised.value.__cause__, ProviderUnavailable)


async def test_events_do_not_quote_what_a_guard_refused() -> None:
    """The feedback may repeat the output; the report for developers has it."""

    def rude(output: Any) -> GuardVerdict:
        return GuardVerdict(False, f"{output!r} is rude")

    for node in (
        says("a", "you fool", guards=[rude]),
        SubgraphNode("a", PromptGraph("g", nodes=[says("x", "you fool", guards=[rude])])),
        ParallelNode("a", [says("x", "you fool", guards=[rude])]),
    ):
        result = await run(PromptGraph(nodes=[node]))
        assert "you fool" in result.report.errors[-1].message
        for error in result.report.errors:
            assert error.to_json()["message"] == "The guard rude refused the output."
