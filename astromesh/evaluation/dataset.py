"""Datasets, files of cases beside an agent or in the folder of a workflow: read, and written to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import yaml

from astromesh.config.base import node_from_value
from astromesh.config.environment import literal
from astromesh.config.parser import Document, manifest_fault, parse_text, read_file
from astromesh.config.validation import salvage
from astromesh.config.workflow import EvaluationsFile
from astromesh.errors import InvalidConfiguration, InvalidInput, InvalidManifest
from astromesh.evaluation.base import Case, Kind
from astromesh.text import did_you_mean
from astromesh.types import JsonObject

#: folder of datasets: beside `agents/` in a configuration, or in a workflow's folder
FOLDER = "evals"
EVALUATIONS = "evaluations.yaml"
_SUFFIXES = (".yaml", ".yml", ".jsonl")
#: folder of recordings, in that of the datasets
RECORDINGS = "recordings"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_ITEM = re.compile(r"^( *)- ", re.MULTILINE)
_CASES = re.compile(r"^cases:[ \t]*(?:#.*)?$", re.MULTILINE)


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
    tagged = [one for one in cases if not tag or tag in one.tags]
    if not tagged:
        known = dict.fromkeys(name for one in cases for name in one.tags)
        raise InvalidInput(_unknown(f"case with the tag {tag!r}", known, tag))
    found = [one for one in tagged if case in ("", one.spec.id)]
    if not found:
        within = f" with the tag {tag!r}" if tag else ""
        raise InvalidInput(
            _unknown(f"case {case!r}{within}", dict.fromkeys(one.spec.id for one in tagged), case)
        )
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


# -- writing -------------------------------------------------------------------------------------------------


class ProposedCase(NamedTuple):
    """A case made of a run.

    Args:
        folder: that has the datasets: `evals` of a configuration or a workflow.
        owner: the agent or the workflow; also the name of the dataset, unless another one is wanted.
        case: as in a dataset, without `replay`.
        recording: the content of its recording, or None.
        note: why it has no recording, or what else a reader should know.
    """

    folder: Path
    owner: str
    case: JsonObject
    recording: JsonObject | None = None
    note: str = ""


class Addition(NamedTuple):
    """What adding a case changes on disk.

    Args:
        file: the dataset.
        text: its new text.
        added: the part that is new.
        recording: the file of the recording and its content, or None.
    """

    file: Path
    text: str
    added: str
    recording: tuple[Path, JsonObject] | None = None

    def write(self) -> None:
        """Raises: InvalidInput: a file cannot be written."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if self.recording is not None:
                file, content = self.recording
                file.parent.mkdir(exist_ok=True)
                option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
                file.write_bytes(orjson.dumps(content, option=option))
            self.file.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"{error.filename} cannot be written: {error.strerror}.") from error


def addition(proposed: ProposedCase, dataset: str = "") -> Addition:
    """Returns what adding a case changes. Writes nothing.

    Args:
        dataset: the name of the dataset; empty: that of the agent or workflow. `NAME.jsonl` begins one of
            lines.

    Raises:
        InvalidInput: the dataset has a case with this id, or a case cannot be added at its end.
        InvalidConfiguration: the dataset has faults.
    """
    file = _dataset_file(proposed.folder, dataset or proposed.owner)
    case, recording = dict(proposed.case), None
    if proposed.recording is not None:
        place = Path(RECORDINGS) / f"{case['id']}.json"
        case["replay"] = str(place)
        recording = proposed.folder / place, proposed.recording
    before = read_dataset(file) if file.exists() else None
    if before is not None and any(one.id == case["id"] for one in before.cases):
        raise InvalidInput(f"{file} already has a case {case['id']!r}. Choose another one with --id.")
    if file.suffix == ".jsonl":
        text, added = _appended_line(file, case)
    else:
        text, added = _appended_item(file, case, proposed.owner)
        _require_added(file, text, before, case)
    return Addition(file, text, added, recording)


def _dataset_file(folder: Path, dataset: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", dataset):
        raise InvalidInput(f"{dataset!r} is not the name of a dataset: use letters, digits, dots and dashes.")
    names = [dataset] if dataset.endswith((".yaml", ".yml", ".jsonl")) else []
    names += [f"{dataset}{suffix}" for suffix in (".yaml", ".yml", ".jsonl")]
    return next((folder / name for name in names if (folder / name).exists()), folder / names[0])


def _appended_line(file: Path, case: JsonObject) -> tuple[str, str]:
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    line = orjson.dumps(case, option=orjson.OPT_APPEND_NEWLINE).decode()
    return (before if before.endswith("\n") or not before else f"{before}\n") + line, line


def _appended_item(file: Path, case: JsonObject, owner: str) -> tuple[str, str]:
    if not file.exists():
        head = "" if file.stem == owner else f"agent: {owner}\n"
        text = f"{head}cases:\n{_item(case, 2)}"
        return text, text
    before = file.read_text(encoding="utf-8").rstrip() + "\n"
    key = _CASES.search(before)
    if key is None:
        added = f"cases:\n{_item(case, 2)}"
    else:
        found = _ITEM.search(before, key.end())
        added = _item(case, len(found[1]) if found else 2)
    return before + added, added


def _item(case: JsonObject, indent: int) -> str:
    dumped = yaml.dump(
        _escaped(case), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    lines = dumped.splitlines()
    return "".join(
        f"{' ' * indent}{'- ' if number == 0 else '  '}{line}\n" for number, line in enumerate(lines)
    )


def _escaped(value: Any) -> Any:
    """Returns a value whose texts name no variables of the environment."""
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [*map(_escaped, value)] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):
    """Writes each text that is more than a word in double quotes: no reader takes it for a number."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    is_word = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else '"')


_Dumper.add_representer(str, _represent_text)


def _require_added(file: Path, text: str, before: EvaluationsFile | None, case: JsonObject) -> None:
    """Reads the new text as the loader will, and compares."""
    document = parse_text(text, Document(file, text), os.environ)
    value = document.node.value if document.node is not None and not document.faults else None
    cases = value.get("cases") if isinstance(value, dict) else None
    count = 0 if before is None else len(before.cases)
    if not isinstance(cases, list) or len(cases) != count + 1 or cases[-1] != case:
        hint = "Put `cases:` at its end, with one case a line that begins with `- `."
        raise InvalidInput(f"A case cannot be added at the end of {file}. {hint}")
