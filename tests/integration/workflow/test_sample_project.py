"""The sample project of config/workflows: it runs with a scripted model, repeats itself, and resumes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
import yaml

from astromesh import __version__
from astromesh.cli.commands import workflow as command
from astromesh.config.workflow_folder import FILES, UNDECISIVE, json_schema_of
from astromesh.errors import WorkflowNotFound
from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.workflows import open_workflow
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import CompletionRequest, JsonObject, ToolCall
from astromesh.workflow import Engine, TaskResult
from astromesh.workflow.project import check_folder
from astromesh.workflow.validation import KnownNames
from tests.integration.agents_folder import manifest, runtime_of, write

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "config" / "workflows" / "contract_review"
CONTRACT = "1. Liability is limited.\n2. Termination at any time.\n3. Confidential matters stay so."


def lawyer(request: CompletionRequest) -> Any:
    """Says what a sensible model would: the class of a contract, a finding, a verdict."""
    system, last = request.messages[0].content, request.messages[-1]
    asked = request.messages[1].content
    if system.startswith("Classify"):
        contract = orjson.loads(asked)
        edge = "complex" if "\n" in contract["text"] else "simple"
        return orjson.dumps({"selected_edge": edge, "output": contract}).decode()
    if system.startswith("Review"):
        if request.tools and last.role == "user":
            return ToolCall("c1", "law_lookup", orjson.dumps({"query": asked}).decode())
        return orjson.dumps({"risk": 0, "summary": f"NDA of {len(asked)} characters"}).decode()
    return '{"verdict": "accept"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy: project and global memory are written beside the manifests."""
    copy = tmp_path / "contract_review"
    shutil.copytree(SAMPLE, copy, ignore=shutil.ignore_patterns(".state", "__pycache__"))
    return copy


def engine_of(folder: Path, **options: Any) -> Engine:
    provider = ScriptedProvider(lawyer, repeat=True)
    plugins = Plugins({"providers": {"openai_compat": plugin_of(provider), "openai": plugin_of(provider)}})
    return Engine.load(folder, plugins=plugins, env={"LLM_API_KEY": "k"}, new_id=lambda: "T", **options)


def seen(result: TaskResult) -> Any:
    """Path, outputs, status and hashes of contexts of every Task by its lineage, without times."""
    contexts = sorted((e.task, e.stage, e.context_hash or "") for e in result.trace)
    return contexts, sorted(
        (t["path"], t["state"], t["status"], orjson.dumps(t["output"], option=orjson.OPT_SORT_KEYS))
        for t in result.tasks
    )


def timeless(value: Any) -> Any:
    """Without the times of stages and calls, at any depth."""
    if isinstance(value, list | tuple):
        return [timeless(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if not k.endswith("_at") and k != "duration_ms"}
    return {key: timeless(one) for key, one in kept.items()}


class ListedRecords:
    def __init__(self) -> None:
        self.records: list[JsonObject] = []

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        self.records += [orjson.loads(orjson.dumps(record)) for record in records]


def test_the_sample_has_neither_faults_nor_warnings() -> None:
    known = KnownNames((), (), ("openai_compat",), ("react",))
    checked = check_folder(SAMPLE, known, {"LLM_API_KEY": "k"})
    assert checked.faults == ()
    assert checked.warnings == ()


@pytest.mark.parametrize("name", [name for name in FILES if (SAMPLE / name).exists()])
def test_the_sample_s_files_fit_their_json_schemas(name: str) -> None:
    data = yaml.safe_load((SAMPLE / name).read_text())
    assert [e.message for e in jsonschema_rs.validator_for(json_schema_of(name)).iter_errors(data)] == []


@pytest.mark.parametrize("name", FILES)
def test_the_written_schemas_are_up_to_date(name: str) -> None:
    """Where this fails: run scripts/schemas.py and look at what changed."""
    written = ROOT / "config" / "schemas" / "workflow" / f"{Path(name).stem}.schema.json"
    assert orjson.loads(written.read_bytes()) == orjson.loads(orjson.dumps(json_schema_of(name)))


async def test_a_simple_contract_takes_the_short_way(folder: Path) -> None:
    async with engine_of(folder) as engine:
        result = await engine.run({"text": "One page  NDA "})
    assert (result.status, result.path) == ("success", ("intake", "triage", "quick", "done"))
    assert result.output["verdict"] == "accept" and "NDA" in result.output["summary"]


async def test_a_complex_contract_is_split_reviewed_and_voted_on(folder: Path) -> None:
    """Reviews call the tool that the policy allows them; three assessors vote."""
    async with engine_of(folder) as engine:
        result = await engine.run({"text": CONTRACT})
    assert result.status == "success" and result.output["votes"] == 3
    assert len(result.history["review"]) == 3 and len(result.history["assess"]) == 3
    assert result.history["review"][0].tool_calls[0]["tool"] == "law_lookup"
    assert result.history["assess"][0].context_items, "assessors see the Task's memory"


async def test_a_hundred_runs_come_to_the_same_by_lineage(folder: Path) -> None:
    async with engine_of(folder) as engine:
        first = await engine.run({"text": CONTRACT})
        for _ in range(99):
            again = await engine.run({"text": CONTRACT})
            assert (again.status, again.output, seen(again)) == (first.status, first.output, seen(first))


async def test_at_one_slot_its_whole_trace_is_the_same_every_time(folder: Path) -> None:
    """Order, inputs, outputs, tool calls and the hashes of contexts: all but the times."""
    async with engine_of(folder, stages_at_once=1) as engine:
        first = timeless((await engine.run({"text": CONTRACT})).with_trace()["trace"])
        for _ in range(49):
            again = (await engine.run({"text": CONTRACT})).with_trace()["trace"]
            assert timeless(again) == first


async def test_agent_nodes_run_agents_of_every_pattern(tmp_path: Path) -> None:
    """The body of a node is one run of a sample agent; together they have every pattern there is."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    names = [file.name.partition(".")[0] for file in sorted((tmp_path / "config/agents").glob("*.yaml"))]
    ids = ["s", *names, "e"]
    usual = {"kind": "deterministic", "context": "none"}
    agents = [{"id": n, "role": "linear", "kind": "agent", "agent": n, "context": "none"} for n in names]
    nodes = [{"id": "s", "role": "start", "default": True, **usual}, *agents]
    workflow = {
        "version": 1, "workflow": "all", "nodes": [*nodes, {"id": "e", "role": "exit", **usual}],
        "edges": [{"from": a, "to": b} for a, b in pairwise(ids)],
    }  # fmt: skip
    (tmp_path / "config/workflows/all").mkdir()
    (tmp_path / "config/workflows/all/workflow.yaml").write_text(yaml.safe_dump(workflow))
    async with AgentRuntime(tmp_path / "config", data_dir=tmp_path / "data", env={}) as runtime:
        patterns = {agent.manifest.spec.orchestration.pattern for agent in runtime.agents.values()}
        result = await runtime.workflows.run("all", TaskRequest("How do I reset my password?"))
    assert patterns == set(Plugins().names("patterns"))
    assert (result.status, result.path) == ("success", tuple(ids)) and "password" in result.output


async def test_resumed_at_every_stage_boundary_it_ends_the_same(folder: Path) -> None:
    log = ListedRecords()
    async with engine_of(folder, log=log) as engine:
        whole = await engine.run({"text": CONTRACT})
    for kept in range(1, len(log.records)):
        async with engine_of(folder) as engine:
            result = await engine.resume(log.records[:kept])
        assert (result.output, seen(result)) == (whole.output, seen(whole))


async def test_e52_a_fingerprint_says_what_a_run_ran_with(folder: Path) -> None:
    """Every manifest that decides a run, schema and operation counts, layout does not."""
    first = engine_of(folder).project.fingerprint
    assert set(first.parts) == {"manifests", "schemas", "operations"}
    assert set(first.parts["manifests"]) == {f.name for f in folder.glob("*.yaml")} - UNDECISIVE
    assert first.provenance["engine"] == __version__
    assert set(first.provenance["adapters"]) == {"patterns/react", "providers/openai"}
    assert first.provenance["adapters"]["patterns/react"].endswith(f"astromesh=={__version__}")
    seen = {first.value}
    changes = {"agents.yaml": "Review", "ops.py": "report", "schemas/report.json": "object"}
    for name, word in changes.items():
        file = folder / name
        text = file.read_text()
        file.write_text(text.replace(word, "array" if word == "object" else f"{word} "))
        seen.add(engine_of(folder).project.fingerprint.value)
        file.write_text(text)
    assert len(seen) == 1 + len(changes)
    (folder / "agents.yaml").write_text(f"# a comment\n{(folder / 'agents.yaml').read_text()}")
    async with engine_of(folder) as engine:
        result = await engine.run({"text": "One page NDA"})
    assert result.metadata["run_fingerprint"] == first.value


async def test_the_registry_says_how_each_model_is_and_fares(folder: Path) -> None:
    engine = engine_of(folder)
    assert [one["health"] for one in engine.providers()] == [None, None], "nothing is open yet"
    async with engine:
        await engine.run({"text": "One page NDA"})
        told = {one["id"]: one for one in engine.providers()}
    assert (told["smart"]["model"], told["smart"]["version"]) == ("gpt-4o", "1")
    assert told["smart"]["credential"] == "llm_key" and told["smart"]["adapter"].startswith(
        "astromesh.testing"
    )
    assert told["fast"]["health"]["circuit"] == "closed" and told["fast"]["health"]["calls"] > 0


async def test_many_tasks_at_once_do_not_see_each_other(folder: Path) -> None:
    async with engine_of(folder) as engine:
        texts = [f"NDA number {i}" for i in range(12)]
        results = await asyncio.gather(*(engine.run({"text": t}, task_id=t) for t in texts))
    assert [r.trace[0].output["text"] for r in results] == texts


async def test_an_agent_node_runs_an_agent_of_the_runtime(tmp_path: Path) -> None:
    """With its own prompt and in the workflow's run; what it used stands in the history."""
    write(tmp_path, manifest("helper"))
    folder = tmp_path / "workflows" / "asks"
    folder.mkdir(parents=True)
    usual = {"kind": "deterministic", "context": "none"}
    nodes = [
        {"id": "s", "role": "start", "default": True, **usual},
        {"id": "x", "role": "linear", "kind": "agent", "agent": "helper", "context": "none"},
        {"id": "e", "role": "exit", **usual},
    ]
    edges = [{"from": "s", "to": "x"}, {"from": "x", "to": "e"}]
    workflow = {"version": 1, "workflow": "asks", "nodes": nodes, "edges": edges}
    (folder / "workflow.yaml").write_text(yaml.safe_dump(workflow))
    provider = ScriptedProvider('{"answer": 42}')
    async with runtime_of(tmp_path, provider) as runtime:
        engine = await open_workflow(runtime.state, "asks")
        result = await engine.run("What is it?")
        await engine.close()
    assert (result.status, result.output) == ("success", {"answer": 42})
    assert [m.content for m in provider.requests[0].messages] == ["You are helper. Helps.", "What is it?"]
    assert result.history["x"][0].usage["output_tokens"] == 2  # type: ignore[index]


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A configuration with a workflow of operations, without any model."""
    folder = tmp_path / "config" / "workflows" / "small"
    folder.mkdir(parents=True)
    (folder / "ops.py").write_text("def double(input, context, tools):\n    return input * 2\n")
    (folder / "workflow.yaml").write_text(
        "version: 1\nworkflow: small\nnodes:\n"
        "  - {id: s, kind: deterministic, role: start, default: true, context: none}\n"
        "  - {id: x, kind: deterministic, role: linear, context: none, op: 'ops:double'}\n"
        "  - {id: e, kind: deterministic, role: exit, context: none}\n"
        "edges:\n  - {from: s, to: x}\n  - {from: x, to: e}\n"
    )
    return tmp_path / "config"


def test_the_command_validates_and_draws(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.report_faults(small, "small") == 0 and "is fine" in capsys.readouterr().out
    command.graph("small", small)
    assert 'n1["x"]' in capsys.readouterr().out


def test_the_command_tells_faults_with_file_place_code_and_hint(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small / "workflows" / "small" / "workflow.yaml").write_text("version: 1\nworkflow: small\nnodes: []\n")
    assert command.report_faults(small, "small", as_json=True) == 2
    fault = orjson.loads(capsys.readouterr().out)["faults"][0]
    assert {"file", "path", "code", "message", "hint", "line", "column"} == fault.keys()


def test_an_unknown_workflow_is_told_with_the_known_ones(small: Path) -> None:
    with pytest.raises(WorkflowNotFound, match="Did you mean `small`"):
        command.report_faults(small, "smal")


def test_the_command_runs_a_workflow(small: Path) -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "astromesh",
            "workflow",
            "run",
            "small",
            "21",
            "--json",
            "--config",
            str(small),
        ],
        capture_output=True,
        text=True,
        cwd=small,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert orjson.loads(ran.stdout)["output"] == 42, ran.stderr
