"""Writes cases: the text that is added to a dataset, and the files of a case."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import yaml

from astromesh.config.environment import literal
from astromesh.config.parser import Document, parse_text
from astromesh.config.workflow.evaluations import EvaluationsFile
from astromesh.errors import InvalidInput
from astromesh.evaluation.dataset import read_dataset
from astromesh.types import JsonObject

#: folder of recordings, in that of the datasets
RECORDINGS = "recordings"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_ITEM = re.compile(r"^( *)- ", re.MULTILINE)
_CASES = re.compile(r"^cases:[ \t]*(?:#.*)?$", re.MULTILINE)


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
