"""Datasets: files of cases beside an agent or in the folder of a workflow, as YAML or JSONL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from astromesh.config.base import node_from_value
from astromesh.config.parser import manifest_fault, read_file
from astromesh.config.validation import salvage
from astromesh.config.workflow.evaluations import EvaluationsFile
from astromesh.errors import InvalidConfiguration, InvalidInput, InvalidManifest
from astromesh.evaluation.base import Case, Kind
from astromesh.text import did_you_mean

#: folder of datasets: beside `agents/` in a configuration, or in a workflow's folder
FOLDER = "evals"
EVALUATIONS = "evaluations.yaml"
_SUFFIXES = (".yaml", ".yml", ".jsonl")


def dataset_files(folder: Path) -> dict[str, Path]:
    """Returns the datasets in `evals/` of a folder by name."""
    files = sorted(file for file in (folder / FOLDER).glob("*") if file.suffix in _SUFFIXES)
    return {file.stem: file for file in files}


def read_dataset(file: Path) -> EvaluationsFile:
    """Reads a dataset. Each line of JSONL is a case.

    Raises:
        InvalidConfiguration: every fault of the file.
    """
    if file.suffix == ".jsonl":
        return _read_lines(file)
    document = read_file(file, os.environ)
    if document.node is None:
        raise InvalidConfiguration(document.faults)
    read = salvage(EvaluationsFile, document.node, file)
    if faults := (*document.faults, *read.faults):
        raise InvalidConfiguration(faults)
    assert read.record is not None
    return _with_unique_ids(file, read.record)


def _read_lines(file: Path) -> EvaluationsFile:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        cases = [orjson.loads(line) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, orjson.JSONDecodeError) as error:
        raise InvalidConfiguration([manifest_fault(file, f"is not JSON Lines: {error}")]) from error
    read = salvage(EvaluationsFile, node_from_value({"cases": cases}), file)
    if read.faults or read.record is None:
        raise InvalidConfiguration(read.faults)
    return _with_unique_ids(file, read.record)


def _with_unique_ids(file: Path, dataset: EvaluationsFile) -> EvaluationsFile:
    for cases in (dataset.cases, *(suite.cases for suite in dataset.suites)):
        ids = [case.id for case in cases]
        if twice := next((one for one in ids if ids.count(one) > 1), None):
            raise InvalidConfiguration([manifest_fault(file, f"two cases have the id `{twice}`")])
    return dataset


def cases_of(name: str, dataset: EvaluationsFile, folder: Path) -> Iterator[Case]:
    """Yields the cases of a dataset. Args: name: of the suite that its `cases` are. folder: of the file."""
    judge = dataset.judge
    yield from (Case(name, case, folder, dataset.tags, judge) for case in dataset.cases)
    for suite in dataset.suites:
        yield from (Case(suite.name, case, folder, suite.tags, judge) for case in suite.cases)


def agent_cases(config: Path, agent: str, dataset: str = "") -> list[Case]:
    """Returns the cases of an agent.

    Args:
        config: folder of the configuration.
        dataset: the name of a dataset in `evals/`, or a file; empty: every dataset of the agent.

    Raises:
        InvalidInput: there is no dataset.
        InvalidConfiguration: a dataset has faults.
    """
    files = dataset_files(config)
    if dataset:
        file = _file_of(dataset, files)
        return [*cases_of(file.stem, read_dataset(file), file.parent)]
    found: list[Case] = []
    for name, file in files.items():
        read = read_dataset(file)
        if agent == (read.agent or name):
            found += cases_of(name, read, file.parent)
    if not found:
        raise InvalidInput(
            f"The agent {agent!r} has no dataset. Write {config / FOLDER / agent}.yaml, or make a case of a "
            "run: astromesh eval add RUN."
        )
    return found


def workflow_cases(folder: Path, evaluations: EvaluationsFile, dataset: str = "") -> list[Case]:
    """Returns the cases of a workflow: of evaluations.yaml and of its datasets.

    Args:
        folder: of the workflow.
        evaluations: its evaluations.yaml.
        dataset: the name of a suite or dataset, or a file; empty: all.

    Raises:
        InvalidInput: there is no such suite or dataset.
    """
    files = dataset_files(folder)
    suites = [suite.name for suite in evaluations.suites]
    if dataset and dataset not in suites:
        if dataset not in files and not Path(dataset).is_file():
            raise InvalidInput(_unknown(f"suite or dataset {dataset!r}", (*suites, *files), dataset))
        file = _file_of(dataset, files)
        return [*cases_of(file.stem, read_dataset(file), file.parent)]
    found = [*cases_of("evaluations", evaluations, folder)]
    if dataset:
        return [case for case in found if case.suite == dataset]
    for name, file in files.items():
        found += cases_of(name, read_dataset(file), file.parent)
    return found


class ListedDataset(NamedTuple):
    """A dataset, or the evaluations.yaml of a workflow.

    Args:
        owner: the agent or workflow.
        fault: of the file.
    """

    kind: Kind
    owner: str
    name: str
    cases: tuple[Case, ...] = ()
    fault: str = ""


def list_datasets(config: Path, workflows: Mapping[str, Path]) -> list[ListedDataset]:
    """Returns the datasets of a configuration. Files with faults are listed, too.

    Args:
        workflows: folders of the workflows by name.
    """
    found = [_listed("agent", "", name, file) for name, file in dataset_files(config).items()]
    for owner, folder in workflows.items():
        files = dataset_files(folder)
        if (file := folder / EVALUATIONS).exists():
            files = {file.stem: file, **files}
        found += [_listed("workflow", owner, name, file) for name, file in files.items()]
    return found


def _listed(kind: Kind, owner: str, name: str, file: Path) -> ListedDataset:
    try:
        read = read_dataset(file)
    except InvalidConfiguration as error:
        return ListedDataset(kind, owner or name, name, fault=str(error))
    return ListedDataset(kind, owner or read.agent or name, name, (*cases_of(name, read, file.parent),))


def dataset_faults(folder: Path) -> Iterator[InvalidManifest]:
    """Yields every fault of the datasets in `evals/` of a configuration or a workflow."""
    for file in dataset_files(folder).values():
        try:
            read_dataset(file)
        except InvalidConfiguration as error:
            yield from error.faults


def select(cases: Sequence[Case], tag: str = "", case: str = "") -> list[Case]:
    """Returns the cases of suites with a tag, or those with an id.

    Raises:
        InvalidInput: there is none.
    """
    found = [one for one in cases if (not tag or tag in one.tags) and case in ("", one.spec.id)]
    if not found:
        wanted = " ".join(filter(None, (f"with the tag {tag!r}" if tag else "", f"{case!r}" if case else "")))
        known = (*dict.fromkeys(one.spec.id for one in cases),)
        raise InvalidInput(_unknown(f"case {wanted}".strip(), known, case))
    return found


def _file_of(dataset: str, files: Mapping[str, Path]) -> Path:
    if dataset in files:
        return files[dataset]
    if Path(dataset).is_file():
        return Path(dataset)
    raise InvalidInput(_unknown(f"dataset {dataset!r}", files, dataset))


def _unknown(what: str, known: Iterable[str], name: str) -> str:
    known = tuple(known)
    hint = did_you_mean(name, known) if name else ""
    return f"There is no {what}. " + (hint or f"Known: {', '.join(known) or 'none'}.")
