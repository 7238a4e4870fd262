"""What decides a run, and the manifests that a Task keeps: fingerprints and snapshots.

A snapshot is `{"workflow", "files": {name: text}, "overrides", "operations": {module: hash}, "provenance"}`:
the files that decide a run as they were written, the settings of the process, the code that was accepted
with them, and the versions around it. It restores the workflow for a Task that outlives its manifests.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import yaml

from astromesh import __version__
from astromesh.config.environment import hide_api_keys, literal
from astromesh.config.workflow import (
    ADAPTER_PLUGINS,
    EvaluationsFile,
    MetricsFile,
    PythonTool,
    ToolsFile,
)
from astromesh.config.workflow_folder import UNDECISIVE, WorkflowFolder
from astromesh.graph.call_record import hash_of
from astromesh.types import JsonObject, ManifestSnapshot

_PROVIDERS = "providers.yaml"
#: key of a snapshot whose runtime agents have another model, in a fork or an evaluation
AGENT_MODEL = "agent_model"


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of everything that decides a run, and what is recorded beside them.

    Manifests are hashed as written: a reference to a secret counts, the secret itself does not.

    Args:
        parts: `{manifests, schemas, operations}`, hashes in hex, and `overrides`.
        provenance: `{engine, adapters, evaluations, metrics}`: versions and hashes that do not count.
    """

    parts: JsonObject
    provenance: JsonObject

    @cached_property
    def value(self) -> str:
        """Returns the SHA-256 of all parts."""
        return hash_of(self.parts)

    @property
    def stamp(self) -> JsonObject:
        """Returns the part of the metadata of every Task."""
        return {"run_fingerprint": self.value, "provenance": self.provenance}


def fingerprint_of(
    folder: WorkflowFolder, adapters: Mapping[str, str], overrides: Mapping[str, object]
) -> Fingerprint:
    """Computes the fingerprint of a folder, as it was read, and of its code, as it is on disk.

    Args:
        adapters: where its plugins come from, with their versions.
        overrides: settings that were changed for the process.
    """
    manifests = {n: _manifest_hash(t) for n, t in folder.texts.items() if n not in UNDECISIVE}
    return Fingerprint(
        {
            "manifests": manifests,
            "schemas": {name: hash_of(schema) for name, schema in folder.schemas.items()},
            "operations": operation_hashes(folder),
            **({"overrides": dict(overrides)} if overrides else {}),
        },
        {
            "engine": __version__,
            "adapters": dict(adapters),
            "evaluations": hash_of(folder.file(EvaluationsFile).model_dump(mode="json")),
            "metrics": hash_of(folder.file(MetricsFile).model_dump(mode="json")),
        },
    )


def snapshot_of(name: str, folder: WorkflowFolder, fingerprint: Fingerprint) -> ManifestSnapshot:
    """Returns the snapshot of a folder, without literal API keys."""
    texts = {n: hide_api_keys(text) for n, text in folder.texts.items() if n not in UNDECISIVE}
    schemas = {f"schemas/{stem}.json": orjson.dumps(one).decode() for stem, one in folder.schemas.items()}
    content = {
        "workflow": name,
        "files": {**texts, **schemas},
        "overrides": fingerprint.parts.get("overrides", {}),
        "operations": fingerprint.parts["operations"],
        "provenance": fingerprint.provenance,
    }
    return ManifestSnapshot(hash_of(content), content)


def with_model(snapshot: JsonObject, model: str, adapters: Collection[str]) -> ManifestSnapshot:
    """Returns a snapshot whose models are all this one, without fallbacks.

    Agents of the runtime have it, too.

    Args:
        model: `adapter:name`; without a known adapter, a name that the adapters of the workflow know.
        adapters: the names of the provider plugins.
    """
    model = literal(model)
    adapter, _, name = model.partition(":")
    plugin = ADAPTER_PLUGINS.get(adapter, adapter)
    content = yaml.load(snapshot["files"].get(_PROVIDERS, "{}"), Loader=yaml.CSafeLoader) or {}
    for spec in content.get("providers", ()):
        spec.pop("fallback", None)
        if plugin not in adapters or not name:
            spec["model"] = model
            continue
        if ADAPTER_PLUGINS.get(spec["adapter"], spec["adapter"]) != plugin:  # they are of another service
            for key in ("base_url", "credential", "options"):
                spec.pop(key, None)
        spec |= {"adapter": adapter, "model": name}
    files = snapshot["files"]
    if _PROVIDERS in files:
        files = {**files, _PROVIDERS: orjson.dumps(content).decode()}
    of_agents = f"{plugin}:{name}" if plugin in adapters and name else model
    changed = {**snapshot, "files": files, AGENT_MODEL: of_agents}
    return ManifestSnapshot(hash_of(changed), changed)


def _manifest_hash(text: str) -> str:
    """Hashes a manifest in canonical JSON, so that neither comments nor layout count."""
    content = yaml.load(text, Loader=yaml.CSafeLoader)
    option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return hashlib.sha256(orjson.dumps(content, default=str, option=option)).hexdigest()


# -- code that changes while a Task is under way -------------------------------------------------------------

#: type of the record of a Task that goes on with other code
CODE_CHANGED = "code_changed"


def changed_operations(
    records: Iterable[Mapping[str, Any]], snapshot: JsonObject, present: Mapping[str, str]
) -> list[str]:
    """Returns the modules whose code is not the one that a Task last ran with.

    Args:
        records: of the Task.
        snapshot: of its manifests.
        present: the operations of the present fingerprint.
    """
    known = snapshot["operations"]
    for record in records:
        if record["type"] == CODE_CHANGED:
            known = record["operations"]
    return sorted(name for name in {*known, *present} if known.get(name) != present.get(name))


def code_change_record(changed: Sequence[str], present: Mapping[str, str], now: float) -> JsonObject:
    """Returns the record of a Task that goes on with other code."""
    return {"type": CODE_CHANGED, "at": now, "changed": list(changed), "operations": dict(present)}


def code_changes(records: Iterable[Mapping[str, Any]]) -> list[JsonObject]:
    """Returns when a Task went on with other code, and with which modules."""
    return [{"at": r["at"], "modules": r["changed"]} for r in records if r["type"] == CODE_CHANGED]


# -- code: the modules of operations and tools, and the workflow's own modules that they import --------------


def operation_hashes(folder: WorkflowFolder) -> dict[str, str]:
    """Returns the hash of each module's syntax tree, by the module's name; comments and layout do not count.

    A module that cannot be read or parsed is left out.
    """
    root = folder.folder.resolve()
    found: dict[str, str] = {}
    waiting = [(name, _module_file(folder.folder, name)) for name in _module_names(folder)]
    seen: set[Path] = set()
    while waiting:
        name, file = waiting.pop()
        if file is None or file in seen:
            continue
        seen.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        found[name] = hash_of(_shape(tree))
        if file.is_relative_to(root):
            waiting += ((_name_of(one, root), one) for one in _own_imports(tree, file, root))
    return dict(sorted(found.items()))


def _module_names(folder: WorkflowFolder) -> Iterator[str]:
    if folder.workflow:
        yield from (node.op.partition(":")[0] for node in folder.workflow.nodes if node.op)
    for tool in folder.file(ToolsFile).tools:
        if isinstance(tool, PythonTool):
            yield tool.entrypoint.partition(":")[0]


def _module_file(folder: Path, name: str) -> Path | None:
    """Returns the source of a module of the folder, or of an installed one."""
    own = folder.joinpath(*name.split(".")).with_suffix(".py")
    if own.is_file():
        return own.resolve()
    if name.partition(".")[0] == "astromesh":  # the engine's version is recorded beside the fingerprint
        return None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec and spec.origin and spec.origin.endswith(".py") else None


def _own_imports(tree: ast.AST, file: Path, root: Path) -> Iterator[Path]:
    """Yields the files of the folder that a module of it imports.

    The folders above are on Python's path, too, so an import may begin with their names.
    """
    places = (file.parent, root, *root.parents[:3])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, starts = [alias.name for alias in node.names], places
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)]
            starts = (file.parents[node.level - 1],) if node.level else places
        else:
            continue
        for name in filter(None, names):
            candidates = (start.joinpath(*name.split(".")) for start in starts)
            files = (f for c in candidates for f in (c.with_suffix(".py"), c / "__init__.py"))
            yield from (f.resolve() for f in files if f.is_file() and f.resolve().is_relative_to(root))


def _name_of(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts)


def _shape(node: Any) -> Any:
    """Returns a syntax tree as lists, the same in every version of Python that has the same syntax."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node) if value not in (None, []))
        return [type(node).__name__, *fields]
    return [_shape(one) for one in node] if isinstance(node, list) else repr(node)
