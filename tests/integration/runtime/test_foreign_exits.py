"""SystemExit, KeyboardInterrupt without a signal, panics and GeneratorExit end what raised them alone."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import ConfigError
from astromesh.graph import FunctionNode, Guard, ParallelNode, PromptGraph, PromptGraphEngine
from astromesh.guardrails.base import CheckContext, Rule, Verdict
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ScriptedProvider
from astromesh.tools.base import ToolContext
from astromesh.tools.functions import FunctionTool
from astromesh.tools.toolbox import ToolBox
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.workflow.folders import runtime_with, small, until

OPS = """
import argparse, asyncio, sys

def parse(input, context, tools):
    return argparse.ArgumentParser().parse_args(["--unknown"])

async def leave(input, context, tools):
    sys.exit(3)

def interrupt(input, context, tools):
    raise KeyboardInterrupt

class Panic(BaseException):
    pass

async def panic(input, context, tools):
    raise Panic("out of bounds")

async def close(input, context, tools):
    raise GeneratorExit
"""


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("parse", "SystemExit: 2"),
        ("leave", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("panic", "Panic: out of bounds"),
        ("close", "GeneratorExit"),
    ],
)
async def test_an_operation_that_exits_is_a_failed_stage(tmp_path: Path, op: str, message: str) -> None:
    config = small(tmp_path / "config", op=op)
    (config / "workflows" / "small" / "ops.py").write_text(OPS)
    async with client_of(runtime_with(config)) as client:
        task = (await client.post("/v1/workflows/small/run", json={"input": 1})).json()
        again = await client.get("/v1/workflows")
    assert task["status"] == "failure"
    assert (task["error"]["code"], task["error"]["message"]) == ("operation_error", message)
    assert again.status_code == 200


@pytest.mark.parametrize("op", ["panic", "close"])
async def test_an_operation_of_a_durable_task_that_panics_is_not_repeated(tmp_path: Path, op: str) -> None:
    config = small(tmp_path / "config", op=op)
    (config / "workflows" / "small" / "ops.py").write_text(OPS)
    async with client_of(runtime_with(config)) as client:
        accepted = (await client.post("/v1/workflows/small/runs", json={"input": 1})).json()
        task = await until(client, accepted["task_id"], "failure", "success")
    assert task["error"]["code"] == "operation_error"


def exits(*arguments: Any) -> Any:
    sys.exit(5)


def interrupts(*arguments: Any) -> Any:
    raise KeyboardInterrupt


class Panic(BaseException):
    """As extensions in Rust raise it."""


class Mute(Exception):
    """One that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def mutes(*arguments: Any) -> Any:
    raise Mute


def panics(*arguments: Any) -> Any:
    raise Panic("out of bounds")


async def closes(*arguments: Any) -> Any:
    raise GeneratorExit


async def exits_async(*arguments: Any) -> Any:
    argparse.ArgumentParser().parse_args(["--unknown"])


EXITS = pytest.mark.parametrize("leave", [exits, interrupts, exits_async, panics, closes, mutes])
NAMES = ("SystemExit", "KeyboardInterrupt", "Panic", "GeneratorExit", "Mute")


@EXITS
async def test_a_tool_that_exits_is_a_failed_call(leave: Callable[..., Any]) -> None:
    def sync_tool(x: int) -> Any:
        return leave(x)

    async def async_tool(x: int) -> Any:
        value = leave(x)
        return await value if asyncio.iscoroutine(value) else value

    box = ToolBox([FunctionTool(sync_tool), FunctionTool(async_tool)])
    for name in ("sync_tool", "async_tool"):
        result = await box.execute(ToolCall("1", name, '{"x": 1}'), ToolContext())
        assert (result.ok, result.error) == (False, "tool_failed")
        assert any(word in result.content for word in NAMES)


@EXITS
async def test_a_node_that_exits_is_a_failed_node(leave: Callable[..., Any]) -> None:
    graph = PromptGraph(nodes=[FunctionNode("a", leave)])
    result = await PromptGraphEngine(graph).ainvoke("Why?")
    assert not result.ok
    assert result.report.errors[0].type in NAMES


@EXITS
async def test_a_durable_run_whose_node_exits_has_failed(tmp_path: Path, leave: Callable[..., Any]) -> None:
    memory = {"conversational": {"backend": "sqlite"}}
    spec: dict[str, Any] = {"orchestration": {"pattern": "graph", "graph": "g"}, "memory": memory}
    graph = PromptGraph("g", nodes=[FunctionNode("a", leave)])
    runtime = runtime_of(write(tmp_path, manifest(**spec)), ScriptedProvider("fine"), graphs={"g": graph})
    async with client_of(runtime) as client:
        body = {"query": "Why?", "session_id": "s"}
        path = f"/v1/runs/{(await client.post('/v1/agents/helper/runs', json=body)).json()['run_id']}"
        async with asyncio.timeout(20):
            while (run := (await client.get(path)).json())["status"] in ("queued", "running"):
                await asyncio.sleep(0.01)
    assert (run["status"], run["error"]["code"]) == ("failed", "node_failed")


@pytest.mark.parametrize("leave", [exits, interrupts, panics])
async def test_a_reducer_that_exits_is_a_failed_run(leave: Callable[..., Any]) -> None:
    def write(state: Any) -> None:
        state.context["k"] = 1

    children = [FunctionNode(name, write) for name in ("a", "b")]
    graph = PromptGraph(nodes=[ParallelNode("p", children)], reducers={"k": leave})
    result = await PromptGraphEngine(graph).ainvoke("Why?")
    assert "The reducer of 'k' failed" in result.error


@EXITS
async def test_conditions_guards_and_hooks_that_exit_end_no_run(leave: Callable[..., Any]) -> None:
    class Exits:
        def pre_node(self, node: Any, state: Any) -> Any:
            return leave(node)

        def post_graph(self, state: Any) -> Any:
            return leave(state)

    def value(state: Any) -> str:
        return "fine"

    hooked = PromptGraph(nodes=[FunctionNode("a", value)])
    assert (await PromptGraphEngine(hooked, hooks=[Exits()]).ainvoke("Why?")).output == "fine"

    guarded = PromptGraph(nodes=[FunctionNode("a", value, guards=[Guard(leave)])])
    assert not (await PromptGraphEngine(guarded).ainvoke("Why?")).ok

    if leave not in (exits_async, closes):  # conditions are plain functions
        asks = PromptGraph(nodes=[FunctionNode("a", value), FunctionNode("b", value)])
        asks.add_edge("a", "b", condition=leave)
        assert (await PromptGraphEngine(asks).ainvoke("Why?")).report.stop_reason


class Exiting(Rule):
    """A guardrail that ends the process that it runs in."""

    type = "exiting"

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        if "leave" in text:
            sys.exit(6)
        return None


class Panicking(Rule):
    """A guardrail whose extension panics."""

    type = "exiting"

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        if "leave" in text:
            panics()
        return None


@pytest.mark.parametrize("code", ["model", "guardrail"])
@pytest.mark.parametrize("leave", [exits, panics])
async def test_a_model_or_guardrail_that_exits_ends_its_run_alone(
    tmp_path: Path, code: str, leave: Callable[..., Any]
) -> None:
    def model(request: Any) -> Any:
        if code == "model" and request.messages[-1].content == "leave":
            leave()
        return "fine"

    guardrails = {"input": [{"type": "exiting"}]} if code == "guardrail" else {}
    folder = write(tmp_path, manifest(guardrails=guardrails))
    plugins = {"guardrails": {"exiting": Exiting if leave is exits else Panicking}}
    runtime = runtime_of(folder, ScriptedProvider(model, repeat=True), plugins=plugins)
    async with client_of(runtime) as client:
        body = {"query": "leave", "session_id": "s"}
        left = await client.post("/v1/agents/helper/run", json=body)
        stays = await client.post("/v1/agents/helper/run", json={**body, "query": "stay"})
    assert left.status_code == 500
    assert left.json()["code"] in ("internal", "node_failed")
    assert stays.json()["response"] == "fine"


async def test_a_plugin_that_exits_when_it_is_opened_is_a_fault_of_the_configuration() -> None:
    class Leaves(Rule):
        type = "leaves"

        @classmethod
        async def open(cls, options: Any, deps: Any) -> Any:
            sys.exit(8)

    plugins = Plugins({"guardrails": {"leaves": Leaves}})
    with pytest.raises(ConfigError, match="`leaves` could not be loaded: it raised SystemExit: 8"):
        await plugins.open("guardrails", "leaves", {}, Deps())


async def test_an_observer_that_exits_misses_events_alone(tmp_path: Path) -> None:
    config = small(tmp_path / "config", plugins="plugins: [{id: w, module: watch.Leaves}]\n")
    (config / "workflows" / "small" / "watch.py").write_text(
        "import sys\nclass Leaves:\n    def __init__(self, config): pass\n"
        "    def observe(self, event): sys.exit(9)\n    def close(self): sys.exit(9)\n"
    )
    async with client_of(runtime_with(config)) as client:
        for _ in range(2):
            task = (await client.post("/v1/workflows/small/run", json={"input": 1})).json()
            assert task["output"] == 2


async def test_a_module_that_exits_when_it_is_imported_is_a_fault_of_its_workflow(tmp_path: Path) -> None:
    config = small(tmp_path / "config")
    (config / "workflows" / "small" / "ops.py").write_text("import sys\nsys.exit(10)\n")
    async with client_of(runtime_with(config)) as client:
        (found,) = (await client.get("/v1/workflows")).json()["workflows"]
    assert found["status"] == "broken"
    assert "SystemExit: 10" in found["errors"][0]


async def test_a_listener_that_exits_is_removed(tmp_path: Path) -> None:
    class Leaves:
        wants_deltas = True

        def send(self, event: Any) -> None:
            sys.exit(11)

    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("fine"))
    async with runtime:
        answer = await runtime.run("helper", "Why?", "s", sinks=[Leaves()])
    assert answer.response == "fine"
