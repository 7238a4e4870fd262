"""Datasets: which cases an agent and a workflow have, and the faults of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.config.workflow import EvaluationsFile
from astromesh.errors import InvalidConfiguration, InvalidInput
from astromesh.evaluation.dataset import (
    EVALUATIONS,
    ProposedCase,
    addition,
    agent_cases,
    dataset_faults,
    list_datasets,
    read_dataset,
    select,
    workflow_cases,
)

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
        ("shop__yaml", "cases: [{id: one}, {id: one}]\n", r"shop\.yaml.*two cases have the id `one`"),
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


def test_datasets_are_listed_with_their_owners_and_their_faults(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        shop__yaml=CASES,
        refunds__yaml=f"agent: shop\n{CASES}",
        lines__jsonl=LINES,
        broken__yaml="cases: [",
    )
    folder = written(tmp_path / "flow", more__yaml=CASES)
    (folder / EVALUATIONS).write_text("suites:\n  - name: ci\n    " + CASES.replace("\n", "\n    "))
    found = list_datasets(config, {"flow": folder, "none": tmp_path / "none"})
    assert [(one.kind, one.owner, one.name, len(one.cases)) for one in found] == [
        ("agent", "broken", "broken", 0),
        ("agent", "lines", "lines", 2),
        ("agent", "shop", "refunds", 1),
        ("agent", "shop", "shop", 1),
        ("workflow", "flow", "evaluations", 1),
        ("workflow", "flow", "more", 1),
    ]
    assert [bool(one.fault) for one in found] == [True] + [False] * 5
    assert "not valid YAML" in found[0].fault
    assert [fault.file for fault in dataset_faults(config)] == [str(config / "evals" / "broken.yaml")]


# -- writing -------------------------------------------------------------------------------------------------

CASE = {"id": "new", "input": "What is ${TEA}?", "assertions": [{"type": "contains", "expected": "yes: 5"}]}


def written_again(folder: Path, dataset: str = "", **case: object) -> str:
    """The text of a dataset after a case was added, which its reader takes as it was given."""
    given = {**CASE, **case}
    made = addition(ProposedCase(folder, "shop", given), dataset)
    made.write()
    assert made.file.read_text() == made.text
    assert made.text.endswith(made.added) and made.text.endswith("\n")
    [*_, last] = read_dataset(made.file).cases
    assert last.model_dump(mode="json", exclude_unset=True) == given
    return made.text


def test_a_case_begins_a_dataset_or_is_added_at_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "evals"
    first = written_again(folder)
    assert first.startswith("cases:\n  - id: new\n")
    assert written_again(folder, id="second").startswith(first)
    assert written_again(folder, "other").startswith("agent: shop\ncases:\n")
    lines = written_again(folder, "lines.jsonl")
    assert written_again(folder, "lines", id="second").count("\n") == 2 * lines.count("\n") == 2
    (folder / "cut.jsonl").write_text(lines.rstrip())
    assert written_again(folder, "cut", id="second").count("\n") == 2


@pytest.mark.parametrize(
    ("text", "indent"),
    [
        ("cases:\n- id: a\n", ""),
        ("cases: # some\n    - id: a\n\n\n", "    "),
        ("agent: shop\ntags: [x]", "  "),
    ],
)
def test_an_added_case_stands_as_those_before_it(tmp_path: Path, text: str, indent: str) -> None:
    (tmp_path / "shop.yaml").write_text(text)
    assert f"\n{indent}- id: new\n" in written_again(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cases: [{id: new}]\n", "already has a case 'new'"),
        ("cases: [{id: a}]\n", "cannot be added at the end of"),
        ("cases:\n  - id: a\ntags: [x]\n", "cannot be added at the end of"),
    ],
)
def test_a_case_that_cannot_be_added_is_said(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "shop.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=says):
        addition(ProposedCase(tmp_path, "shop", CASE))
    with pytest.raises(InvalidInput, match="not the name of a dataset"):
        addition(ProposedCase(tmp_path, "shop", CASE), "../x")
