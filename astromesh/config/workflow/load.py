"""Reads a workflow's folder: every file, and every fault at once (workflow.md E16)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from astromesh.config.fields import JsonMap
from astromesh.config.keys import did_you_mean
from astromesh.config.loader import read
from astromesh.config.nodes import Node, Place, Steps, dotted, made
from astromesh.config.validation import salvage
from astromesh.config.workflow.files import FILES, REJECTED, SCHEMAS, WORKFLOW
from astromesh.config.workflow.nodes import WorkflowFile
from astromesh.config.workflow.part import VERSION, FilePart
from astromesh.errors import InvalidManifest

F = TypeVar("F", bound=FilePart)


@dataclass(frozen=True, slots=True)
class WorkflowFolder:
    """A folder as read.

    Args:
        files: file name → record; where the file has faults, of the part that has none.
        roots: file name → what it holds, with places.
        schemas: schema id → JSON Schema.
    """

    folder: Path
    files: Mapping[str, FilePart] = field(default_factory=dict)
    roots: Mapping[str, Node] = field(default_factory=dict)
    schemas: Mapping[str, JsonMap] = field(default_factory=dict)
    faults: tuple[InvalidManifest, ...] = ()
    warnings: tuple[InvalidManifest, ...] = ()

    @property
    def workflow(self) -> WorkflowFile | None:
        found = self.files.get(WORKFLOW)
        return found if isinstance(found, WorkflowFile) else None

    def file(self, name: str, kind: type[F]) -> F:
        """A file's record; the defaults where there is no such file (E17)."""
        found = self.files.get(name)
        return found if isinstance(found, kind) else kind()

    def fault(self, file: str, rule: str, message: str, steps: Steps = (), hint: str = "") -> InvalidManifest:
        """A fault at a place of one of its files."""
        root = self.roots.get(file)
        place = root.place_of(steps, key=False) if root is not None else Place()
        return a_fault(self.folder / file, rule, message, place, steps, hint)


def a_fault(
    file: Path, rule: str, message: str, place: Place = Place(), steps: Steps = (), hint: str = ""
) -> InvalidManifest:
    """A fault with the name of the rule that is broken."""
    return InvalidManifest(
        message, file=str(file), line=place.line, column=place.column, key=dotted(steps), hint=hint, rule=rule
    )


def read_folder(folder: str | Path, env: Mapping[str, str] | None = None) -> WorkflowFolder:
    """Reads a folder. What is wrong with it stands in the answer; nothing is raised.

    Args:
        folder: with `workflow.yaml`, the other files of `FILES` and `schemas/*.json`.
        env: environment variables for `${VAR}`; absent: the process's own.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return WorkflowFolder(folder, faults=(a_fault(folder, "missing_folder", "there is no such folder"),))
    return _Reading(folder, os.environ if env is None else env).run()


class _Reading:
    """One folder on its way."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env
        self._files: dict[str, FilePart] = {}
        self._roots: dict[str, Node] = {}
        self._schemas: dict[str, JsonMap] = {}
        self._faults: list[InvalidManifest] = []

    def run(self) -> WorkflowFolder:
        for name in FILES:
            if (self._folder / name).exists():
                self._file(name)
            elif name == WORKFLOW:
                self._faults.append(a_fault(self._folder / name, "missing_file", "there is no such file"))
        for name, right in REJECTED.items():
            if (self._folder / name).exists():
                message = f"is not a file of a workflow: its settings belong into {right}"
                self._faults.append(a_fault(self._folder / name, "rejected_file", message))
        for path in sorted((self._folder / SCHEMAS).glob("*.json")):
            self._schema(path)
        faults = tuple({str(fault): fault for fault in self._faults}.values())
        return WorkflowFolder(
            self._folder, self._files, self._roots, self._schemas, faults, tuple(self._strangers())
        )

    def _file(self, name: str) -> None:
        path = self._folder / name
        document = read(path, self._env)
        self._faults += [_named(fault, "unreadable") for fault in document.faults]
        if document.node is None:
            return
        self._roots[name] = root = _with_empty_lists(_without_own_keys(document.node))
        if not isinstance(root.value, dict):
            self._faults.append(a_fault(path, "invalid_value", "must be a mapping", root.place))
            return
        if self._other_version(path, root):
            return
        salvaged = salvage(FILES[name], root, path)
        self._faults += [_named(fault, _rule_of(fault)) for fault in salvaged.faults]
        if salvaged.record is not None:
            self._files[name] = salvaged.record

    def _other_version(self, path: Path, root: Node) -> bool:
        version = root.get("version")
        if version is None or not isinstance(version.value, int) or version.value == VERSION:
            return False
        message = f"version {version.value} is not known; this astromesh reads version {VERSION}"
        hint = _migration(version.value)
        self._faults.append(a_fault(path, "unknown_version", message, version.place, ("version",), hint))
        return True

    def _schema(self, path: Path) -> None:
        try:
            text = path.read_bytes()
            schema = orjson.loads(text)
        except OSError as error:
            self._faults.append(a_fault(path, "unreadable", f"cannot be read: {error.strerror}"))
        except orjson.JSONDecodeError as error:
            place = Place(error.lineno, error.colno)
            self._faults.append(a_fault(path, "unreadable", f"is not valid JSON: {error.msg}", place))
        else:
            if isinstance(schema, dict):
                self._schemas[path.stem] = schema
            else:
                self._faults.append(a_fault(path, "invalid_schema", "must be a JSON object", Place(1, 1)))

    def _strangers(self) -> Iterator[InvalidManifest]:
        for path in sorted(self._folder.glob("*.y*ml")):
            if path.name not in FILES and path.name not in REJECTED:
                yield a_fault(path, "stranger", "is not read", hint=did_you_mean(path.name, FILES))


def _migration(version: int) -> str:
    """What to do about a file of another version."""
    if version > VERSION:
        return (
            "migration: it was made for a newer astromesh: install that (`pip install --upgrade astromesh`)"
        )
    return f"migration: there was none before 1; write `version: {VERSION}` and validate the workflow again"


#: keys whose content is the author's own
_FREE = ("metadata", "options", "config", "pattern_options", "schema_in", "schema_out", "input", "expected")


def _without_own_keys(root: Node) -> Node:
    """The document without keys that begin with `x-` (E16)."""
    for key, node in list(root.entries.items()):
        if isinstance(key, str) and isinstance(root.value, dict) and key.startswith("x-"):
            root = root.without((key,))
        elif node.entries and key not in _FREE:
            inner = _without_own_keys(node)
            if inner is not node:
                root = root.replaced((key,), inner)
    return root


def _with_empty_lists(root: Node) -> Node:
    """`edges:` without a value is an empty list (E14), and so are the lists of the other files (E17)."""
    for key, node in list(root.entries.items()):
        if node.value is None and key in ("edges", "agents", "tools", "providers", "policies", "plugins"):
            empty = made([])
            empty.place = node.place
            root = root.with_entry(str(key), empty)
    return root


def _named(fault: InvalidManifest, rule: str) -> InvalidManifest:
    fault.rule = rule
    return fault


#: how a message of the validation begins → the rule
_RULES = (("is no known key", "unknown_key"), ("is missing", "missing_key"))


def _rule_of(fault: InvalidManifest) -> str:
    return next((rule for start, rule in _RULES if fault.message.startswith(start)), "invalid_value")


def json_schema_of(name: str) -> JsonMap:
    """The JSON Schema of one of the files."""
    whole: dict[str, Any] = FILES[name].model_json_schema(by_alias=True)
    whole["patternProperties"] = {"^x-": {}}
    for definition in whole.get("$defs", {}).values():
        if definition.get("additionalProperties") is False:
            definition["patternProperties"] = {"^x-": {}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}
