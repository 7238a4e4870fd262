"""What a run ran with, as hashes: engine, manifests, schemas, operations, models (workflow.md E52, E63).

Manifests are hashed as they are written: a reference to a secret counts, the secret does not (E62).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import yaml

from astromesh import __version__
from astromesh.config.workflow.agents import ProvidersFile, PythonTool, ToolsFile
from astromesh.config.workflow.files import FILES
from astromesh.config.workflow.load import WorkflowFolder
from astromesh.types import JsonObject
from astromesh.workflow.references import load_operation
from astromesh.workflow.values import digest


@dataclass(frozen=True)
class Fingerprint:
    """Args: parts: `{engine, manifests, schemas, operations, models, adapters}`, hashes in hex."""

    parts: JsonObject

    @cached_property
    def value(self) -> str:
        """SHA-256 of all parts."""
        return digest(self.parts)

    @property
    def stamp(self) -> JsonObject:
        """What stands in the metadata of every Task."""
        return {"run_fingerprint": self.value}


def fingerprint_of(
    folder: WorkflowFolder, adapters: Mapping[str, str], overrides: Mapping[str, object]
) -> Fingerprint:
    """The fingerprint of a sound folder; reads its files once more.

    Args:
        adapters: where its plugins come from, with their versions.
        overrides: settings that were changed for the process.
    """
    models = folder.file("providers.yaml", ProvidersFile).providers
    return Fingerprint(
        {
            "engine": __version__,
            "manifests": _manifests(folder.folder),
            "schemas": {name: digest(schema) for name, schema in folder.schemas.items()},
            "operations": dict(_operations(folder)),
            "models": {m.id: f"{m.adapter}/{m.model}@{m.version}" for m in models},
            "adapters": dict(adapters),
            **({"overrides": dict(overrides)} if overrides else {}),
        }
    )


def _manifests(folder: Path) -> Mapping[str, str]:
    return {name: _hash(folder / name) for name in FILES if (folder / name).exists()}


def _hash(file: Path) -> str:
    """Of a manifest in canonical JSON, so that neither comments nor layout count."""
    content = yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)
    option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return hashlib.sha256(orjson.dumps(content, default=str, option=option)).hexdigest()


def _operations(folder: WorkflowFolder) -> Iterator[tuple[str, str]]:
    """Hash of the file of each module that operations and tools come from."""
    seen: set[Any] = set()
    for place in _entrypoints(folder):
        module = sys.modules.get(getattr(load_operation(folder.folder, place), "__module__", ""))
        file = getattr(module, "__file__", None)
        if file and file not in seen and Path(file).exists():
            seen.add(file)
            yield place.partition(":")[0], hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _entrypoints(folder: WorkflowFolder) -> Iterator[str]:
    if folder.workflow:
        yield from (node.op for node in folder.workflow.nodes if node.op)
    for tool in folder.file("tools.yaml", ToolsFile).tools:
        if isinstance(tool, PythonTool):
            yield tool.entrypoint
