"""Random runs of every pattern and of workflows, forked at every step and replayed.

`make test` takes some of them, `make reliability` 100 and more (`ASTROMESH_RANDOM_RUNS`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from astromesh.access.scopes import Viewer
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.time_travel import ForkRequest
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.orchestration.pattern_cases import LOOK, PERMITTED, QUESTION, Case
from tests.integration.orchestration.test_pattern_journals import CUTS, ended
from tests.integration.workflow import folders
from tests.integration.workflow.test_task_forks import forked, started, steps_of

RUNS = int(os.environ.get("ASTROMESH_RANDOM_RUNS", "16"))
ME, CALLER = Viewer("default", "anonymous"), CallerContext(scopes=frozenset({"admin"}))
CALLS: list[str] = []
TOOLS = [{"name": "lookup", "type": "internal", "function": f"{__name__}:lookup", "effect": "read"}]
GRAPH = {
    "apiVersion": "astromesh/v1",
    "kind": "Graph",
    "metadata": {"name": "plan"},
    "spec": {
        "entry": "find",
        "nodes": [
            {"name": "find", "kind": "prompt", "instructions": "Find.", "inject_tools": True},
            {"name": "write", "kind": "prompt", "instructions": "Write.", "is_terminal": True},
        ],
        "edges": [{"from": "find", "to": "write"}],
    },
}
PATTERNS = {
    **CUTS,
    "graph": Case({"pattern": "graph", "graph": "plan"}, [LOOK, "tea: 3", "3."], "3.", frozenset(), 0),
}


async def lookup(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for.
    """
    CALLS.append(query)
    return f"found: {query}"


def random_script(rng: Random, case: Case) -> list[Any]:
    """The script of a pattern with 0 to 3 rounds of 1 to 3 calls of the tool where it has one."""
    numbers = iter(range(100))

    def call() -> ToolCall:
        query = {"query": "".join(rng.choices('äbc \n"{}', k=rng.randint(1, 40)))}
        return ToolCall(f"c{next(numbers)}", "lookup", json.dumps(query))

    rounds = [[call() for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(0, 3))]
    return [*case.script[: case.tool_at], *rounds, *case.script[case.tool_at + 1 :]]


class Script:
    """A model that says the lines of a script, from any line on."""

    def __init__(self, lines: Sequence[Any]) -> None:
        self.lines, self.next = lines, 0

    def __call__(self, request: CompletionRequest) -> Any:
        self.next += 1
        return self.lines[self.next - 1]


def runtime_with(folder: Path, case: Case, script: Script) -> AgentRuntime:
    tools: dict[str, Any] = {"tools": TOOLS, "permissions": PERMITTED}
    others = [manifest(one["metadata"]["name"], **{**one["spec"], **tools}) for one in case.others]
    own = tools if case.spec else {}
    agents = (manifest(orchestration=case.orchestration, **own), *others)
    (folder / "graphs").mkdir()
    (folder / "graphs" / "plan.graph.yaml").write_text(json.dumps(GRAPH))
    return runtime_of(write(folder, *agents), ScriptedProvider(script, repeat=True))


@pytest.mark.parametrize("seed", range(RUNS))
async def test_a_random_run_is_forked_at_every_step_and_replayed(tmp_path: Path, seed: int) -> None:
    """A fork asks the model and the tool as often as the run from the step on, and has its answer."""
    rng = Random(seed)
    case = PATTERNS[sorted(PATTERNS)[seed % len(PATTERNS)]]
    script = Script(random_script(rng, case))
    async with runtime_with(tmp_path, case, script) as runtime:
        await runtime.durable.start()
        CALLS.clear()
        run_id = (await runtime.runner.accept(runtime.agent("helper"), RunRequest(QUESTION, "s"))).run_id
        whole = await ended(runtime, run_id)
        steps, total = await runtime.time_travel.steps(run_id, ME), len(CALLS)
        assert script.next == len(script.lines) == sum(one["kind"] == "model" for one in steps)
        for step in steps:
            before = [one["kind"] for one in steps if one["step"] < step["step"]]
            script.next = before.count("model")
            CALLS.clear()
            row = await runtime.time_travel.fork(run_id, ME, ForkRequest(step["step"]), CALLER)
            fork = await ended(runtime, row.run_id)
            assert fork["result"]["response"] == whole["result"]["response"], step
            assert script.next == len(script.lines), step
            own = [one for one in steps if one["kind"] == "tool" and one["name"] == "lookup"]
            assert len(CALLS) == total - sum(one["step"] < step["step"] for one in own), step
        script.next = len(script.lines)
        replay = await runtime.time_travel.replay(run_id, ME)
    assert replay["divergence"] is None and replay["reproduced"]


# -- workflows -----------------------------------------------------------------------------------------------

OPS = f"""
from {__name__} import CALLS

def note(input, context, tools):
    return [input]

def lookup(query):
    CALLS.append(query)
    return "found: " + query
"""
LOOKUP = """tools:
  - {id: lookup, type: python, entrypoint: 'ops:lookup', effect: read,
     schema_in: {type: object, properties: {query: {type: string}}}}
"""
PROVIDERS = "providers: [{id: m, adapter: scripted, model: small}]\n"
AGENTS = "agents: [{id: helper, model: m, system_prompt: Help., tools: [lookup]}]\n"


def random_workflow(rng: Random, folder: Path) -> list[Any]:
    """Writes a chain of 1 to 4 stages, one or more of an agent, and returns the script of its model."""
    bodies = {
        "own": "kind: agent, agent: helper, tools: [lookup]",
        "runtime": "kind: agent, agent: runner",
        "operation": "kind: deterministic, op: 'ops:note'",
    }
    kinds = [rng.choice(["own", "runtime"]), *rng.choices([*bodies], k=rng.randint(0, 3))]
    rng.shuffle(kinds)
    names = [f"n{n}" for n in range(len(kinds))]
    stages = [
        f"  - {{id: {name}, role: linear, context: none, {bodies[kind]}}}\n"
        for name, kind in zip(names, kinds, strict=True)
    ]
    model = {"primary": {"provider": "scripted", "model": "small"}}
    write(folder.parent.parent, manifest("runner", tools=TOOLS, model=model))
    way = ["s", *names, "e"]
    edges = [f"  - {{from: {one}, to: {other}}}\n" for one, other in pairwise(way)]
    folder.mkdir(parents=True)
    (folder / "workflow.yaml").write_text(
        "version: 1\nworkflow: shop\nnodes:\n"
        "  - {id: s, kind: deterministic, role: start, default: true, context: none}\n"
        f"{''.join(stages)}  - {{id: e, kind: deterministic, role: exit, context: none}}\n"
        f"edges:\n{''.join(edges)}"
    )
    files = {"ops.py": OPS, "tools.yaml": LOOKUP, "agents.yaml": AGENTS, "providers.yaml": PROVIDERS}
    for name, text in files.items():
        (folder / name).write_text(text)
    case = Case({}, [LOOK, "done"], "done", frozenset(), 0)
    scripts = [
        [*random_script(rng, case)[:-1], f"said {n}"] for n in range(len(kinds) - kinds.count("operation"))
    ]
    return [line for script in scripts for line in script]


@pytest.mark.parametrize("seed", range(-(-RUNS // 8)))
async def test_a_random_workflow_is_forked_at_every_step_and_replayed(tmp_path: Path, seed: int) -> None:
    config = tmp_path / "config"
    script = Script(random_workflow(Random(seed), config / "workflows" / "shop"))
    async with client_of(folders.runtime_with(config, script)) as client:
        CALLS.clear()
        task_id = await started(client, "/v1/workflows/shop/runs")
        task, total = (await client.get(f"/v1/tasks/{task_id}")).json(), len(CALLS)
        steps = await steps_of(client, task_id)
        assert task["status"] == "success" and script.next == len(script.lines)
        for at in [step["step"] for step in steps]:
            before = [one["kind"] for one in steps if one["step"] < at]
            script.next = before.count("model")
            CALLS.clear()
            fork = await forked(client, task_id, at)
            assert (fork["status"], fork["output"]) == (task["status"], task["output"]), at
            assert script.next == len(script.lines), at
            assert len(CALLS) == total - before.count("tool"), at
        replay = (await client.post(f"/v1/tasks/{task_id}/replay")).json()
    assert replay["same"], replay
