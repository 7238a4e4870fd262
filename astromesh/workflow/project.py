"""A workflow's folder, read and checked as a whole: the snapshot that runs keep (workflow.md E16, E63)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from astromesh.config.workflow.agents import AgentsFile, CredentialsFile, OwnAgent, ProvidersFile, ToolsFile
from astromesh.config.workflow.files import WORKFLOW
from astromesh.config.workflow.load import WorkflowFolder, read_folder
from astromesh.config.workflow.memory import ContextProfile, MemoryFile, MemorySpec
from astromesh.config.workflow.nodes import WorkflowFile
from astromesh.config.workflow.operations import (
    PolicyFile,
    PolicySpec,
    ProfilesFile,
    SchedulerFile,
    SchedulerSpec,
)
from astromesh.errors import (
    DAGValidationError,
    InvalidInput,
    InvalidManifest,
    InvalidWorkflow,
    ManifestLoadError,
    MissingKey,
    SchemaValidationError,
)
from astromesh.types import JsonObject
from astromesh.workflow import observing, profiling, references, structure
from astromesh.workflow.fingerprint import Fingerprint, fingerprint_of
from astromesh.workflow.plan import Plan, compile_plan
from astromesh.workflow.references import Known
from astromesh.workflow.secrets import secret

#: rules about files and names, and rules about what stands in a file; all others are about the DAG
_LOADING = ("missing_", "unreadable", "rejected_", "unknown_")
_VALUES = ("invalid_", "missing_key", "unknown_key")
PROFILES = "cli_profiles.yaml"
#: nothing but the folder itself
NOTHING_KNOWN = Known()
_STRUCTURAL = ("unknown_node", "unknown_edge", "missing_agent")


@dataclass(frozen=True)
class Checked:
    """A folder with all that is wrong with it."""

    folder: WorkflowFolder
    faults: tuple[InvalidManifest, ...]
    warnings: tuple[InvalidManifest, ...]


@dataclass(frozen=True)
class Project:
    """A sound workflow. Frozen: a run keeps the one that it started with.

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
        """Of the files as they are when it is first asked for, which is before the first run."""
        return fingerprint_of(self.files, self.adapters, self.overrides)

    @cached_property
    def default_start(self) -> str:
        return next(node.id for node in self.workflow.nodes if node.default)

    @cached_property
    def agents(self) -> Mapping[str, OwnAgent]:
        return {agent.id: agent for agent in self.files.file("agents.yaml", AgentsFile).agents}

    @cached_property
    def tools(self) -> ToolsFile:
        return self.files.file("tools.yaml", ToolsFile)

    @cached_property
    def providers(self) -> ProvidersFile:
        return self.files.file("providers.yaml", ProvidersFile)

    @cached_property
    def credentials(self) -> CredentialsFile:
        return self.files.file("provider_credentials.yaml", CredentialsFile)

    @cached_property
    def memory(self) -> MemorySpec:
        return self.files.file("memory.yaml", MemoryFile).memory

    @cached_property
    def profiles(self) -> Mapping[str, ContextProfile]:
        return {profile.id: profile for profile in self.memory.context_profiles}

    @cached_property
    def policies(self) -> tuple[PolicySpec, ...]:
        return self.files.file("policy.yaml", PolicyFile).policies

    @cached_property
    def scheduler(self) -> SchedulerSpec:
        return self.files.file("scheduler.yaml", SchedulerFile).scheduler

    @cached_property
    def _plans(self) -> dict[str, Plan]:
        return {}

    def plan(self, start: str | None = None) -> Plan:
        """What a start reaches, compiled once.

        Raises:
            InvalidInput: it is no start node (E11).
        """
        wanted = start or self.default_start
        if wanted not in self._plans:
            starts = [node.id for node in self.workflow.nodes if node.role == "start"]
            if wanted not in starts:
                raise InvalidInput(f"{wanted!r} is no start of {self.name!r}; there are {', '.join(starts)}.")
            self._plans[wanted] = compile_plan(self.workflow, wanted)
        return self._plans[wanted]

    def require_stages(self, names: Iterable[str]) -> None:
        """Raises: InvalidInput: one of them is no stage."""
        stages = {stage for edge in self.workflow.edges for stage in (edge.from_, edge.to)}
        if unknown := [name for name in names if name not in stages]:
            raise InvalidInput(f"{unknown[0]!r} is no stage of {self.name!r}.")

    def schema(self, reference: str | JsonObject | None) -> JsonObject | None:
        """A schema by its id, or as it stands inline."""
        return self.files.schemas[reference] if isinstance(reference, str) else reference


def check_folder(
    folder: str | Path, known: Known = NOTHING_KNOWN, env: Mapping[str, str] | None = None
) -> Checked:
    """Everything that is wrong with a folder; nothing is raised.

    Args:
        known: what exists outside the folder.
        env: environment variables; absent: the process's own.
    """
    read = read_folder(folder, env)
    faults = list(read.faults)
    warnings = list(read.warnings)
    if read.workflow is not None:
        faults += [*references.faults(read, known), *profiling.faults(read), *observing.faults(read)]
        found = structure.faults(read.workflow)
        faults += [read.fault(WORKFLOW, f.rule, f.message, f.steps, f.hint) for f in found]
        if read.workflow.workflow != read.folder.resolve().name:
            message = f"must be the folder's name, {read.folder.resolve().name!r}"
            warnings.append(read.fault(WORKFLOW, "other_name", message, ("workflow",)))
        warnings += _without_effect(read)
        warnings += _without_secret(read, os.environ if env is None else env)
        if not faults:
            lint = structure.warnings(read.workflow)
            warnings += [read.fault(WORKFLOW, f.rule, f.message, f.steps, f.hint) for f in lint]
    ordered = sorted(faults, key=lambda fault: (fault.file, fault.line, fault.column))
    return Checked(read, tuple(ordered), tuple(warnings))


def _without_effect(read: WorkflowFolder) -> Iterator[InvalidManifest]:
    """What is written but does nothing is told, never ignored in silence."""
    for i, profile in enumerate(read.file(PROFILES, ProfilesFile).profiles):
        if profile.default_config_dir:
            message = "has no effect: the workflow's own folder holds the profile"
            yield read.fault(PROFILES, "unsupported", message, ("profiles", i, "default_config_dir"))


def _without_secret(read: WorkflowFolder, env: Mapping[str, str]) -> Iterator[InvalidManifest]:
    """Models whose credential is not there: a warning now, a failure of the stage that asks one (E62)."""
    credentials = read.file("provider_credentials.yaml", CredentialsFile).provider_credentials
    auths = {credential.id: credential.auth for credential in credentials}
    for i, spec in enumerate(read.file("providers.yaml", ProvidersFile).providers):
        if spec.credential in auths:
            try:
                secret(auths[spec.credential], read.folder, env)
            except MissingKey as error:
                at = ("providers", i, "credential")
                yield read.fault("providers.yaml", "missing_secret", str(error), at)


def load_project(
    folder: str | Path, known: Known = NOTHING_KNOWN, env: Mapping[str, str] | None = None
) -> Project:
    """A folder that can run.

    Raises:
        ManifestLoadError, SchemaValidationError, DAGValidationError: all faults at once; the type is that
            of the gravest one, in this order.
    """
    checked = check_folder(folder, known, env)
    if checked.faults:
        raise _gravest(checked.faults)(checked.faults)
    workflow = checked.folder.workflow
    assert workflow is not None
    return Project(workflow.workflow, Path(folder), workflow, checked.folder, checked.warnings)


def _gravest(faults: tuple[InvalidManifest, ...]) -> type[InvalidWorkflow]:
    kinds = {_type_of(fault.rule) for fault in faults}
    return next(
        kind for kind in (ManifestLoadError, SchemaValidationError, DAGValidationError) if kind in kinds
    )


def _type_of(rule: str) -> type[InvalidWorkflow]:
    if rule.startswith(_VALUES):
        return SchemaValidationError
    if rule.startswith(_LOADING) and rule not in _STRUCTURAL:
        return ManifestLoadError
    return DAGValidationError
