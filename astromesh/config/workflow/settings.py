"""policy.yaml, scheduler.yaml, metrics.yaml, plugins.yaml and cli_profiles.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from astromesh.config.records import Count, JsonMap, Seconds
from astromesh.config.workflow.manifest import Function, Id, ManifestFile, RefersTo, Section

Decision = Literal["allow", "deny"]


class PolicyRule(Section):
    target: Literal["tool", "context", "store", "agent", "node"] = Field(
        description="Kind of request: a tool, context profile, memory layer, agent, or a node itself."
    )
    target_id: str = Field(min_length=1, description="Its id; '*': any.")
    nodes: Annotated[tuple[str, ...], RefersTo("node")] = Field(
        (), description="Only for these nodes; empty: for all."
    )
    action: Decision
    reason: str = Field("", description="Part of the denial's message.")


class PolicySpec(Section):
    name: str = Field(min_length=1, description="Part of the denial's message.")
    default: Decision = Field("allow", description="Decision where no rule applies.")
    rules: tuple[PolicyRule, ...] = ()


class PolicyFile(ManifestFile):
    policies: tuple[PolicySpec, ...] = ()


class SchedulerSpec(Section):
    enabled: bool = Field(True, description="Whether Tasks queue.")
    max_concurrency: Count = Field(4, description="Tasks that run at once.")
    max_stage_concurrency: Count = Field(8, description="Stages that run at once, over all Tasks.")
    queue_policy: Literal["fifo"] = Field("fifo", description="Order of the queue.")
    max_queue_size: Count = Field(100, description="Tasks that wait; more are rejected with queue_full.")
    task_timeout_s: Seconds = Field(900.0, description="Seconds that a Task may take.")


class SchedulerFile(ManifestFile):
    scheduler: SchedulerSpec = SchedulerSpec()


class MetricSpec(Section):
    name: str = Field(min_length=1, description="Which metric.")
    type: Literal["timer", "counter", "gauge"] = Field(description="Its kind.")


class MetricsProfile(Section):
    name: str = Field(min_length=1, description="For people.")
    enabled: bool = True
    metrics: tuple[MetricSpec, ...] = ()


class MetricsFile(ManifestFile):
    profiles: tuple[MetricsProfile, ...] = ()


class ObserverSpec(Section):
    id: Id = Field(description="Unique among the observers.")
    module: str = Field(min_length=1, description="Dotted path of the class.")
    enabled: bool = True
    config: JsonMap = Field(default_factory=dict, description="Its own settings.")


class ObserversFile(ManifestFile):
    plugins: tuple[ObserverSpec, ...] = ()


class SessionPolicies(Section):
    persist_history: bool = Field(True, description="Whether inputs are stored in history_file.")
    persist_attachments: bool = Field(True, description="Whether attached texts are stored with them.")
    history_file: str = Field(
        "./.state/sessions/history.jsonl", description="Append-only file; relative to the workflow's folder."
    )
    max_history_items: Count = Field(500, description="Latest entries that a session reads.")


class InputMapping(Section):
    mode: Literal["chat", "json", "text"] = Field(
        "chat", description='What a line becomes: `{"text": line}`, JSON (else a text), or a text.'
    )
    attach_files_as_context: bool = Field(True, description="chat: attached files under `attachments`.")
    include_profile_id: bool = Field(False, description="chat: the profile's id under `profile_id`.")
    include_session_id: bool = Field(True, description="chat: the session's id under `session_id`.")


class CustomCommand(Section):
    name: Id = Field(description="Typed as /name.")
    entrypoint: Annotated[Function, RefersTo("op")] = Field(
        description="module:function, called with (argument, session); its result is printed.",
    )
    description: str = Field("", description="Shown by /help.")
    aliases: tuple[str, ...] = Field((), description="Further names.")
    help: str = Field("", description="How it is typed, shown by /help.")


class PresentationRules(Section):
    show_system_messages: bool = Field(False, description="Print each stage as it begins.")
    show_telemetry_inline: bool = Field(True, description="Print usage below each output.")
    truncate_output_lines: Count = Field(80, description="Lines of an output that are shown.")


class TelemetryOverlays(Section):
    enabled: bool = Field(True, description="Whether the usage of Tasks is shown.")
    level: Literal["summary", "detail"] = Field("summary", description="One line, or one for each stage.")


class CommandProfile(Section):
    id: Id = Field(description="Named by --profile.")
    label: str = Field("", description="Shown at the start.")
    default_config_dir: str = Field("", description="Without effect: the profile's own folder is used.")
    session_policies: SessionPolicies = SessionPolicies()
    input_mappings: dict[str, InputMapping] = Field(
        default_factory=dict, description="Start node, or `default` → how a line becomes an input."
    )
    custom_commands: tuple[CustomCommand, ...] = Field((), description="Commands of the project's own.")
    presentation_rules: PresentationRules = PresentationRules()
    telemetry_overlays: TelemetryOverlays = TelemetryOverlays()


class ProfilesFile(ManifestFile):
    profiles: tuple[CommandProfile, ...] = ()


#: name in metrics.yaml → type, and metric under /metrics without the prefix `astromesh_`
METRICS: Mapping[str, tuple[str, str]] = {
    "node_execution_duration": ("timer", "workflow_stage_duration_seconds"),
    "node_execution_count": ("counter", "workflow_stages"),
    "tool_invocation_duration": ("timer", "workflow_tool_duration_seconds"),
    "task_total_duration": ("timer", "workflow_task_duration_seconds"),
    "queue_latency": ("timer", "workflow_queue_seconds"),
    "task_concurrency": ("gauge", "workflow_tasks"),
    "stage_concurrency": ("gauge", "workflow_stages_in_progress"),
}
METRICS_FILE = "metrics.yaml"
