"""Whatever one file names must exist in another (workflow.md E15); a table of who names what."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from astromesh.config.keys import did_you_mean, listed
from astromesh.config.nodes import Steps
from astromesh.config.workflow.agents import AgentsFile, CredentialsFile, ProvidersFile, PythonTool, ToolsFile
from astromesh.config.workflow.files import SCHEMAS, WORKFLOW
from astromesh.config.workflow.load import WorkflowFolder
from astromesh.config.workflow.memory import MemoryFile
from astromesh.config.workflow.operations import ObserversFile, PolicyFile, ProfilesFile
from astromesh.errors import InvalidManifest
from astromesh.node.json_schemas import schema_validator

NO_CONTEXT, GLOBAL_CONTEXT = "none", "global"


class Known(NamedTuple):
    """What names may refer to. None: nobody can say, so that every name is taken.

    Args:
        agents: of the runtime, beside those of agents.yaml.
        models: given in Python or by the runtime, beside those of providers.yaml.
        adapters, patterns: what is installed.
    """

    agents: Collection[str] | None = None
    models: Collection[str] | None = ()
    adapters: Collection[str] | None = None
    patterns: Collection[str] | None = None


class Named(NamedTuple):
    """A name that a file refers to: what it is one of, where it stands."""

    what: str
    name: str
    file: str
    steps: Steps


def faults(folder: WorkflowFolder, known: Known) -> Iterator[InvalidManifest]:
    """Every name that leads nowhere, every id that stands twice, every schema that is none."""
    yield from _schemas(folder)
    yield from _twins(folder)
    spaces = _spaces(folder, known)
    for named in _names(folder):
        space = spaces[named.what]
        if space is None or named.name in space:
            continue
        message = f"there is no {named.what} {named.name!r}"
        hint = did_you_mean(named.name, space) or listed(space)
        yield folder.fault(named.file, f"unknown_{named.what}", message, named.steps, hint)
    yield from _operations(folder)
    yield from _flags(folder)


def _spaces(folder: WorkflowFolder, known: Known) -> Mapping[str, Collection[str] | None]:
    own = {agent.id for agent in folder.file("agents.yaml", AgentsFile).agents}
    models = {model.id for model in folder.file("providers.yaml", ProvidersFile).providers}
    profiles = {p.id for p in folder.file("memory.yaml", MemoryFile).memory.context_profiles}
    credentials = folder.file("provider_credentials.yaml", CredentialsFile).provider_credentials
    workflow = folder.workflow
    return {
        "agent": None if known.agents is None else own | set(known.agents),
        "model": None if known.models is None else models | set(known.models),
        "tool": {tool.id for tool in folder.file("tools.yaml", ToolsFile).tools},
        "schema": set(folder.schemas),
        "context": profiles | {NO_CONTEXT, GLOBAL_CONTEXT},
        "credential": {credential.id for credential in credentials},
        "node": {node.id for node in workflow.nodes} if workflow else None,
        "stage": _stages(folder),
        "store": ("task", "project", "global"),
        "adapter": known.adapters,
        "pattern": known.patterns,
    }


def _stages(folder: WorkflowFolder) -> set[str]:
    workflow = folder.workflow
    return {stage for edge in workflow.edges for stage in (edge.from_, edge.to)} if workflow else set()


def _names(folder: WorkflowFolder) -> Iterator[Named]:
    """Who names what."""
    if folder.workflow:
        for i, node in enumerate(folder.workflow.nodes):
            at: Steps = ("nodes", i)
            if node.agent:
                yield Named("agent", node.agent, WORKFLOW, (*at, "agent"))
            yield Named("context", node.context, WORKFLOW, (*at, "context"))
            yield from (Named("tool", t, WORKFLOW, (*at, "tools", k)) for k, t in enumerate(node.tools))
            yield from _schema_names(node, WORKFLOW, at)
        for i, stage in enumerate(folder.workflow.task.pause_before):
            yield Named("stage", stage, WORKFLOW, ("task", "pause_before", i))
    yield from _agent_names(folder)
    yield from _model_names(folder)
    yield from _policy_names(folder)


def _agent_names(folder: WorkflowFolder) -> Iterator[Named]:
    for i, agent in enumerate(folder.file("agents.yaml", AgentsFile).agents):
        at: Steps = ("agents", i)
        yield Named("model", agent.model, "agents.yaml", (*at, "model"))
        yield Named("pattern", agent.pattern, "agents.yaml", (*at, "pattern"))
        yield Named("context", agent.context, "agents.yaml", (*at, "context"))
        yield from (Named("tool", t, "agents.yaml", (*at, "tools", k)) for k, t in enumerate(agent.tools))
        yield from _schema_names(agent, "agents.yaml", at)
    for i, tool in enumerate(folder.file("tools.yaml", ToolsFile).tools):
        yield from _schema_names(tool, "tools.yaml", ("tools", i))


def _model_names(folder: WorkflowFolder) -> Iterator[Named]:
    for i, model in enumerate(folder.file("providers.yaml", ProvidersFile).providers):
        at: Steps = ("providers", i)
        yield Named("adapter", model.adapter, "providers.yaml", (*at, "adapter"))
        if model.credential:
            yield Named("credential", model.credential, "providers.yaml", (*at, "credential"))
        yield from (
            Named("model", other, "providers.yaml", (*at, "fallback", k))
            for k, other in enumerate(model.fallback)
        )


def _policy_names(folder: WorkflowFolder) -> Iterator[Named]:
    for i, policy in enumerate(folder.file("policy.yaml", PolicyFile).policies):
        for k, rule in enumerate(policy.rules):
            at: Steps = ("policies", i, "rules", k)
            if rule.target_id != "*":
                yield Named(rule.target, rule.target_id, "policy.yaml", (*at, "target_id"))
            yield from (Named("node", n, "policy.yaml", (*at, "nodes", j)) for j, n in enumerate(rule.nodes))


def _schema_names(record: Any, file: str, at: Steps) -> Iterator[Named]:
    for key in ("schema_in", "schema_out"):
        if isinstance(name := getattr(record, key), str):
            yield Named("schema", name, file, (*at, key))


#: file → the list in it whose ids must differ
_LISTS: Mapping[str, tuple[type[Any], str]] = {
    "agents.yaml": (AgentsFile, "agents"),
    "tools.yaml": (ToolsFile, "tools"),
    "providers.yaml": (ProvidersFile, "providers"),
    "provider_credentials.yaml": (CredentialsFile, "provider_credentials"),
    "plugins.yaml": (ObserversFile, "plugins"),
    "cli_profiles.yaml": (ProfilesFile, "profiles"),
}


def _twins(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    for file, (kind, key) in _LISTS.items():
        seen: set[str] = set()
        for i, one in enumerate(getattr(folder.file(file, kind), key)):
            if one.id in seen:
                yield folder.fault(file, "duplicate_id", f"{one.id!r} is defined twice", (key, i, "id"))
            seen.add(one.id)


def _schemas(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    for name, schema in folder.schemas.items():
        if message := schema_fault(schema):
            yield folder.fault(f"{SCHEMAS}/{name}.json", "invalid_schema", f"is no JSON Schema: {message}")
    if folder.workflow:
        for i, node in enumerate(folder.workflow.nodes):
            for key in ("schema_in", "schema_out"):
                inline = getattr(node, key)
                if isinstance(inline, dict) and (message := schema_fault(inline)):
                    text = f"is no JSON Schema: {message}"
                    yield folder.fault(WORKFLOW, "invalid_schema", text, ("nodes", i, key))


def schema_fault(schema: Mapping[str, Any]) -> str:
    """Why this is no JSON Schema; empty where it is one."""
    try:
        schema_validator(schema)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""


def _flags(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    """What could not be kept is refused: nobody can confine a Python function."""
    root = folder.roots.get("tools.yaml")
    for i, node in root.children("tools") if root else ():
        if node.text("type") in ("", "python"):
            for key in ("root", "allow_network", "allow_shell"):
                if key in node.entries:
                    message = f"{key} cannot be kept for type: python"
                    yield folder.fault("tools.yaml", "unkeepable", message, ("tools", i, key))


# -- operations ----------------------------------------------------------------------------------------------


def _operations(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    named: list[tuple[str, str, Steps]] = []
    if folder.workflow:
        named += [
            (node.op, WORKFLOW, ("nodes", i, "op")) for i, node in enumerate(folder.workflow.nodes) if node.op
        ]
    for i, tool in enumerate(folder.file("tools.yaml", ToolsFile).tools):
        if isinstance(tool, PythonTool):
            named.append((tool.entrypoint, "tools.yaml", ("tools", i, "entrypoint")))
    for i, profile in enumerate(folder.file("cli_profiles.yaml", ProfilesFile).profiles):
        for k, command in enumerate(profile.custom_commands):
            at = ("profiles", i, "custom_commands", k, "entrypoint")
            named.append((command.entrypoint, "cli_profiles.yaml", at))
    for name, file, steps in named:
        try:
            load_operation(folder.folder, name)
        except LookupError as error:
            yield folder.fault(file, "unknown_op", str(error.args[0]), steps)


def load_operation(folder: Path, name: str) -> Callable[..., Any]:
    """The function that `module:function` names: a module of the workflow's folder, or an installed one.

    Raises:
        LookupError: there is none, or its module cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = _module(folder, module_name)
    except Exception as error:  # a module is anybody's code, and runs when it is loaded
        raise LookupError(
            f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise LookupError(f"{module_name!r} has no function {attribute!r}")
    found: Callable[..., Any] = function
    return found


def _module(folder: Path, name: str) -> ModuleType:
    """Two workflows may both have an `ops.py`: each is a module of its own."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    if not file.is_file():
        return importlib.import_module(name)
    own = f"astromesh_workflow_{abs(hash(str(file.resolve()))):x}_{name.replace('.', '_')}"
    stamp = file.stat().st_mtime_ns
    if own in sys.modules and getattr(sys.modules[own], "__astromesh_stamp__", None) == stamp:
        return sys.modules[own]
    spec = importlib.util.spec_from_file_location(own, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[own]
        raise
    module.__dict__["__astromesh_stamp__"] = stamp
    return module
