"""Reads a workflow's folder: which files it has, every file, and every fault at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import orjson

from astromesh.config.base import Node, Place, Steps, node_from_value
from astromesh.config.parser import Document, manifest_fault, parse_text, read_file
from astromesh.config.records import JsonMap, subclasses_of
from astromesh.config.validation import salvage
from astromesh.config.workflow import (
    MANIFEST_VERSION,
    AgentsFile,
    CredentialsFile,
    EvaluationsFile,
    ManifestFile,
    MemoryFile,
    MetricsFile,
    ObserversFile,
    PolicyFile,
    ProfilesFile,
    ProvidersFile,
    SchedulerFile,
    Section,
    ToolsFile,
    WorkflowFile,
)
from astromesh.errors import InvalidManifest
from astromesh.text import did_you_mean

WORKFLOW = "workflow.yaml"
#: file → its record; only the first is required, the others where something refers to them
FILES: Mapping[str, type[ManifestFile]] = {
    WORKFLOW: WorkflowFile,
    "agents.yaml": AgentsFile,
    "tools.yaml": ToolsFile,
    "memory.yaml": MemoryFile,
    "providers.yaml": ProvidersFile,
    "provider_credentials.yaml": CredentialsFile,
    "policy.yaml": PolicyFile,
    "scheduler.yaml": SchedulerFile,
    "metrics.yaml": MetricsFile,
    "plugins.yaml": ObserversFile,
    "evaluations.yaml": EvaluationsFile,
    "cli_profiles.yaml": ProfilesFile,
}
#: files that decide nothing in a run
UNDECISIVE = frozenset(("metrics.yaml", "plugins.yaml", "evaluations.yaml", "cli_profiles.yaml"))
#: file names of other documents → the file that holds their settings here
REJECTED: Mapping[str, str] = {
    "execution.yaml": "scheduler.yaml",
    "persistent_memory.yaml": "memory.yaml",
}
#: folder of the JSON Schemas; the file's stem is the schema's id
SCHEMAS = "schemas"


_File = TypeVar("_File", bound=ManifestFile)


@dataclass(frozen=True, slots=True)
class WorkflowFolder:
    """A folder as read.

    Args:
        files: file name → record; where the file has faults, of the part that has none.
        roots: file name → its content, with places.
        schemas: schema id → JSON Schema.
        texts: file name → its text as written.
    """

    folder: Path
    files: Mapping[str, ManifestFile] = field(default_factory=dict)
    roots: Mapping[str, Node] = field(default_factory=dict)
    schemas: Mapping[str, JsonMap] = field(default_factory=dict)
    faults: tuple[InvalidManifest, ...] = ()
    warnings: tuple[InvalidManifest, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def workflow(self) -> WorkflowFile | None:
        found = self.files.get(WORKFLOW)
        return found if isinstance(found, WorkflowFile) else None

    def file(self, kind: type[_File]) -> _File:
        """Returns a file's record; the defaults where the file does not exist."""
        return next((file for file in self.files.values() if isinstance(file, kind)), None) or kind()

    def fault(self, file: str, rule: str, message: str, steps: Steps = (), hint: str = "") -> InvalidManifest:
        """Creates a fault at a place of one of its files."""
        root = self.roots.get(file)
        place = root.place_of(steps, key=False) if root is not None else Place()
        return manifest_fault(self.folder / file, message, place, steps, hint, rule)


def read_folder(
    folder: str | Path, env: Mapping[str, str] | None = None, texts: Mapping[str, str] | None = None
) -> WorkflowFolder:
    """Reads a folder. Faults are part of the result; raises nothing.

    Args:
        folder: with `workflow.yaml`, the other files of `FILES` and `schemas/*.json`.
        env: environment variables for `${VAR}`; absent: the process's own.
        texts: read instead of the files of the folder: name, such as `schemas/order.json`, → text.
    """
    folder = Path(folder)
    if texts is not None:
        return _FolderReader(folder, os.environ if env is None else env).parse(texts)
    if not folder.is_dir():
        fault = manifest_fault(folder, "the folder does not exist", rule="missing_folder")
        return WorkflowFolder(folder, faults=(fault,))
    return _FolderReader(folder, os.environ if env is None else env).run()


class _FolderReader:
    """Reads one folder."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._env = folder, env
        self._files: dict[str, ManifestFile] = {}
        self._roots: dict[str, Node] = {}
        self._schemas: dict[str, JsonMap] = {}
        self._texts: dict[str, str] = {}
        self._faults: list[InvalidManifest] = []

    def run(self) -> WorkflowFolder:
        for name in FILES:
            if (self._folder / name).exists():
                self._file(name, read_file(self._folder / name, self._env))
            elif name == WORKFLOW:
                self._fault(name, "missing_file", "the file does not exist")
        for name, right in REJECTED.items():
            if (self._folder / name).exists():
                message = f"is not a file of a workflow; its settings belong into {right}"
                self._fault(name, "rejected_file", message)
        for path in sorted((self._folder / SCHEMAS).glob("*.json")):
            try:
                self._schema(path, path.read_bytes())
            except OSError as error:
                self._fault(f"{SCHEMAS}/{path.name}", "unreadable", f"cannot be read: {error.strerror}")
        return self._result(tuple(self._unread_files()))

    def parse(self, texts: Mapping[str, str]) -> WorkflowFolder:
        for name, text in texts.items():
            path = self._folder / name
            if name in FILES:
                self._file(name, parse_text(text, Document(path, text), self._env))
            else:
                self._schema(path, text.encode())
        return self._result(())

    def _result(self, warnings: tuple[InvalidManifest, ...]) -> WorkflowFolder:
        faults = tuple({str(fault): fault for fault in self._faults}.values())
        return WorkflowFolder(
            self._folder, self._files, self._roots, self._schemas, faults, warnings, self._texts
        )

    def _fault(self, name: str, rule: str, message: str, place: Place = Place()) -> None:
        self._faults.append(manifest_fault(self._folder / name, message, place, rule=rule))

    def _file(self, name: str, document: Document) -> None:
        path = self._folder / name
        self._faults += document.faults
        self._texts[name] = document.text
        if document.node is None:
            return
        self._roots[name] = root = _with_empty_lists(_without_extension_keys(document.node))
        if not isinstance(root.value, dict):
            self._fault(name, "invalid_value", "must be a mapping", root.place)
            return
        if self._other_version(path, root):
            return
        salvaged = salvage(FILES[name], root, path)
        self._faults += salvaged.faults
        if salvaged.record is not None:
            self._files[name] = salvaged.record

    def _other_version(self, path: Path, root: Node) -> bool:
        version = root.get("version")
        if version is None or not isinstance(version.value, int) or version.value == MANIFEST_VERSION:
            return False
        message = f"unknown version {version.value}; this astromesh reads version {MANIFEST_VERSION}"
        hint = _migration_hint(version.value)
        self._faults.append(
            manifest_fault(path, message, version.place, ("version",), hint, "unknown_version")
        )
        return True

    def _schema(self, path: Path, text: bytes) -> None:
        name = f"{SCHEMAS}/{path.name}"
        try:
            schema = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            place = Place(error.lineno, error.colno)
            self._fault(name, "unreadable", f"is not valid JSON: {error.msg}", place)
        else:
            if isinstance(schema, dict):
                self._schemas[path.stem] = schema
            else:
                self._fault(name, "invalid_schema", "must be a JSON object", Place(1, 1))

    def _unread_files(self) -> Iterator[InvalidManifest]:
        for path in sorted(self._folder.glob("*.y*ml")):
            if path.name not in FILES and path.name not in REJECTED:
                hint = did_you_mean(path.name, FILES)
                yield manifest_fault(path, "is not read", hint=hint, rule="stranger")


def _migration_hint(version: int) -> str:
    """Returns the hint for a file of another version."""
    if version > MANIFEST_VERSION:
        return "migration: install the newer astromesh that it needs (`pip install --upgrade astromesh`)."
    return f"migration: write `version: {MANIFEST_VERSION}` and validate the workflow again."


def _holds_any_value(annotation: Any) -> bool:
    """Returns whether a field may contain mappings whose keys no record declares."""
    return annotation is Any or any(map(_holds_any_value, get_args(annotation)))


#: keys with free-form content; `headers` are those of callbacks, whose names may begin with `x-`
_FREE_FORM_KEYS = frozenset(
    key
    for section in subclasses_of(Section)
    for key, field in section.model_fields.items()
    if _holds_any_value(field.annotation)
) | {"headers"}


def _without_extension_keys(root: Node) -> Node:
    """Returns the document without keys that begin with `x-`."""
    for key, node in list(root.entries.items()):
        if isinstance(key, str) and isinstance(root.value, dict) and key.startswith("x-"):
            root = root.without((key,))
        elif node.entries and key not in _FREE_FORM_KEYS:
            inner = _without_extension_keys(node)
            if inner is not node:
                root = root.with_replaced((key,), inner)
    return root


def _with_empty_lists(root: Node) -> Node:
    """Replaces lists without a value by empty lists, such as `edges:`."""
    for key, node in list(root.entries.items()):
        if node.value is None and key in ("edges", "agents", "tools", "providers", "policies", "plugins"):
            empty = node_from_value([])
            empty.place = node.place
            root = root.with_entry(str(key), empty)
    return root


def json_schema_of(name: str) -> JsonMap:
    """Returns the JSON Schema of one of the files."""
    whole: dict[str, Any] = FILES[name].model_json_schema(by_alias=True)
    whole["patternProperties"] = {"^x-": {}}
    for definition in whole.get("$defs", {}).values():
        if definition.get("additionalProperties") is False:
            definition["patternProperties"] = {"^x-": {}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}
