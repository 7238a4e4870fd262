"""Operations and Python tools of workflows in worker processes: `isolation: process`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import InvalidWorkflow
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from astromesh.workflow import Engine
from tests.integration.workflow.folders import small

OPS = """
import asyncio, os, signal, sys, time
from pathlib import Path

def where(input, context, tools):
    return {"pid": os.getpid(), "input": input, "task": context.task_id, "stage": context.stage_id,
            "attempt": context.attempt, "key": context.idempotency_key, "items": len(context.items)}

async def where_async(input, context, tools):
    await asyncio.sleep(0)
    return where(input, context, tools)

def fail(input, context, tools):
    raise ValueError("as told")

def leave(input, context, tools):
    sys.exit(2)

def not_json(input, context, tools):
    return {"at": float("nan")}

def die(input, context, tools):
    with open(input["log"], "a") as log:
        log.write(f"{os.getpid()} {context.attempt} {context.idempotency_key}\\n")
    if context.attempt <= input.get("deaths", 99):
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"

def hang(input, context, tools):
    Path(input["file"]).write_text(str(os.getpid()))
    time.sleep(600)

def big(input, context, tools):
    return len(bytearray(input * 1024 * 1024))

async def uses_tools(input, context, tools):
    good = await tools.call("pid", n=1)
    bad = await tools.call("broken")
    return {"names": list(tools.names), "good": good.value, "ok": bad.ok, "error": bad.error,
            "content": bad.content, "pid": os.getpid()}

async def misuses(input, context, tools):
    await tools.call("unknown")
    return "never"

def pid(n):
    return {"n": n, "pid": os.getpid()}

def broken():
    raise ValueError("of the tool")

def dies():
    os._exit(5)

async def calls_dying(input, context, tools):
    answer = await tools.call("dies")
    return {"ok": answer.ok, "content": answer.content}
"""
TOOLS = """tools:
  - {id: pid, type: python, entrypoint: "ops:pid", schema_in: {type: object}}
  - {id: broken, type: python, entrypoint: "ops:broken"}
  - {id: dies, type: python, entrypoint: "ops:dies", isolation: process}
"""


def isolated(config: Path, op: str, **keys: Any) -> Path:
    """`s → x → e`, whose stage x runs in a worker process."""
    small(config, op=op, tools=TOOLS)
    folder = config / "workflows" / "small"
    (folder / "ops.py").write_text(OPS)
    file, more = folder / "workflow.yaml", {"isolation": "process", "tools": "[pid, broken, dies]", **keys}
    extra = "".join(f", {key}: {value}" for key, value in more.items() if value is not None)
    file.write_text(file.read_text().replace(f"'ops:{op}'", f"'ops:{op}'{extra}"))
    return config


def engine_of(config: Path, **options: Any) -> Engine:
    return Engine.load(config / "workflows" / "small", **options)


async def output_of(config: Path, input: Any = None) -> Any:
    async with engine_of(config) as engine:
        result = await engine.run(input, task_id="T")
    return result.output if result.status == "success" else result.error


@pytest.mark.parametrize("op", ["where", "where_async"])
async def test_an_operation_runs_in_another_process_with_the_same_arguments(tmp_path: Path, op: str) -> None:
    inside = await output_of(isolated(tmp_path / "a", op, isolation=None), {"a": [1]})
    outside = await output_of(isolated(tmp_path / "b", op), {"a": [1]})
    assert inside["pid"] == os.getpid() != outside["pid"]
    assert {**inside, "pid": 0} == {**outside, "pid": 0}
    assert (outside["task"], outside["stage"], outside["attempt"]) == ("T", "x", 1)


@pytest.mark.parametrize(
    ("op", "code", "message"),
    [("fail", "operation_error", "ValueError: as told"), ("leave", "operation_error", "SystemExit: 2"),
     ("not_json", "invalid_output", "is not a JSON value: NaN or infinity at at")],
)  # fmt: skip
async def test_a_failure_is_the_same_in_either_process(
    tmp_path: Path, op: str, code: str, message: str
) -> None:
    for place, isolation in (("a", None), ("b", "process")):
        error = await output_of(isolated(tmp_path / place, op, isolation=isolation))
        assert (error["code"], error["message"]) == (code, message)


async def test_tools_of_an_isolated_operation_run_in_the_server(tmp_path: Path) -> None:
    """The server makes the calls, under the policies and into the record; misuse fails the stage."""
    async with engine_of(isolated(tmp_path / "a", "uses_tools")) as engine:
        result = await engine.run()
    output = result.output
    assert output["good"] == {"n": 1, "pid": os.getpid()} and output["pid"] != os.getpid()
    assert (output["ok"], output["error"]) == (False, "tool_failed")
    assert "of the tool" in output["content"]
    assert output["names"] == ["pid", "broken", "dies"]
    assert [call["tool"] for call in result.history["x"][0].tool_calls] == ["pid", "broken"]
    error = await output_of(isolated(tmp_path / "b", "misuses"))
    assert error["code"] == "tool_misuse"


async def test_the_death_of_an_isolated_tool_is_a_failed_call(tmp_path: Path) -> None:
    output = await output_of(isolated(tmp_path, "calls_dying", isolation=None))
    assert output == {
        "ok": False, "content": "The tool 'dies' failed: The process that it ran in died (exit code 5).",
    }  # fmt: skip


async def test_an_operation_whose_process_dies_runs_again_up_to_max_attempts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    error = await output_of(isolated(tmp_path / "a", "die"), {"log": str(log)})
    assert (error["code"], error["stage"]) == ("crashed", "x")
    assert "signal 9" in error["message"]
    tries = [line.split() for line in log.read_text().splitlines()]
    assert [attempt for _, attempt, _ in tries] == ["1", "2", "3"]
    assert len({pid for pid, _, _ in tries}) == 3
    assert len({key for _, _, key in tries}) == 1, "the idempotency key is the same"

    survives = {"log": str(tmp_path / "b.log"), "deaths": 2}
    assert await output_of(isolated(tmp_path / "b", "die"), survives) == "survived"
    log = tmp_path / "c.log"
    config = isolated(tmp_path / "c", "die", idempotent="false")
    assert (await output_of(config, {"log": str(log)}))["code"] == "crashed"
    assert len(log.read_text().splitlines()) == 1, "it may not run again"


AGENTS = "agents: [{id: helper, model: scripted, tools: [pid], system_prompt: Help.}]\n"


@pytest.mark.parametrize("suspect", [False, True])
async def test_python_tools_of_an_agent_stage_run_in_another_process_while_it_is_suspect(
    tmp_path: Path, suspect: bool
) -> None:
    def model(request: Any) -> Any:
        last = request.messages[-1]
        return ToolCall("c1", "pid", '{"n": 1}') if last.role == "user" else last.content

    config = small(tmp_path / "config", tools=TOOLS, agents=AGENTS)
    folder = config / "workflows" / "small"
    (folder / "ops.py").write_text(OPS)
    file = folder / "workflow.yaml"
    agent = "kind: agent, role: linear, context: none, agent: helper, tools: [pid]"
    operation = "kind: deterministic, role: linear, context: none, op: 'ops:double'"
    file.write_text(file.read_text().replace(operation, agent))
    records = [{"type": "begin", "task_id": "T", "start": "s", "input": "Where?"}]
    records += [{"type": "start", "task": "", "stage": "x"}] if suspect else []
    models = {"scripted": ScriptedProvider(model, repeat=True)}
    async with engine_of(config, models=models) as engine:
        result = await engine.resume(records)
    assert result.status == "success", result.error
    assert (result.output["pid"] != os.getpid()) is suspect


async def test_a_time_limit_and_a_cancel_kill_the_process(tmp_path: Path) -> None:
    async def gone(file: Path) -> None:
        async with asyncio.timeout(30):
            while not file.exists() or not file.read_text() or Path(f"/proc/{file.read_text()}").exists():
                await asyncio.sleep(0.01)

    file = tmp_path / "timeout"
    error = await output_of(isolated(tmp_path / "a", "hang", timeout_s=3), {"file": str(file)})
    assert error["code"] == "timeout"
    await gone(file)

    file = tmp_path / "cancel"
    async with engine_of(isolated(tmp_path / "b", "hang")) as engine:
        task = engine.submit({"file": str(file)})
        async with asyncio.timeout(30):
            while not file.exists():
                await asyncio.sleep(0.01)
        task.cancel()
        result = await task.result()
    assert result.error and result.error["code"] == "cancelled"
    await gone(file)


async def test_a_memory_limit_fails_the_stage(tmp_path: Path) -> None:
    error = await output_of(isolated(tmp_path / "a", "big", max_memory_mb=256), 512)
    assert (error["code"], error["message"]) == ("operation_error", "MemoryError")
    assert await output_of(isolated(tmp_path / "b", "big", max_memory_mb=1024), 512) == 512 * 1024 * 1024


async def test_keys_of_isolation_have_a_function_to_isolate(tmp_path: Path) -> None:
    config = isolated(tmp_path, "where", isolation=None, max_memory_mb=512)
    file = config / "workflows" / "small" / "workflow.yaml"
    file.write_text(
        file.read_text().replace("role: exit, context: none", "role: exit, context: none, isolation: process")
    )
    tools = config / "workflows" / "small" / "tools.yaml"
    tools.write_text(TOOLS.replace("isolation: process", "max_memory_mb: 512"))
    with pytest.raises(InvalidWorkflow) as raised:
        engine_of(config)
    assert str(raised.value).count("max_memory_mb needs isolation: process") == 2
    assert "isolation is for nodes with an op" in str(raised.value)
