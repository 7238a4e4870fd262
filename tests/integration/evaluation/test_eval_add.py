"""`astromesh eval add`: from a run to a case that runs offline, shown before it is written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from astromesh.access.scopes import Viewer
from astromesh.cli.commands import evaluation as command
from astromesh.durable.base import ENDED_STATUSES
from astromesh.errors import NotFound, RunNotFound
from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.personal_data import erase_principal
from astromesh.runtime.records import RunRequest, TaskRequest
from astromesh.runtime.run_cases import propose_case
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import CallerContext, ToolCall
from tests.integration.workflow.folders import small

AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {name: shop}
spec:
  model: {primary: {provider: embedded}}
  prompts: {system: "You sell {{ goods }}."}
  memory: {conversational: {backend: sqlite}}
  guardrails:
    input: [{type: pii_detection, action: redact}]
    output: [{type: pii_detection, action: redact}]
  tools:
    - name: price
      type: internal
      function: "eval_shop_tools:price"
      description: Says the price of a thing.
      effect: read
      parameters: {type: object, required: [item], properties: {item: {type: string}}}
"""
TOOLS = """
calls = []

def price(item):
    calls.append(item)
    return "5 EUR, or ask ada@example.com"
"""
CALL = ToolCall("call-1", "price", '{"item": "tea"}')
QUESTION = "What is ${TEA}? I am bob@example.com."
ME = Viewer("default", None)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    (config / "agents").mkdir(parents=True)
    (config / "agents" / "shop.agent.yaml").write_text(AGENT)
    (config / "eval_shop_tools.py").write_text(TOOLS)
    return config


def runtime(config: Path, *script: Any) -> AgentRuntime:
    plugins = Plugins({"providers": {"embedded": plugin_of(ScriptedProvider(*script))}})
    return AgentRuntime(config, data_dir=config.parent / "data", plugins=plugins)


async def ran(agents: AgentRuntime, query: str = QUESTION, **more: Any) -> str:
    """Runs a durable run to its end and returns its id."""
    request = RunRequest(query, "s1", {"goods": "tea of eve@example.com"}, **more)
    row = await agents.runner.accept(agents.agent("shop"), request, caller=CallerContext(user_id="bob"))
    state: Any = row
    while state.status not in ENDED_STATUSES:
        await asyncio.sleep(0.01)
        state = await agents.durable.store.get(row.run_id)
    return row.run_id


def recorded(config: Path, *script: Any) -> str:
    async def work() -> str:
        async with runtime(config, *script) as agents:
            return await ran(agents)

    return asyncio.run(work())


def add(config: Path, run_id: str, **options: Any) -> None:
    command.add(run_id, config, config.parent / "data", **options)


def test_a_run_becomes_a_case_that_passes_offline(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = recorded(config, CALL, "It costs 5 EUR.")
    capsys.readouterr()  # it may have logged
    with pytest.raises(typer.Exit) as nothing_written:
        add(config, run_id)
    assert nothing_written.value.exit_code == 2
    shown = capsys.readouterr()
    assert "Nothing was written" in shown.err and not (config / "evals").exists()
    add(config, run_id, yes=True)
    file = config / "evals" / "shop.yaml"
    assert file.read_text() == shown.out == capsys.readouterr().out
    (case,) = yaml.safe_load(file.read_text())["cases"]
    assert case == {
        "id": run_id,
        "input": "What is $${TEA}? I am [EMAIL].",
        "context": {"goods": "tea of [EMAIL]"},
        "assertions": [
            {"type": "status", "expected": "completed"},
            {"type": "tool_called", "tool": "price", "arguments": {"item": "tea"}},
            {"type": "equals", "expected": "It costs 5 EUR."},
        ],
        "replay": f"recordings/{run_id}.json",
    }
    recording = (config / "evals" / case["replay"]).read_text()
    assert "@example.com" not in recording and json.loads(recording)["tool_calls"]
    tools = __import__("eval_shop_tools")
    tools.calls.clear()
    command.run("shop", config, tmp_path / "data", max_cost=float("inf"))
    assert "passed  shop/" in capsys.readouterr().out and tools.calls == []


def test_cases_are_added_to_yaml_and_to_lines_and_none_twice(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = recorded(config, CALL, "It costs 5 EUR.")
    text = "tags: [ci]\ncases:\n- {id: first, input: Hi}  # by hand\n"
    (config / "evals").mkdir()
    (config / "evals" / "more.yaml").write_text(f"agent: shop\n{text}")
    add(config, run_id, dataset="more", id="price", yes=True)
    after = (config / "evals" / "more.yaml").read_text()
    assert after.startswith(f"agent: shop\n{text}- id: price\n")
    add(config, run_id, dataset="lines.jsonl", id="a", yes=True)
    add(config, run_id, dataset="lines", id="b", yes=True)
    lines = (config / "evals" / "lines.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a", "b"]
    (config / "evals" / "flow.yaml").write_text("cases: [{id: x}]\n")
    for options, says in (
        ({"dataset": "more", "id": "price"}, "already has a case 'price'"),
        ({"dataset": "flow"}, "cannot be added at the end"),
        ({"dataset": "../x"}, "is not the name of a dataset"),
    ):
        with pytest.raises(typer.Exit) as ended:
            add(config, run_id, yes=True, **options)
        assert ended.value.exit_code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "script", "answer"),
    [
        ("output_schema: {type: object, required: [eur]}", (CALL, '{"eur": 5}', '{"eur": 5}'), {"eur": 5}),
        ("orchestration: {pattern: plan_and_execute}", ('["find it"]', CALL, "It is 5."), "It is 5."),
    ],
    ids=["schema", "plan"],
)
def test_answers_of_schemas_and_runs_of_patterns_are_reproduced(
    config: Path, spec: str, script: tuple[Any, ...], answer: Any
) -> None:
    file = config / "agents" / "shop.agent.yaml"
    file.write_text(f"{file.read_text()}  {spec}\n")
    add(config, recorded(config, *script), yes=True)
    (case,) = yaml.safe_load((config / "evals" / "shop.yaml").read_text())["cases"]
    assert case["assertions"][-1] == {"type": "equals", "expected": answer} and "replay" in case


def test_signed_thoughts_of_a_model_are_in_no_case_and_the_run_is_reproduced_without(config: Path) -> None:
    file = config / "agents" / "shop.agent.yaml"
    lines = file.read_text().splitlines()  # without the rules, with which the record does not keep them
    file.write_text(
        "\n".join(one for one in lines if not one.strip().startswith(("guard", "input:", "output:")))
    )
    call = ToolCall("call-1", "price", '{"item": "tea"}', kept='["embedded/embedded","SECRET"]')
    add(config, recorded(config, call, "It costs 5 EUR."), yes=True)
    (case,) = yaml.safe_load((config / "evals" / "shop.yaml").read_text())["cases"]
    assert "SECRET" not in (config / "evals" / case["replay"]).read_text()


def test_a_tool_that_failed_fails_in_the_recording_too(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ToolCall("call-1", "price", '{"item": "nothing"}')
    (config / "eval_failing_tools.py").write_text("def price(item):\n    raise ValueError(item)\n")
    file = config / "agents" / "shop.agent.yaml"
    file.write_text(file.read_text().replace("eval_shop_tools", "eval_failing_tools"))
    add(config, recorded(config, call, "I do not know."), yes=True)
    (case,) = yaml.safe_load((config / "evals" / "shop.yaml").read_text())["cases"]
    assert "replay" in case, capsys.readouterr().err


def test_a_run_that_failed_is_expected_to_complete_and_runs_live(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = recorded(config)  # its model has no answer
    add(config, run_id, yes=True)
    (case,) = yaml.safe_load((config / "evals" / "shop.yaml").read_text())["cases"]
    assert case["assertions"] == [{"type": "status", "expected": "completed"}] and "replay" not in case
    assert "The run is failed, so it has no recording." in capsys.readouterr().err


def test_a_run_that_its_recording_does_not_reproduce_becomes_a_live_case(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = recorded(config, CALL, "It costs 5 EUR.")
    file = config / "agents" / "shop.agent.yaml"
    file.write_text(file.read_text().replace("You sell", "You gladly sell"))
    add(config, run_id, yes=True)
    (case,) = yaml.safe_load((config / "evals" / "shop.yaml").read_text())["cases"]
    assert "replay" not in case and not (config / "evals" / "recordings").exists()
    assert "does not reproduce the run" in capsys.readouterr().err


async def test_a_recorded_plain_run_becomes_a_case_too(config: Path) -> None:
    file = config / "agents" / "shop.agent.yaml"
    file.write_text(file.read_text().replace("  memory:", "  recording: true\n  memory:"))
    async with runtime(config, CALL, "It costs 5 EUR.") as agents:
        request = RunRequest(QUESTION, "s1", {"goods": "tea of eve@example.com"})
        answer = await agents.runner.start(agents.agent("shop"), request)
        proposed = await propose_case(agents, answer.run_id, ME)
    assert proposed.case["input"] == "What is ${TEA}? I am [EMAIL]."
    assert proposed.case["context"] == {"goods": "tea of [EMAIL]"}
    assert proposed.recording is not None and len(proposed.recording["calls"]) == 2
    assert "example.com" not in json.dumps([proposed.case, proposed.recording])


async def test_the_conversation_before_a_run_is_part_of_its_case(config: Path) -> None:
    async with runtime(config, "Hello.", "Goodbye.") as agents:
        await ran(agents, "Hi")
        proposed = await propose_case(agents, await ran(agents, "Bye"), ME)
    assert proposed.case["history"] == [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
    ]  # fmt: skip
    assert {"type": "no_tool_called"} in proposed.case["assertions"]


async def test_runs_of_an_erased_principal_and_of_other_tenants_are_refused(config: Path) -> None:
    async with runtime(config, CALL, "It costs 5 EUR.") as agents:
        run_id = await ran(agents)
        assert (await propose_case(agents, run_id, ME)).owner == "shop"
        with pytest.raises(NotFound):
            await propose_case(agents, run_id, Viewer("other", None))
        await erase_principal(agents, "default", "bob")
        with pytest.raises(RunNotFound):
            await propose_case(agents, run_id, ME)


def test_a_task_becomes_a_case_of_its_workflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small(tmp_path / "config")

    async def work() -> str:
        async with AgentRuntime(config, data_dir=tmp_path / "data") as agents:
            return (await agents.workflows.run("small", TaskRequest(21))).task_id

    add(config, asyncio.run(work()), id="double", yes=True)
    file = config / "workflows" / "small" / "evals" / "small.yaml"
    (case,) = yaml.safe_load(file.read_text())["cases"]
    assert case["input"] == 21 and case["replay"] == "recordings/double.json"
    assert [one["expected"] for one in case["assertions"]] == ["success", ["s", "x", "e"], 42]
    capsys.readouterr()
    command.run("small", config, tmp_path / "data", max_cost=float("inf"))
    assert "passed  small/double" in capsys.readouterr().out
