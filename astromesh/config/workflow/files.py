"""Which files a workflow's folder has, and which it must not have."""

from __future__ import annotations

from collections.abc import Mapping

from astromesh.config.workflow.agents import AgentsFile, CredentialsFile, ProvidersFile, ToolsFile
from astromesh.config.workflow.memory import MemoryFile
from astromesh.config.workflow.nodes import WorkflowFile
from astromesh.config.workflow.operations import (
    EvaluationsFile,
    MetricsFile,
    ObserversFile,
    PolicyFile,
    ProfilesFile,
    SchedulerFile,
)
from astromesh.config.workflow.part import FilePart

WORKFLOW = "workflow.yaml"
#: file → its record; only the first is required, the others when something refers to them
FILES: Mapping[str, type[FilePart]] = {
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
#: names of other documents' files → where their content belongs
REJECTED: Mapping[str, str] = {
    "execution.yaml": "scheduler.yaml",
    "persistent_memory.yaml": "memory.yaml",
}
#: folder of the JSON Schemas; the file's stem is the schema's id
SCHEMAS = "schemas"
