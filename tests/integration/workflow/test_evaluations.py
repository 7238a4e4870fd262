"""Recordings and evaluations: the sample replays without any model, and what differs is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec import Struct, field

from astromesh.cli.commands import workflow as command
from astromesh.durable.tasks import ArtifactFilter
from astromesh.errors import AstromeshError, InvalidInput, MissingKey, ProviderUnavailable
from astromesh.graph.call_record import request_hash
from astromesh.runtime.records import TaskRequest
from astromesh.types import CompletionRequest
from astromesh.workflow.history import Recording
from tests.integration.workflow.folders import runtime_with, sample, small
from tests.integration.workflow.test_sample_project import CONTRACT, ROOT, lawyer

NAME = "contract_review"
CASE = (
    "suites:\n  - name: all\n    tags: [ci]\n    cases:\n"
    "      - id: one\n        input: 21\n        assertions:\n"
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config"


def never(request: CompletionRequest) -> Any:
    raise ProviderUnavailable("a replay asks nobody")


def test_the_sample_passes_its_suite_without_model_key_or_network(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recordings that lie beside the sample, as `scripts/record_workflows.py` recorded them."""
    sample(config)
    command.evaluate(NAME, config, tmp_path / "data", tag="ci", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and [case["case"] for case in told["cases"]] == [
        "simple_contract", "complex_contract", "rejected_contract",
    ]  # fmt: skip
    assert {one["type"] for case in told["cases"] for one in case["assertions"]} == {
        "status", "equals", "contains", "schema_valid", "golden", "path",
    }  # fmt: skip


async def test_each_model_runs_the_cases_in_place_of_those_of_the_workflow(config: Path) -> None:
    async with runtime_with(sample(config)) as runtime:
        told = await runtime.workflows.evaluate(
            NAME, case="simple_contract", models=["scripted:large", "scripted:small"]
        )
        shown = [
            await runtime.workflows.tasks.manifest(one["task_id"], command.OPERATOR) for one in told["cases"]
        ]
    assert [(one["model"], one["recorded"]) for one in told["cases"]] == [
        ("scripted:large", False), ("scripted:small", False),
    ]  # fmt: skip
    assert ['"adapter":"scripted","model":"large"' in one["files"]["providers.yaml"] for one in shown] == [
        True, False,
    ]  # fmt: skip


async def test_e58_an_evaluation_is_kept_as_an_artifact(config: Path) -> None:
    async with runtime_with(sample(config), never) as runtime:
        told = await runtime.workflows.evaluate(NAME)
        kept = await runtime.workflows.tasks.artifacts(
            told["evaluation_id"], command.OPERATOR, ArtifactFilter(type="evaluation")
        )
    assert told["passed"]
    assert [one.content["cases"] for one in kept] == [told["cases"]]
    assert kept[0].fingerprint


@pytest.mark.parametrize(
    ("assertion", "says"),
    [
        ("{type: status, expected: partial}", "status is 'success', expected"),
        ("{type: equals, field_path: '', expected: 41}", "is 42, expected 41"),
        ("{type: equals, field_path: a.b, expected: 1}", "a.b is missing"),
        ("{type: contains, field_path: '', expected: 4}", "could not be checked"),
        ("{type: schema_valid, schema: text}", "42 is not of type"),
        ("{type: schema_valid, schema: none}", "could not be checked"),
        ("{type: golden, file: golden.json, ignore: [task_id]}", "output: 42 instead of 43"),
        ("{type: golden, file: none.json}", "none.json does not exist. To accept this outcome"),
        ("{type: path, expected: [s, e]}", "path is ['s', 'x', 'e']"),
    ],
)
async def test_e58_an_assertion_that_fails_or_cannot_be_checked_fails_the_case(
    config: Path, tmp_path: Path, assertion: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small(config, evaluations=f"{CASE}          - {assertion}\n")
    folder = config / "workflows" / "small"
    (folder / "schemas").mkdir()
    (folder / "schemas" / "text.json").write_text('{"type": "string"}')
    golden = {"workflow": "small", "status": "success", "output": 43, "error": None, "path": ["s", "x", "e"]}
    (folder / "golden.json").write_text(json.dumps(golden))
    async with runtime_with(config) as runtime:
        told = await runtime.workflows.evaluate("small")
    assert not told["passed"]
    assert says in told["cases"][0]["assertions"][0]["message"]


CHECKS = """
def is_even(outcome):
    return outcome["output"] % 2 == 0

def double(input, context, tools):
    return input * 2
"""


async def test_every_check_serves_workflows(config: Path) -> None:
    checks = (
        "{type: regex, expected: '^42$'}", "{type: schema, schema: {type: integer}}",
        "{type: no_tool_called}",
        "{type: cost_below, expected: 0.1}", "{type: latency_below, expected: 60}",
        "{type: function, function: 'ops:is_even'}",
        "{type: tool_called, tool: search}", "{type: judge, rubric: good}",
    )  # fmt: skip
    small(config, evaluations=CASE + "".join(f"          - {check}\n" for check in checks))
    (config / "workflows" / "small" / "ops.py").write_text(CHECKS)
    async with runtime_with(config) as runtime:
        told = await runtime.workflows.evaluate("small")
    found = told["cases"][0]["assertions"]
    assert [one["type"] for one in found if not one["passed"]] == ["tool_called", "judge"]
    assert found[-2]["message"] == "calls are none, expected search {}"


def test_e58_the_command_ends_with_1_where_a_case_does_not_pass(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(config, evaluations=f"{CASE}          - {{type: status, expected: partial}}\n")
    with pytest.raises(typer.Exit) as ended:
        command.evaluate("small", config, tmp_path / "data")
    assert ended.value.exit_code == 1
    assert "FAILED  all/one" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended:
        command.evaluate("small", config, tmp_path / "data", "nightly")
    assert ended.value.exit_code == 2


class Asked1(Struct, frozen=True):
    model: str
    tools: tuple[str, ...] = ()


class Asked2(Asked1, frozen=True):
    further: Sequence[str] = field(default_factory=list)


def test_e53_a_field_that_is_added_to_the_records_makes_no_recording_diverge() -> None:
    """Only what is not at its default is hashed."""
    assert request_hash(Asked1("m", ("t",))) == request_hash(Asked2("m", ("t",)))
    assert request_hash(Asked2("m", ("t",))) != request_hash(Asked2("m", ("t",), ["x"]))
    assert request_hash(Asked1("m")) != request_hash(Asked1("n"))


# -- recordings ----------------------------------------------------------------------------------------------


async def recorded(config: Path, model: Any = lawyer, text: str = CONTRACT) -> Recording:
    async with runtime_with(config, model) as runtime:
        result = await runtime.workflows.run(NAME, TaskRequest({"text": text}))
        return await runtime.workflows.tasks.recording(result.task_id, command.OPERATOR)


async def replayed(config: Path, recording: Recording) -> dict[str, Any]:
    async with runtime_with(config, never) as runtime:
        return await runtime.workflows.replays.replay_recording(NAME, recording)


def changed(recording: Recording, stage: str, **values: Any) -> Recording:
    stages = [{**one, **values} if one["stage"] == stage else one for one in recording.stages]
    return Recording.from_json({**recording.to_json(), "stages": stages})


async def test_e53_a_recording_replays_after_it_was_written_and_read(config: Path, tmp_path: Path) -> None:
    recording = await recorded(sample(config))
    recording.write(tmp_path / "recording.json")
    told = await replayed(config, Recording.read(tmp_path / "recording.json"))
    assert told["same"] and told["path"] == recording.path


async def test_a_stage_whose_memory_could_not_be_read_fails_in_the_replay_too(config: Path) -> None:
    """The reviews fail before they ask anybody; the replay has a memory of its own, which works."""
    state = sample(config) / "workflows" / NAME / ".state"
    state.mkdir()
    (state / "project.db").write_bytes(b"this is no database" * 100)
    recording = await recorded(config)
    reviews = [one["code"] for one in recording.stages if one["stage"].startswith("review")]
    assert reviews == ["store_error"] * 3
    told = await replayed(config, recording)
    assert told["same"] and told["path"] == recording.path, told["divergence"]


@pytest.mark.parametrize("error", [ProviderUnavailable("the model is away"), MissingKey("there is no key")])
async def test_errors_of_models_are_recorded_too(config: Path, error: AstromeshError) -> None:
    """Replayed, the stage fails as it did, with the same code."""

    def broken(request: CompletionRequest) -> Any:
        if request.messages[0].content.startswith("Review"):
            raise error
        return lawyer(request)

    recording = await recorded(sample(config), broken, "One page NDA")
    assert recording.status == "failure"
    told = await replayed(config, recording)
    assert told["same"] and told["status"] == "failure", told["divergence"]


@pytest.mark.parametrize(
    ("values", "what", "message"),
    [
        (
            {"output_hash": "0" * 64, "output": {"text": "Two page NDA"}},
            "output",
            'intake: output.text is "One page NDA", but "Two page NDA" in the recording',
        ),
        ({"status": "failure"}, "status", 'intake: status is "success", but "failure" in the recording'),
    ],
)
async def test_e53_the_first_divergence_is_named(
    config: Path, values: dict[str, Any], what: str, message: str
) -> None:
    recording = await recorded(sample(config), text="One page NDA")
    told = await replayed(config, changed(recording, "intake", **values))
    assert not told["same"]
    assert (told["divergence"]["stage"], told["divergence"]["what"]) == ("intake", what)
    assert told["divergence"]["message"].startswith(message)


async def test_another_request_to_a_model_is_a_divergence(config: Path) -> None:
    """The prompt was changed since: both texts are shown, before any answer is used."""
    recording = await recorded(sample(config), text="One page NDA")
    agents = config / "workflows" / NAME / "agents.yaml"
    agents.write_text(agents.read_text().replace("Review one clause.", "Review this clause."))
    told = await replayed(config, recording)
    assert (told["divergence"]["stage"], told["divergence"]["what"]) == ("quick", "call")
    assert told["divergence"]["place"] == ".messages[0].content"
    assert told["divergence"]["recorded"] == '"Review one clause. Answer JSON."'
    assert told["divergence"]["present"] == '"Review this clause. Answer JSON."'
    assert "hash" not in told["divergence"]["message"]


async def test_a_stage_that_is_not_recorded_or_not_reached_is_a_divergence(config: Path) -> None:
    recording = await recorded(sample(config), text="One page NDA")
    short = Recording.from_json({**recording.to_json(), "stages": list(recording.stages[:2])})
    more = Recording.from_json(
        {**recording.to_json(), "stages": [*recording.stages, {**recording.stages[0], "stage": "panel"}]}
    )
    stages: Sequence[str] = [(await replayed(config, one))["divergence"]["stage"] for one in (short, more)]
    assert stages == ["quick", "panel"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 7}'])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "recording.json").write_text(text)
    with pytest.raises(InvalidInput, match="recording"):
        Recording.read(tmp_path / "recording.json")


def test_record_writes_what_replay_plays(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places, file = (small(config), tmp_path / "data"), tmp_path / "recordings" / "one.json"
    command.record("small", "21", file, *places, golden=tmp_path / "golden.json")
    command.replay("small", str(file), *places)
    assert capsys.readouterr().out == "the same: s → x → e\n"
    assert json.loads((tmp_path / "golden.json").read_text())["output"] == 42
    assert (ROOT / "config" / "workflows" / NAME / "evals").is_dir()
    for out, golden in ((file / "x", None), (file, file / "x")):
        with pytest.raises(AstromeshError, match=r"^Cannot write .*x: "):
            command.record("small", "21", out, *places, golden=golden)


def test_a_stage_runs_again_of_a_stored_task_alone(config: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="need the id of a stored Task, not '21'"):
        command.inspect_task("small", "21", small(config), tmp_path / "data", stage="x")
