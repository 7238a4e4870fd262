"""Reload: what a changed file means to the next run, to active runs, and where it has faults."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.runtime.agent_directory import call_tool
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.monitoring import check_readiness, configuration_faults
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.reload import Reloaded, Reloader
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.knowledge.rag_files import pipeline_file

TOOLS = "def price(item: str) -> str:\n    '''Returns a price.'''\n    return '{price}'\n"
PRICE = {"name": "price", "type": "internal", "function": "shop_of_the_reload_test:price"}
MEMORY = {"conversational": {"backend": "in_memory"}}
WORKFLOW = """version: 1
workflow: echo
description: Answers.
nodes:
  - {id: take, kind: deterministic, role: start, default: true, context: none, op: ops:answer}
  - {id: done, kind: deterministic, role: exit, context: none, op: ops:answer}
edges: [{from: take, to: done}]
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload forgets the modules below the working directory, to which the tests belong."""
    monkeypatch.chdir(tmp_path)


def agent_file(folder: Path) -> Path:
    return folder / "agents" / "helper.agent.yaml"


def prompted(folder: Path, prompt: str, **spec: Any) -> set[Path]:
    """Writes the agent with a prompt; returns the files that have changed."""
    write(folder, manifest(prompts={"system": prompt}, memory=MEMORY, **spec))
    return {agent_file(folder)}


def systems(model: ScriptedProvider) -> list[str]:
    """The system prompts of all model calls."""
    return [str(request.messages[0].content) for request in model.requests]


async def changed(reloader: Reloader, files: set[Path]) -> Reloaded:
    return await reloader.reload({file.resolve() for file in files})


async def test_a_changed_prompt_reaches_the_next_run_and_not_the_active_one(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: Any) -> str:
        begun.set()
        await go_on.wait()
        return "Yes."

    model = ScriptedProvider(answer, repeat=True)
    prompted(tmp_path, "before")
    async with runtime_of(tmp_path, model) as runtime:
        active = asyncio.create_task(runtime.run("helper", "First?", "s"))
        await begun.wait()
        report = await changed(Reloader(runtime), prompted(tmp_path, "after"))
        go_on.set()
        await active
        await runtime.run("helper", "Second?", "s")
        await runtime.run("helper", "Third?", "s")
    assert report.agents == ("helper",)
    assert systems(model) == ["before", "after", "after"]
    # the conversation in memory goes on
    assert [m.content for m in model.requests[-1].messages if m.role == "user"][-3:] == [
        "First?", "Second?", "Third?",
    ]  # fmt: skip


async def test_a_broken_file_keeps_the_last_good_version_and_lists_its_fault(tmp_path: Path) -> None:
    model = ScriptedProvider("Yes.", repeat=True)
    prompted(tmp_path, "good")
    runtime = runtime_of(tmp_path, model)
    async with client_of(runtime) as client:
        reloader = Reloader(runtime)
        agent_file(tmp_path).write_text("kind: Agent\nspec: {model: [")
        report = await changed(reloader, {agent_file(tmp_path)})
        assert (report.agents, len(report.faults)) == ((), 1)
        await runtime.run("helper", "Still there?", "s")
        (fault,) = (await client.get("/v1/faults")).json()["faults"]
        assert (fault["severity"], fault["file"]) == ("error", "agents/helper.agent.yaml")
        assert (await client.get("/v1/agents/helper")).json()["status"] == "ready"
        report = await changed(reloader, prompted(tmp_path, "mended"))
        assert (report.agents, report.faults) == (("helper",), ())
        assert (await client.get("/v1/faults")).json()["faults"] == []
        await runtime.run("helper", "And now?", "s")
    assert systems(model) == ["good", "mended"]


async def test_files_come_and_go_and_what_concerns_all_stays(tmp_path: Path) -> None:
    prompted(tmp_path, "one")
    async with runtime_of(tmp_path, ScriptedProvider("Yes.", repeat=True)) as runtime:
        reloader = Reloader(runtime)
        write(tmp_path, manifest("other"))
        (tmp_path / "runtime.yaml").write_text("kind: Nonsense")
        added = tmp_path / "agents" / "other.agent.yaml"
        report = await changed(reloader, {added, tmp_path / "runtime.yaml"})
        assert report.faults
        assert report.restart == ("runtime.yaml",)
        assert list(runtime.agents) == ["helper"]
        listed = configuration_faults(runtime)
        assert [str(one.fault) for one in listed if one.severity == "warning"] == [
            "runtime.yaml: has changed. Restart the server to apply it."
        ]
        (tmp_path / "runtime.yaml").unlink()
        report = await changed(reloader, {added, tmp_path / "runtime.yaml"})
        assert (report.agents, report.restart) == (("other",), ())
        assert configuration_faults(runtime) == []
        agent_file(tmp_path).unlink()
        assert (await changed(reloader, {agent_file(tmp_path)})).removed == ("helper",)
        assert list(runtime.agents) == ["other"]


async def test_a_changed_tool_and_a_broken_one(tmp_path: Path) -> None:
    tools = tmp_path / "shop_of_the_reload_test.py"
    tools.write_text(TOOLS.replace("{price}", "1 EUR"))
    prompted(tmp_path, "p", tools=[PRICE])
    async with runtime_of(tmp_path, ScriptedProvider("Yes.", repeat=True)) as runtime:
        reloader = Reloader(runtime)

        async def asked() -> str:
            agent = runtime.agent("helper")
            return (await call_tool(agent, "price", '{"item": "pen"}', runtime.clock)).content

        assert await asked() == "1 EUR"
        tools.write_text(TOOLS.replace("{price}", "2 EUR"))
        await changed(reloader, {tools})
        assert await asked() == "2 EUR"
        tools.write_text("def price(")
        (fault,) = (await changed(reloader, {tools})).faults
        assert "shop_of_the_reload_test" in str(fault)
        assert await asked() == "2 EUR"
        tools.write_text(TOOLS.replace("{price}", "3 EUR"))
        assert (await changed(reloader, {tools})).faults == ()
        assert await asked() == "3 EUR"


async def test_documents_and_pipelines(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "a.md").write_text("Tea costs 3 EUR.")
    head = {"apiVersion": "astromesh/v1", "kind": "RAGPipeline", "metadata": {"name": "prices"}}
    spec = {"sources": [{"path": "../documents"}], "retrieval": {"mode": "lexical"}}
    pipeline = tmp_path / "rag" / "prices.rag.yaml"
    pipeline.parent.mkdir()
    pipeline.write_text(yaml.safe_dump({**head, "spec": spec}))
    prompted(tmp_path, "p", tools=[{"name": "search", "type": "rag", "pipeline": "prices"}])
    async with runtime_of(tmp_path, ScriptedProvider("Yes.", repeat=True)) as runtime:
        reloader = Reloader(runtime)
        (documents / "b.md").write_text("Coffee costs 4 EUR.")
        report = await changed(reloader, {documents / "b.md"})
        assert report == Reloaded()
        (found, *_) = await runtime.state.knowledge["prices"].query("coffee")
        assert "4 EUR" in found.chunk.text
        pipeline.write_text(yaml.safe_dump({**head, "spec": {**spec, "retrieval": {"top_k": 1}}}))
        report = await changed(reloader, {pipeline})
        assert (report.pipelines, report.agents) == (("prices",), ("helper",))


async def test_what_could_not_be_opened_and_is_gone_leaves_the_server_ready(tmp_path: Path) -> None:
    """A store that no file names any more, and the index of a pipeline that was removed."""
    for folder in ("data", "data/rag"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / "broken.db").write_bytes(b"\x93noise" * 4000)
    (tmp_path / "data" / "rag" / "k.db").write_bytes(b"\x93noise" * 4000)
    broken = {"conversational": {"backend": "sqlite", "path": "broken.db"}}
    write(tmp_path, manifest(memory=broken))
    (tmp_path / "docs").mkdir()
    pipeline = pipeline_file(tmp_path, "k", sources=[{"path": "../docs"}])
    async with runtime_of(tmp_path, ScriptedProvider("Yes.", repeat=True)) as runtime:
        assert not (await check_readiness(runtime)).ready
        reloader = Reloader(runtime)
        await changed(reloader, prompted(tmp_path, "p"))
        assert list(runtime.agents) == ["helper"]
        before = await check_readiness(runtime)
        assert {name for name, found in before.results.items() if found.code != "ok"} == {"store:rag:k"}
        pipeline.unlink()
        await changed(reloader, {pipeline})
        after = await check_readiness(runtime)
        assert after.ready and "store:rag:k" not in after.results


async def test_a_workflow_and_its_code(tmp_path: Path) -> None:
    prompted(tmp_path, "p")
    async with runtime_of(tmp_path, ScriptedProvider("Yes.", repeat=True)) as runtime:
        folder = tmp_path / "workflows" / "echo"
        folder.mkdir(parents=True)
        ops = folder / "ops.py"

        async def with_code(code: str) -> Reloaded:
            ops.write_text(code)
            return await changed(Reloader(runtime), {ops})

        async def output() -> Any:
            return (await runtime.workflows.run("echo", TaskRequest(input="x"))).output

        (folder / "workflow.yaml").write_text(WORKFLOW)
        report = await with_code("def answer(value, context, tools):\n    return 'one'\n")
        assert report.workflows == ("echo",)
        assert await output() == "one"
        await with_code("def answer(value, context, tools):\n    return 'two'\n")
        assert await output() == "two"
        report = await with_code("def answer(value, context, tools)\n")
        assert report.faults
        assert report.workflows == ()
        assert await output() == "two"


async def test_saved_files_are_noticed(tmp_path: Path) -> None:
    model = ScriptedProvider("Yes.", repeat=True)
    prompted(tmp_path, "before")
    runtime: AgentRuntime = runtime_of(tmp_path, model)
    async with runtime, Reloader(runtime).watching():
        loaded = runtime.agent("helper")
        prompted(tmp_path, "after")
        async with asyncio.timeout(60):
            while runtime.agent("helper") is loaded:
                await asyncio.sleep(0.05)
        await runtime.run("helper", "Hello?", "s")
    assert systems(model) == ["after"]
