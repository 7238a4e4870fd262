"""Durable Tasks whose process ends inside a stage: finished calls are not made again, effects happen once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.durable.base import RunQuery
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.runs import Decision
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, write
from tests.integration.workflow.folders import runtime_with

ANYBODY = Viewer("default", None)
PATIENCE = 30.0
OPS = """
import asyncio, pathlib

async def charge(file: str, n: int, waits: bool = False):
    with open(file, "a") as effects:
        effects.write(f"{n}\\n")
    while waits and not pathlib.Path(file + ".go").exists():
        await asyncio.sleep(0.01)
    return {"charged": n}

async def pay(input, context, tools):
    first = await tools.call("charge", file=input["file"], n=1)
    await charge(input["file"] + ".own", context.attempt, waits=True)
    return {"paid": first.value, "key": context.idempotency_key}
"""
ARGUMENTS = {
    "type": "object",
    "properties": {"file": {"type": "string"}, "n": {"type": "integer"}, "waits": {"type": "boolean"}},
}


def workflow(config: Path, *, effect: str = "external", agent: str = "payer", **node: Any) -> Path:
    """A workflow `s → x → e`, whose stage x is an agent with a tool, or an operation that calls it."""
    folder = config / "workflows" / "pay"
    folder.mkdir(parents=True)
    (folder / "ops.py").write_text(OPS)
    x = {"id": "x", "role": "linear", "context": "none", "tools": ["charge"], **node}
    x |= {"kind": "deterministic"} if "op" in node else {"kind": "agent", "agent": agent}
    ends = [
        {"id": "s", "kind": "deterministic", "role": "start", "default": True, "context": "none"},
        {"id": "e", "kind": "deterministic", "role": "exit", "context": "none"},
    ]
    edges = [{"from": "s", "to": "x"}, {"from": "x", "to": "e"}]
    tool = {
        "id": "charge",
        "type": "python",
        "entrypoint": "ops:charge",
        "effect": effect,
        "description": "c",
    }
    files: dict[str, Any] = {
        "workflow": {"version": 1, "workflow": "pay", "nodes": [*ends, x], "edges": edges},
        "tools": {"tools": [{**tool, "schema_in": ARGUMENTS, "timeout_s": 30}]},
        "providers": {"providers": [{"id": "m", "kind": "llm", "adapter": "openai_compat", "model": "m"}]},
    }
    if agent == "payer" and "op" not in node:
        own = {"id": "payer", "model": "m", "system_prompt": "Pay.", "context": "none", "tools": ["charge"]}
        files["agents"] = {"agents": [own]}
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return config


class Payer:
    """A model that charges twice and then answers. It hangs in its n-th call, in the first process."""

    def __init__(self, file: Path, *, hangs_at: int = 0, tool_waits_at: int = 0) -> None:
        self.file, self.calls, self.hangs_at, self.waits_at = file, 0, hangs_at, tool_waits_at
        self.reached = asyncio.Event()

    async def __call__(self, request: CompletionRequest) -> Any:
        self.calls += 1
        if self.calls == self.hangs_at:
            self.reached.set()
            await asyncio.Event().wait()
        done = sum(message.role == "tool" for message in request.messages)
        if done == 2:
            return "paid"
        waits = ', "waits": true' if done + 1 == self.waits_at else ""
        return [ToolCall(f"c{done}", "charge", f'{{"file": "{self.file}", "n": {done}{waits}}}')]


async def accepted(runtime: AgentRuntime, file: Path) -> str:
    return (await runtime.workflows.accept("pay", TaskRequest({"file": str(file)}))).task_id


PERSON = CallerContext("pat", scopes=frozenset({"admin"}))


async def decide(runtime: AgentRuntime, task_id: str, decision: Decision) -> dict[str, Any]:
    """Answers the question of a Task as soon as there is one. Returns the question."""
    waits = runtime.workflows.waits
    while not (found := await waits.open(ANYBODY, PERSON, 10)):
        await asyncio.sleep(0.01)
    await waits.decide(task_id, ANYBODY, PERSON, "", decision)
    return found[0]


async def taken_up(
    config: Path, model: Any, *, replays: bool = False, decision: Decision | None = None
) -> dict[str, Any]:
    """The Task when the next process has ended it.

    Args:
        decision: of a person whom it asks.
    """
    async with runtime_with(config, model) as runtime:
        runtime.workflows.resume_left()
        async with asyncio.timeout(PATIENCE):
            [task] = await runtime.workflows.tasks.list(ANYBODY)
            asked = await decide(runtime, task["task_id"], decision) if decision is not None else None
            ended = await runtime.workflows.tasks.ended(task["task_id"], ANYBODY)
        trace = await runtime.workflows.tasks.trace(task["task_id"], ANYBODY)
        replay = await runtime.workflows.replays.replay(task["task_id"], ANYBODY) if replays else {}
    return {**ended, "entries": trace["trace"], "replay": replay, "asked": asked}


async def until(file: Path, lines: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not file.exists() or len(file.read_text().splitlines()) < lines:
            await asyncio.sleep(0.01)


async def test_calls_of_an_interrupted_agent_stage_are_not_made_again(tmp_path: Path) -> None:
    """Its models and tools are journaled; the Task shows and replays all of its calls."""
    config, file = workflow(tmp_path / "config"), tmp_path / "effects"
    first, second = Payer(file, hangs_at=3), Payer(file)
    async with runtime_with(config, first) as runtime:
        await accepted(runtime, file)
        await asyncio.wait_for(first.reached.wait(), PATIENCE)
    task = await taken_up(config, second, replays=True)
    assert (task["status"], task["output"], second.calls) == ("success", "paid", 1)
    assert file.read_text().split() == ["0", "1"]
    [entry] = [one for one in task["entries"] if one["stage_id"] == "x"]
    assert [call["status"] for call in entry["tool_calls"]] == ["success", "success"]
    assert task["replay"]["same"], task["replay"]["divergence"]


@pytest.mark.parametrize(
    ("decision", "effects", "errors"),
    [
        ("deny", ["0", "1"], ["", "unknown_outcome"]),
        ("approve", ["0", "1", "1"], ["", ""]),
    ],
)
async def test_an_interrupted_call_with_effects_is_put_to_a_person(
    tmp_path: Path, decision: Any, effects: list[str], errors: list[str]
) -> None:
    """Who denies it does not repeat it: the model is told that its outcome is unknown."""
    config, file = workflow(tmp_path / "config"), tmp_path / "effects"
    async with runtime_with(config, Payer(file, tool_waits_at=2)) as runtime:
        await accepted(runtime, file)
        await until(file, 2)
    (tmp_path / "effects.go").touch()
    task = await taken_up(config, Payer(file, tool_waits_at=2), decision=Decision(decision))
    assert (task["asked"]["kind"], task["asked"]["name"]) == ("unknown_outcome", "charge")
    assert task["asked"]["arguments"]["n"] == 1
    assert (task["status"], file.read_text().split()) == ("success", effects)
    [entry] = [one for one in task["entries"] if one["stage_id"] == "x"]
    assert [call["error"] for call in entry["tool_calls"]] == errors


async def test_an_interrupted_call_that_reads_is_made_again(tmp_path: Path) -> None:
    config, file = workflow(tmp_path / "config", effect="read"), tmp_path / "effects"
    async with runtime_with(config, Payer(file, tool_waits_at=2)) as runtime:
        await accepted(runtime, file)
        await until(file, 2)
    (tmp_path / "effects.go").touch()
    task = await taken_up(config, Payer(file, tool_waits_at=2))
    assert (task["status"], file.read_text().split()) == ("success", ["0", "1", "1"])


@pytest.mark.parametrize("idempotent", [None, True])
async def test_an_interrupted_operation_runs_again_with_its_key_and_answered_calls(
    tmp_path: Path, idempotent: bool | None
) -> None:
    """Absent is not `false`: only the finished call of its tool is not made again."""
    node: dict[str, Any] = {} if idempotent is None else {"idempotent": idempotent}
    config, file = workflow(tmp_path / "config", op="ops:pay", **node), tmp_path / "effects"
    own = tmp_path / "effects.own"
    async with runtime_with(config) as runtime:
        await accepted(runtime, file)
        await until(own, 1)
    (tmp_path / "effects.own.go").touch()
    task = await taken_up(config, Payer(file))
    assert (task["status"], task["output"]["paid"]) == ("success", {"charged": 1})
    assert (file.read_text().split(), own.read_text().split()) == (["1"], ["1", "2"])


@pytest.mark.parametrize("decision", ["deny", "approve"])
async def test_an_interrupted_stage_that_is_not_idempotent_is_put_to_a_person(
    tmp_path: Path, decision: Any
) -> None:
    config, file = workflow(tmp_path / "config", op="ops:pay", idempotent=False), tmp_path / "effects"
    own = tmp_path / "effects.own"
    async with runtime_with(config) as runtime:
        await accepted(runtime, file)
        await until(own, 1)
    (tmp_path / "effects.own.go").touch()
    task = await taken_up(config, Payer(file), decision=Decision(decision))
    assert (task["asked"]["kind"], task["asked"]["name"]) == ("unknown_outcome", "x")
    if decision == "deny":
        assert (task["status"], task["error"]["code"]) == ("failure", "unknown_outcome")
        assert own.read_text().split() == ["1"]
    else:
        assert (task["status"], own.read_text().split()) == ("success", ["1", "2"])


async def test_a_tool_of_an_agent_of_the_runtime_waits_for_its_approval(tmp_path: Path) -> None:
    """Its run in the stage waits as a durable run does, over a restart too; its own time limit stands."""
    config, file = workflow(tmp_path / "config", agent="helper", tools=[]), tmp_path / "effects"
    nested = {
        "name": "charge",
        "type": "internal",
        "function": "effects_of_test:charge",
        "approval": "required",
    }
    (config / "effects_of_test.py").write_text(OPS)
    limits = {"pattern": "react", "timeout_seconds": 1}
    write(config, manifest(tools=[{**nested, "effect": "external"}], orchestration=limits))
    async with runtime_with(config, Payer(file)) as runtime, asyncio.timeout(PATIENCE):
        task_id = await accepted(runtime, file)
        while not await runtime.workflows.waits.open(ANYBODY, PERSON, 10):
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.1)
        asked = await decide(runtime, task_id, Decision("approve"))
        await until(file, 1)
        while not await runtime.workflows.waits.open(ANYBODY, PERSON, 10):
            await asyncio.sleep(0.01)
    second = Payer(file)
    task = await taken_up(config, second, decision=Decision("approve"), replays=True)
    assert (asked["kind"], asked["name"], asked["arguments"]["n"]) == ("approval", "charge", 0)
    assert (task["status"], task["output"], second.calls) == ("success", "paid", 1)
    assert file.read_text().split() == ["0", "1"]
    assert task["replay"]["same"], task["replay"]["divergence"]


async def test_calls_in_the_run_of_an_agent_of_the_runtime_are_not_made_again(tmp_path: Path) -> None:
    """The stage is one run, which continues behind its last finished call, under the same id."""
    config, file = workflow(tmp_path / "config", agent="helper", tools=[]), tmp_path / "effects"
    nested = {
        "name": "charge",
        "type": "internal",
        "function": "effects_of_test:charge",
        "effect": "external",
    }
    (config / "effects_of_test.py").write_text(OPS)
    write(config, manifest(tools=[nested]))
    first, second = Payer(file, hangs_at=3), Payer(file)
    async with runtime_with(config, first) as runtime:
        assert runtime.broken == {}
        await accepted(runtime, file)
        await asyncio.wait_for(first.reached.wait(), PATIENCE)
    task = await taken_up(config, second)
    assert (task["status"], task["output"], second.calls) == ("success", "paid", 1)
    assert file.read_text().split() == ["0", "1"]
    async with runtime_with(config, second) as runtime:
        await runtime.durable.open()
        [run] = (await runtime.runs.list(RunQuery("default", agent="helper"))).runs
    assert (run["status"], run["result"]["response"]) == ("completed", "paid")
    assert run["run_id"].startswith("run_")
    assert run["result"]["metadata"]["tools_called"] == ["charge", "charge"]
