"""Cassettes and evaluations: the sample replays without any model, and what differs is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from astromesh.abc.tasks import Found
from astromesh.cli import workflow_tape as command
from astromesh.errors import AstromeshError, InvalidInput, MissingKey, ProviderUnavailable
from astromesh.runtime.task_asked import Asked
from astromesh.types import CompletionRequest
from astromesh.workflow.cassette import Cassette
from astromesh.workflow.tape import request_hash
from tests.integration.test_wf_sample import CONTRACT, ROOT, lawyer
from tests.integration.workflow_folder import runtime_with, sample, small

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
    """The cassettes that lie beside the sample, as `scripts/record_workflows.py` recorded them."""
    sample(config)
    command.evaluate((config, tmp_path / "data"), NAME, "", "ci", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and [case["case"] for case in told["cases"]] == [
        "simple_contract", "complex_contract", "rejected_contract",
    ]  # fmt: skip
    assert {one["type"] for case in told["cases"] for one in case["assertions"]} == {
        "status", "equals", "contains", "schema_valid", "golden", "path",
    }  # fmt: skip


async def test_e58_an_evaluation_is_kept_as_an_artifact(config: Path) -> None:
    async with runtime_with(sample(config), never) as runtime:
        told = await runtime.workflows.evaluate(NAME)
        kept = await runtime.workflows.tasks.artifacts(
            told["evaluation_id"], command.OPERATOR, Found(type="evaluation")
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
        ("{type: golden, file: none.json}", "could not be checked"),
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


def test_e58_the_command_ends_with_1_where_a_case_does_not_pass(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(config, evaluations=f"{CASE}          - {{type: status, expected: partial}}\n")
    with pytest.raises(typer.Exit) as ended:
        command.evaluate((config, tmp_path / "data"), "small", "", "", as_json=False)
    assert ended.value.exit_code == 1
    assert "FAILED  all/one" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended:
        command.evaluate((config, tmp_path / "data"), "small", "nightly", "", as_json=False)
    assert ended.value.exit_code == 2


@dataclass(frozen=True)
class Asked1:
    model: str
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked2(Asked1):
    further: Sequence[str] = field(default_factory=list)


def test_e53_a_field_that_is_added_to_the_records_makes_no_cassette_diverge() -> None:
    """Only what is not at its default is hashed."""
    assert request_hash(Asked1("m", ("t",))) == request_hash(Asked2("m", ("t",)))
    assert request_hash(Asked2("m", ("t",))) != request_hash(Asked2("m", ("t",), ["x"]))
    assert request_hash(Asked1("m")) != request_hash(Asked1("n"))


# -- cassettes -----------------------------------------------------------------------------------------------


async def recorded(config: Path, model: Any = lawyer, text: str = CONTRACT) -> Cassette:
    async with runtime_with(config, model) as runtime:
        result = await runtime.workflows.run(NAME, Asked({"text": text}))
        return await runtime.workflows.tasks.cassette(result.task_id, command.OPERATOR)


async def replayed(config: Path, cassette: Cassette) -> dict[str, Any]:
    async with runtime_with(config, never) as runtime:
        return await runtime.workflows.replays.play(NAME, cassette)


def changed(cassette: Cassette, stage: str, **values: Any) -> Cassette:
    stages = [{**one, **values} if one["stage"] == stage else one for one in cassette.stages]
    return Cassette.of_json({**cassette.to_json(), "stages": stages})


async def test_e53_a_cassette_replays_after_it_was_written_and_read(config: Path, tmp_path: Path) -> None:
    cassette = await recorded(sample(config))
    cassette.write(tmp_path / "tape.json")
    told = await replayed(config, Cassette.read(tmp_path / "tape.json"))
    assert told["same"] and told["path"] == cassette.path


async def test_a_stage_whose_memory_could_not_be_read_fails_in_the_replay_too(config: Path) -> None:
    """The reviews fail before they ask anybody; the replay has a memory of its own, which works."""
    state = sample(config) / "workflows" / NAME / ".state"
    state.mkdir()
    (state / "project.db").write_bytes(b"this is no database" * 100)
    cassette = await recorded(config)
    reviews = [one["code"] for one in cassette.stages if one["stage"].startswith("review")]
    assert reviews == ["store_error"] * 3
    told = await replayed(config, cassette)
    assert told["same"] and told["path"] == cassette.path, told["divergence"]


@pytest.mark.parametrize("error", [ProviderUnavailable("the model is away"), MissingKey("there is no key")])
async def test_errors_of_models_are_on_tape_too(config: Path, error: AstromeshError) -> None:
    """Replayed, the stage fails as it did, with the same code."""

    def broken(request: CompletionRequest) -> Any:
        if request.messages[0].content.startswith("Review"):
            raise error
        return lawyer(request)

    cassette = await recorded(sample(config), broken, "One page NDA")
    assert cassette.status == "failure"
    told = await replayed(config, cassette)
    assert told["same"] and told["status"] == "failure", told["divergence"]


@pytest.mark.parametrize(
    ("values", "what", "message"),
    [
        ({"output_hash": "0" * 64}, "output_hash", "intake: output_hash is"),
        ({"status": "failure"}, "status", "intake: status is 'success', on the tape it is 'failure'"),
    ],
)
async def test_e53_the_first_divergence_is_named(
    config: Path, values: dict[str, str], what: str, message: str
) -> None:
    cassette = await recorded(sample(config), text="One page NDA")
    told = await replayed(config, changed(cassette, "intake", **values))
    assert not told["same"]
    assert (told["divergence"]["stage"], told["divergence"]["what"]) == ("intake", what)
    assert told["divergence"]["message"].startswith(message)


async def test_another_request_to_a_model_is_a_divergence(config: Path) -> None:
    """The prompt was changed since: the request's hash says so, before any answer is used."""
    cassette = await recorded(sample(config), text="One page NDA")
    agents = config / "workflows" / NAME / "agents.yaml"
    agents.write_text(agents.read_text().replace("Review one clause.", "Review this clause."))
    told = await replayed(config, cassette)
    assert (told["divergence"]["stage"], told["divergence"]["what"]) == ("quick", "call")
    assert "request_hash" in told["divergence"]["message"]


async def test_a_stage_that_is_not_on_tape_or_not_reached_is_a_divergence(config: Path) -> None:
    cassette = await recorded(sample(config), text="One page NDA")
    short = Cassette.of_json({**cassette.to_json(), "stages": list(cassette.stages[:2])})
    more = Cassette.of_json(
        {**cassette.to_json(), "stages": [*cassette.stages, {**cassette.stages[0], "stage": "panel"}]}
    )
    stages: Sequence[str] = [(await replayed(config, one))["divergence"]["stage"] for one in (short, more)]
    assert stages == ["quick", "panel"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 7}'])
def test_a_file_that_is_no_cassette_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tape.json").write_text(text)
    with pytest.raises(InvalidInput, match="cassette"):
        Cassette.read(tmp_path / "tape.json")


def test_record_writes_what_replay_plays(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places, tape = (small(config), tmp_path / "data"), tmp_path / "tapes" / "one.json"
    command.record(places, "small", "21", "", tape, tmp_path / "golden.json")
    command.replay(places, "small", str(tape), as_json=False)
    assert capsys.readouterr().out == "the same: s → x → e\n"
    assert json.loads((tmp_path / "golden.json").read_text())["output"] == 42
    assert (ROOT / "config" / "workflows" / NAME / "evals").is_dir()
