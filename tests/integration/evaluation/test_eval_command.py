"""`astromesh eval run` for agents: live, from recordings, with several models, judged, and compared."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from astromesh import Agent
from astromesh.agents.evaluation import AgentTarget, ModelJudge, with_model
from astromesh.cli.commands import evaluation as command
from astromesh.config.workflow import EvaluationCase
from astromesh.evaluation.base import Case, Options
from astromesh.evaluation.evaluate import run_cases
from astromesh.testing import Reply, ScriptedProvider, record
from astromesh.types import ToolCall, Usage
from tests.platform.model import MockModel

AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {name: helper}
spec:
  model: {primary: {provider: embedded}}
  prompts: {system: "You help {{ customer }}."}
"""
DATASET = """cases:
  - id: greets
    input: How do I reset my password?
    context: {customer: Ada}
    assertions:
      - {type: no_tool_called}
      - {type: regex, expected: .}
      - {type: latency_below, expected: 60}
  - id: fails
    input: What is the price?
    assertions:
      - {type: contains, expected: EUR}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    for folder in ("agents", "evals"):
        (config / folder).mkdir(parents=True)
    (config / "agents" / "helper.agent.yaml").write_text(AGENT)
    (config / "evals" / "helper.yaml").write_text(DATASET)
    return config


def evaluated(config: Path, code: int, **options: Any) -> None:
    """Runs the command and expects its exit code."""
    arguments: dict[str, Any] = {"max_cost": float("inf"), **options}
    with pytest.raises(typer.Exit) if code else nullcontext() as ended:
        command.run("helper", config, config.parent / "data", **arguments)
    assert code == (ended.value.exit_code if ended else 0)


def test_the_exit_code_the_table_json_and_junit_tell_what_passed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(config, 0, case="greets", repeat=2)
    assert "passed  helper/greets  2/2" in capsys.readouterr().out
    evaluated(config, 1, junit=tmp_path / "j.xml", out=tmp_path / "out.json")
    shown = capsys.readouterr()
    assert "FAILED  helper/fails" in shown.out and "helper/fails: contains: output is" in shown.err
    assert '<failure message="contains: output is' in (tmp_path / "j.xml").read_text()
    assert json.loads((tmp_path / "out.json").read_text())["passed"] is False
    evaluated(config, 0, case="greets", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "agent" and told["cases"][0]["run_id"].startswith("run_")
    assert (tmp_path / "data" / "evaluations" / f"{told['evaluation_id']}.json").is_file()


def test_models_stand_side_by_side_and_a_report_is_compared_with_the_one_before(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(config, 1)
    dataset = config / "evals" / "helper.yaml"
    dataset.write_text(dataset.read_text().replace("EUR", "''"))
    capsys.readouterr()
    evaluated(config, 0, model=["embedded:embedded", "embedded"], compare="last")
    out = capsys.readouterr().out
    assert "passed  helper/fails   embedded:embedded  1/1" in out
    assert ": 1 better, 0 worse, 1 the same. The difference may be chance (p = 1)" in out
    assert "better  helper/fails  0/1 → 1/1" in out
    assert "embedded against embedded:embedded: 0 better" in out


def test_a_judge_has_the_endpoint_and_the_key_of_its_provider(
    config: Path, mock_llm: MockModel, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"type": "openai", "endpoint": f"{mock_llm.url}/v1", "api_key": "k"}
    head = {"apiVersion": "astromesh/v1", "kind": "ProviderConfig", "metadata": {"name": "p"}}
    (config / "providers.yaml").write_text(json.dumps({**head, "spec": {"providers": {"local": entry}}}))
    check = {
        "type": "judge",
        "rubric": "Is kind.",
        "model": 'local:mock+say={"reason":"rude","passed":false}',
    }
    case = {"id": "one", "input": "Hello", "assertions": [check]}
    (config / "evals" / "helper.yaml").write_text(json.dumps({"cases": [case]}))
    evaluated(config, 1)
    assert "helper/one: judge: rude" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("helpers", {}, "Did you mean `helper`"),
        ("helper", {"dataset": "none"}, "There is no dataset 'none'"),
        ("helper", {"model": ["gpt-4o"]}, "Write 'openai:gpt-4o'"),
        ("helper", {"compare": "none.json"}, "Cannot read the report"),
    ],
)
def test_a_wrong_call_ends_with_2(
    config: Path, name: str, options: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        command.run(name, config, config.parent / "data", max_cost=float("inf"), **options)
    assert ended.value.exit_code == 2
    assert says in capsys.readouterr().err


# -- with scripted models ------------------------------------------------------------------------------------


def case(tmp_path: Path, **keys: Any) -> Case:
    spec = {"id": "one", "input": "What is the weather in Paris?", **keys}
    return Case("all", EvaluationCase.model_validate_json(json.dumps(spec)), tmp_path, judge="embedded")


def weather(*script: Any, **keys: Any) -> Agent:
    def forecast(city: str) -> str:
        """Says the weather of a city."""
        return f"sunny in {city}"

    return Agent(ScriptedProvider(*script), tools=[forecast], on_error="return", **keys)


CALL = ToolCall("call-1", "forecast", '{"city": "Paris"}')
CHECKS = [
    {"type": "tool_called", "tool": "forecast", "arguments": {"city": "Paris"}},
    {"type": "equals", "expected": "It is sunny."},
]


async def test_tool_calls_and_the_answer_of_a_live_run_are_checked(tmp_path: Path) -> None:
    target = AgentTarget(weather(CALL, "It is sunny."))
    results = await run_cases(target, [case(tmp_path, assertions=CHECKS)])
    assert results.passed and results.cases[0].failures == []
    assert [one.type for one in results.cases[0].assertions] == ["status", "tool_called", "equals"]


async def test_a_case_runs_from_its_recording_and_asks_nobody(tmp_path: Path) -> None:
    agent = weather(CALL, "It is sunny.", data_dir=tmp_path)
    with record(agent, tmp_path / "one.json"):
        await agent.run("What is the weather in Paris?")
    results = await run_cases(AgentTarget(agent), [case(tmp_path, assertions=CHECKS, replay="one.json")])
    assert results.passed and results.cases[0].recorded
    other = case(tmp_path, assertions=CHECKS, replay="one.json", input="And in Rome?")
    (result,) = (await run_cases(AgentTarget(agent), [other])).cases
    assert not result.passed and "has no answer to this request" in result.failures[0]


async def test_a_run_that_fails_fails_a_case_without_a_check_of_its_status(tmp_path: Path) -> None:
    (result,) = (await run_cases(AgentTarget(weather()), [case(tmp_path)])).cases
    assert not result.passed and result.failures[0].startswith("status: status is 'failed'")


async def test_no_run_begins_when_the_cost_limit_has_been_reached(tmp_path: Path) -> None:
    model = ScriptedProvider(Reply("Sunny.", usage=Usage(10, 5, cost_usd=0.4)), repeat=True)
    options = Options(repeat=5, max_cost_usd=0.7)
    results = await run_cases(AgentTarget(Agent(model)), [case(tmp_path)], options)
    assert len(results.cases) == 2 and not results.complete and not results.passed
    assert results.spent == pytest.approx(0.8)


async def test_another_model_stands_in_for_those_of_the_agent(tmp_path: Path) -> None:
    agent = weather("never")
    with with_model(agent, "embedded"):
        (result,) = (await run_cases(AgentTarget(agent), [case(tmp_path)])).cases
    assert result.output != "never"


async def test_a_judge_sees_rubric_input_and_output_and_its_verdict_is_recorded(
    tmp_path: Path,
) -> None:
    agent = weather(CALL, "It is sunny.", data_dir=tmp_path)
    with record(agent, tmp_path / "one.json"):
        await agent.run("What is the weather in Paris?")
    model = ScriptedProvider('{"reason": "It names no city.", "passed": false}')
    judge = ModelJudge("embedded", tmp_path, make=lambda _: model)
    judged = case(tmp_path, replay="one.json", assertions=[{"type": "judge", "rubric": "Names the city."}])
    for _ in range(2):  # the second time from the recording of the verdict
        (result,) = (await run_cases(AgentTarget(agent), [judged], judge=judge)).cases
        assert result.failures == ["judge: It names no city."]
    (request,) = model.requests
    question = request.messages[-1].content
    assert all(part in question for part in ("Names the city.", "weather in Paris", "It is sunny."))
