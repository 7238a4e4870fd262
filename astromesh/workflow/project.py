"""Loads and checks a workflow's folder as a whole: the snapshot that runs keep, and its settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from astromesh.config.environment import restore_api_keys
from astromesh.config.validation import suggest_name
from astromesh.config.workflow import (
    METRICS,
    METRICS_FILE,
    AgentsFile,
    ContextProfile,
    CredentialsFile,
    EvaluationsFile,
    MemoryFile,
    MemorySpec,
    MetricsFile,
    OwnAgent,
    PolicyFile,
    PolicySpec,
    ProfilesFile,
    ProvidersFile,
    PythonTool,
    SchedulerFile,
    SchedulerSpec,
    TaskSpec,
    ToolsFile,
    WorkflowFile,
)
from astromesh.config.workflow_folder import WORKFLOW, WorkflowFolder, read_folder
from astromesh.errors import (
    DAGValidationError,
    InvalidInput,
    InvalidManifest,
    InvalidWorkflow,
    ManifestLoadError,
    MissingKey,
    SchemaValidationError,
    UnreadableModule,
)
from astromesh.types import JsonObject, ManifestSnapshot
from astromesh.workflow import validation
from astromesh.workflow.credentials import read_secret
from astromesh.workflow.operations import load_operation
from astromesh.workflow.plan import Plan, compile_plan
from astromesh.workflow.snapshot import AGENT_MODEL, Fingerprint, fingerprint_of, snapshot_of
from astromesh.workflow.validation import KnownNames


def enabled_metrics(folder: WorkflowFolder) -> frozenset[str]:
    """Returns the metrics of a workflow's enabled profiles; without the file all of them."""
    if METRICS_FILE not in folder.files:
        return frozenset(METRICS)
    profiles = folder.file(MetricsFile).profiles
    return frozenset(metric.name for profile in profiles if profile.enabled for metric in profile.metrics)


#: prefixes of rules about files and names, and about values; all other rules are about the graph
_LOADING_RULES = ("missing_", "unreadable", "rejected_", "unknown_")
_VALUE_RULES = ("invalid_", "missing_key", "unknown_key")
PROFILES_FILE = "cli_profiles.yaml"
#: no names outside the folder
NO_KNOWN_NAMES = KnownNames()
_STRUCTURE_RULES = ("unknown_node", "unknown_edge", "missing_agent")


@dataclass(frozen=True)
class CheckedFolder:
    """A folder with all of its faults and warnings."""

    folder: WorkflowFolder
    faults: tuple[InvalidManifest, ...]
    warnings: tuple[InvalidManifest, ...]


@dataclass(frozen=True)
class Project:
    """A valid workflow. Frozen: a run keeps the one that it started with.

    Args:
        adapters: where its plugins come from, with their versions.
        overrides: settings that this process has changed.
    """

    name: str
    folder: Path
    workflow: WorkflowFile
    files: WorkflowFolder = field(repr=False)
    warnings: tuple[InvalidManifest, ...] = ()
    adapters: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the files as read, and of the code at the first access, before any run."""
        return fingerprint_of(self.files, self.adapters, self.overrides)

    @property
    def operations(self) -> Mapping[str, str]:
        """Hashes of the code, by module."""
        found: Mapping[str, str] = self.fingerprint.parts["operations"]
        return found

    @cached_property
    def snapshot(self) -> ManifestSnapshot:
        """The files as read, for Tasks that outlive them."""
        return snapshot_of(self.name, self.files, self.fingerprint)

    def has_manifests(self, snapshot: JsonObject) -> bool:
        """Returns whether these are the manifests of a snapshot, with the same settings."""
        own = self.snapshot.content
        return all(own.get(key) == snapshot.get(key) for key in ("files", "overrides", AGENT_MODEL))

    @cached_property
    def default_start(self) -> str:
        return next(node.id for node in self.workflow.nodes if node.default)

    @cached_property
    def agents(self) -> Mapping[str, OwnAgent]:
        return {agent.id: agent for agent in self.files.file(AgentsFile).agents}

    @cached_property
    def tools(self) -> ToolsFile:
        return self.files.file(ToolsFile)

    @cached_property
    def providers(self) -> ProvidersFile:
        return self.files.file(ProvidersFile)

    @cached_property
    def credentials(self) -> CredentialsFile:
        return self.files.file(CredentialsFile)

    @cached_property
    def memory(self) -> MemorySpec:
        return self.files.file(MemoryFile).memory

    @cached_property
    def profiles(self) -> Mapping[str, ContextProfile]:
        return {profile.id: profile for profile in self.memory.context_profiles}

    @cached_property
    def policies(self) -> tuple[PolicySpec, ...]:
        return self.files.file(PolicyFile).policies

    @cached_property
    def evaluations(self) -> EvaluationsFile:
        return self.files.file(EvaluationsFile)

    @cached_property
    def scheduler(self) -> SchedulerSpec:
        return self.files.file(SchedulerFile).scheduler

    @cached_property
    def _plans(self) -> dict[str, Plan]:
        return {}

    def plan(self, start: str | None = None) -> Plan:
        """Returns the plan of a start, compiled once.

        Raises:
            InvalidInput: it is not a start node.
        """
        start_node = start or self.default_start
        if start_node not in self._plans:
            starts = [node.id for node in self.workflow.nodes if node.role == "start"]
            if start_node not in starts:
                raise InvalidInput(
                    f"{start_node!r} is not a start of {self.name!r}. Its starts: {', '.join(starts)}."
                )
            self._plans[start_node] = compile_plan(self.workflow, start_node)
        return self._plans[start_node]

    def require_stages(self, names: Iterable[str]) -> None:
        """Checks names of stages.

        Raises:
            InvalidInput: a name is not a stage.
        """
        stages = {stage for edge in self.workflow.edges for stage in (edge.from_, edge.to)}
        if unknown := [name for name in names if name not in stages]:
            raise InvalidInput(f"{unknown[0]!r} is not a stage of {self.name!r}.")

    def check_modules(self) -> None:
        """Checks that the code of every operation and Python tool that exists can be imported.

        Raises:
            UnreadableModule: a module exists and cannot be imported.
        """
        tools = (tool.entrypoint for tool in self.tools.tools if isinstance(tool, PythonTool))
        for name in (*(node.op for node in self.workflow.nodes if node.op), *tools):
            try:
                load_operation(self.folder, name)
            except UnreadableModule:
                raise
            except LookupError:
                pass  # the stage that needs it fails

    def schema(self, reference: str | JsonObject | None) -> JsonObject | None:
        """Returns a schema by its id, or the inline schema itself."""
        return self.files.schemas[reference] if isinstance(reference, str) else reference


def check_folder(
    folder: str | Path, known: KnownNames = NO_KNOWN_NAMES, env: Mapping[str, str] | None = None
) -> CheckedFolder:
    """Reads a folder and returns all of its faults and warnings; raises nothing.

    Args:
        known: what exists outside the folder.
        env: environment variables; absent: the process's own.
    """
    read = read_folder(folder, env)
    faults = list(read.faults)
    warnings = list(read.warnings)
    if read.workflow is not None:
        faults += [
            *validation.reference_faults(read, known),
            *validation.metric_faults(read),
            *validation.observer_faults(read),
        ]
        found = validation.structure_faults(read.workflow)
        faults += [read.fault(WORKFLOW, f.rule, f.message, f.steps, f.hint) for f in found]
        if read.workflow.workflow != read.folder.resolve().name:
            message = f"must be the folder's name, {read.folder.resolve().name!r}"
            warnings.append(read.fault(WORKFLOW, "other_name", message, ("workflow",)))
        warnings += _ignored_settings(read)
        warnings += _missing_secrets(read, os.environ if env is None else env)
        if not faults:
            lint = validation.structure_warnings(read.workflow)
            warnings += [read.fault(WORKFLOW, f.rule, f.message, f.steps, f.hint) for f in lint]
    ordered = sorted(faults, key=lambda fault: (fault.file, fault.line, fault.column))
    return CheckedFolder(read, tuple(ordered), tuple(warnings))


def _ignored_settings(read: WorkflowFolder) -> Iterator[InvalidManifest]:
    """Yields a warning for each setting without effect."""
    for i, profile in enumerate(read.file(ProfilesFile).profiles):
        if profile.default_config_dir:
            message = "has no effect, because the workflow's own folder contains the profile"
            yield read.fault(PROFILES_FILE, "unsupported", message, ("profiles", i, "default_config_dir"))


def _missing_secrets(read: WorkflowFolder, env: Mapping[str, str]) -> Iterator[InvalidManifest]:
    """Yields a warning for each model without its credential; a stage that calls it will fail."""
    credentials = read.file(CredentialsFile).provider_credentials
    auths = {credential.id: credential.auth for credential in credentials}
    for i, spec in enumerate(read.file(ProvidersFile).providers):
        if spec.credential in auths:
            try:
                read_secret(auths[spec.credential], read.folder, env)
            except MissingKey as error:
                at = ("providers", i, "credential")
                yield read.fault("providers.yaml", "missing_secret", str(error), at)


def load_project(
    folder: str | Path, known: KnownNames = NO_KNOWN_NAMES, env: Mapping[str, str] | None = None
) -> Project:
    """Loads a folder that can run.

    Raises:
        ManifestLoadError, SchemaValidationError, DAGValidationError: all faults at once; the type is that
            of the gravest one, in this order.
    """
    checked = check_folder(folder, known, env)
    if checked.faults:
        raise _most_severe(checked.faults)(checked.faults)
    workflow = checked.folder.workflow
    assert workflow is not None
    return Project(workflow.workflow, Path(folder), workflow, checked.folder, checked.warnings)


def restore_project(folder: Path, snapshot: JsonObject, env: Mapping[str, str] | None = None) -> Project:
    """Returns the project of a snapshot, with the code of the folder as it is now.

    Names outside the snapshot are not checked: a stage that needs one that is missing fails.

    Raises:
        ManifestLoadError, SchemaValidationError, DAGValidationError: this version cannot read it.
    """
    texts = {
        name: restore_api_keys(text, _present(folder / name)) for name, text in snapshot["files"].items()
    }
    read = read_folder(folder, env, texts)
    if read.faults or read.workflow is None:
        raise _most_severe(read.faults)(read.faults)
    project = Project(read.workflow.workflow, folder, read.workflow, read)
    return with_settings(project, snapshot["overrides"])


def _present(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""


def _most_severe(faults: tuple[InvalidManifest, ...]) -> type[InvalidWorkflow]:
    kinds = {_error_type(fault.rule) for fault in faults}
    return next(
        kind for kind in (ManifestLoadError, SchemaValidationError, DAGValidationError) if kind in kinds
    )


def _error_type(rule: str) -> type[InvalidWorkflow]:
    if rule.startswith(_VALUE_RULES):
        return SchemaValidationError
    if rule.startswith(_LOADING_RULES) and rule not in _STRUCTURE_RULES:
        return ManifestLoadError
    return DAGValidationError


# -- settings for one process: `--set task.timeout_s=60` ----------------------------------------------------

_Section = TypeVar("_Section", bound=BaseModel)
#: keys that belong to another section
_KEYS_OF_OTHER_FILES: Mapping[str, str] = {"task.timeout_s": "scheduler.task_timeout_s"}
_SECTIONS: Mapping[str, type[BaseModel]] = {"task": TaskSpec, "scheduler": SchedulerSpec}
SETTING_KEYS = tuple(
    sorted(
        (
            *_KEYS_OF_OTHER_FILES,
            *(f"{name}.{key}" for name, kind in _SECTIONS.items() for key in kind.model_fields),
        )
    )
)


def parse_settings(texts: Sequence[str]) -> dict[str, object]:
    """Parses `KEY=VALUE`; a value that is not JSON is text.

    Raises:
        InvalidInput: the key is unknown, or `=` is missing.
    """
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in SETTING_KEYS:
            hint = suggest_name(key, SETTING_KEYS)
            raise InvalidInput(f"{text!r} is not a setting of the form KEY=VALUE. {hint}")
        try:
            found[_KEYS_OF_OTHER_FILES.get(key, key)] = orjson.loads(value)
        except orjson.JSONDecodeError:
            found[_KEYS_OF_OTHER_FILES.get(key, key)] = value
    return found


def with_settings(project: Project, settings: Mapping[str, object]) -> Project:
    """Returns the project with other settings, which change its fingerprint.

    Raises:
        InvalidInput: a value that the key may not have.
    """
    if not settings:
        return project
    task = _with_section(project.workflow.task, "task", settings)
    scheduler = _with_section(project.scheduler, "scheduler", settings)
    workflow = project.workflow.model_copy(update={"task": task})
    files = {
        **project.files.files,
        "workflow.yaml": workflow,
        "scheduler.yaml": SchedulerFile(scheduler=scheduler),
    }
    return replace(
        project, workflow=workflow, files=replace(project.files, files=files), overrides=dict(settings)
    )


def _with_section(spec: _Section, section: str, settings: Mapping[str, object]) -> _Section:
    section_settings = {
        key.partition(".")[2]: v for key, v in settings.items() if key.startswith(f"{section}.")
    }
    try:
        return type(spec).model_validate_json(
            orjson.dumps({**spec.model_dump(mode="json"), **section_settings})
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{section}.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
