"""Datasets: which cases an agent and a workflow have, and the faults of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.config.workflow import EvaluationsFile
from astromesh.errors import InvalidConfiguration, InvalidInput
from astromesh.evaluation.dataset import agent_cases, select, workflow_cases

CASES = "cases:\n  - {id: one, input: Hi, assertions: [{type: contains, expected: Hello}]}\n"
LINES = '{"id": "a", "input": "Hi ${HOME}"}\n\n{"id": "b", "input": "Ho", "context": {"k": 1}}\n'


def written(config: Path, **files: str) -> Path:
    (config / "evals").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (config / "evals" / name.replace("__", ".")).write_text(text)
    return config


def test_the_datasets_of_an_agent_have_its_name_or_say_it(tmp_path: Path) -> None:
    config = written(
        tmp_path, shop__jsonl=LINES, refunds__yaml=f"agent: shop\ntags: [ci]\n{CASES}", bank__yaml=CASES
    )
    found = agent_cases(config, "shop")
    assert [(one.suite, one.spec.id) for one in found] == [("refunds", "one"), ("shop", "a"), ("shop", "b")]
    assert found[1].spec.input == "Hi ${HOME}"  # lines of JSON know no variables
    assert [one.spec.id for one in select(found, tag="ci")] == ["one"]
    assert [one.spec.id for one in select(found, case="b")] == ["b"]
    assert [one.suite for one in agent_cases(config, "shop", "bank")] == ["bank"]
    assert len(agent_cases(config, "shop", str(config / "evals" / "shop.jsonl"))) == 2


def test_a_workflow_has_the_suites_of_its_file_and_its_datasets(tmp_path: Path) -> None:
    suites = EvaluationsFile.model_validate_json('{"suites": [{"name": "ci", "cases": [{"id": "x"}]}]}')
    folder = written(tmp_path, more__yaml=CASES)
    assert [one.suite for one in workflow_cases(folder, suites)] == ["ci", "more"]
    assert [one.folder for one in workflow_cases(folder, suites)] == [folder, folder / "evals"]
    assert [one.suite for one in workflow_cases(folder, suites, "more")] == ["more"]
    assert [one.suite for one in workflow_cases(folder, suites, "ci")] == ["ci"]
    with pytest.raises(InvalidInput, match="Known: ci, more"):
        workflow_cases(folder, suites, "co")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("shop__yaml", "cases:\n  - {id: one, inputs: Hi}\n", "unknown key `inputs`"),
        ("shop__yaml", "cases:\n  - {id: one, assertions: [{type: equal}]}\n", "equal"),
        ("shop__yaml", "cases: [{id: one}, {id: one}]\n", "two cases have the id `one`"),
        ("shop__yaml", "cases: [", "is not valid YAML"),
        ("shop__jsonl", "{", "is not JSON Lines"),
        ("shop__jsonl", '{"id": "a b"}', "id"),
    ],
)
def test_faults_of_a_dataset_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        agent_cases(written(tmp_path, **{name: text}), "shop")


def test_no_dataset_and_no_case_are_errors_that_say_what_there_is(tmp_path: Path) -> None:
    config = written(tmp_path, shop__yaml=CASES)
    with pytest.raises(InvalidInput, match="has no dataset"):
        agent_cases(config, "bank")
    with pytest.raises(InvalidInput, match=r"no dataset 'shops'\. Did you mean `shop`"):
        agent_cases(config, "shop", "shops")
    with pytest.raises(InvalidInput, match="no case 'on'"):
        select(agent_cases(config, "shop"), case="on")
    with pytest.raises(InvalidInput, match=r"no case with the tag 'ci'\. Known: none"):
        select(agent_cases(config, "shop"), tag="ci")
