"""Files about running a workflow: policy, scheduler, metrics, observers, evaluations, command profiles."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from astromesh.config.fields import Count, JsonMap, Seconds
from astromesh.config.workflow.part import FilePart, Id, Part

Decision = Literal["allow", "deny"]


class PolicyRule(Part):
    target: Literal["tool", "context", "store", "agent", "node"] = Field(
        description="What is asked for: a tool, a context profile, a memory layer, an agent, to run at all."
    )
    target_id: str = Field(min_length=1, description="Its id; '*': any.")
    nodes: tuple[str, ...] = Field((), description="Only for these nodes; empty: for all.")
    action: Decision
    reason: str = Field("", description="Told where it denies.")


class PolicySpec(Part):
    name: str = Field(min_length=1, description="Told where it denies.")
    default: Decision = Field("allow", description="Where no rule speaks.")
    rules: tuple[PolicyRule, ...] = ()


class PolicyFile(FilePart):
    policies: tuple[PolicySpec, ...] = ()


class SchedulerSpec(Part):
    enabled: bool = Field(True, description="Whether Tasks queue.")
    max_concurrency: Count = Field(4, description="Tasks that run at once.")
    max_stage_concurrency: Count = Field(8, description="Stages that run at once, over all Tasks.")
    queue_policy: Literal["fifo"] = Field("fifo", description="Who is next.")
    max_queue_size: Count = Field(100, description="Tasks that wait; more are refused with queue_full.")
    task_timeout_s: Seconds = Field(900.0, description="Seconds that a Task may take.")


class SchedulerFile(FilePart):
    scheduler: SchedulerSpec = SchedulerSpec()


class MetricSpec(Part):
    name: str = Field(min_length=1, description="Which metric.")
    type: Literal["timer", "counter", "gauge"] = Field(description="Its kind.")


class MetricsProfile(Part):
    name: str = Field(min_length=1, description="For people.")
    enabled: bool = True
    metrics: tuple[MetricSpec, ...] = ()


class MetricsFile(FilePart):
    profiles: tuple[MetricsProfile, ...] = ()


class ObserverSpec(Part):
    id: Id = Field(description="Unique among the observers.")
    module: str = Field(min_length=1, description="Dotted path of the class.")
    enabled: bool = True
    config: JsonMap = Field(default_factory=dict, description="Its own settings.")


class ObserversFile(FilePart):
    plugins: tuple[ObserverSpec, ...] = ()


class Assertion(Part):
    type: Literal["status", "equals", "contains", "schema_valid", "golden", "path"]
    expected: Any = Field(None, description="What is expected.")
    field_path: str = Field("", description="Dotted path within the output.")
    schema_id: str = Field("", alias="schema", description="schema_valid: which schema.")
    file: str = Field("", description="golden: the file compared with.")
    ignore: tuple[str, ...] = Field((), description="golden: keys that may differ.")


class EvaluationCase(Part):
    id: Id
    input: Any = None
    start: str | None = Field(None, description="Start node; absent: the default one.")
    replay: str | None = Field(None, description="Cassette with recorded model and tool results.")
    assertions: tuple[Assertion, ...] = ()


class Suite(Part):
    name: str = Field(min_length=1)
    tags: tuple[str, ...] = ()
    cases: tuple[EvaluationCase, ...] = ()


class EvaluationsFile(FilePart):
    suites: tuple[Suite, ...] = ()


class SessionPolicies(Part):
    persist_history: bool = True
    persist_attachments: bool = True
    history_file: str = "./.state/sessions/history.jsonl"
    max_history_items: Count = 500


class InputMapping(Part):
    mode: Literal["chat", "json", "text"] = "chat"
    attach_files_as_context: bool = True
    include_profile_id: bool = False
    include_session_id: bool = True


class CustomCommand(Part):
    name: Id
    entrypoint: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    description: str = ""
    aliases: tuple[str, ...] = ()
    help: str = ""


class Presentation(Part):
    show_system_messages: bool = False
    show_telemetry_inline: bool = True
    truncate_output_lines: Count = 80


class Overlays(Part):
    enabled: bool = True
    level: Literal["summary", "detail"] = "summary"


class CommandProfile(Part):
    id: Id
    label: str = ""
    default_config_dir: str = ""
    session_policies: SessionPolicies = SessionPolicies()
    input_mappings: dict[str, InputMapping] = Field(default_factory=dict)
    custom_commands: tuple[CustomCommand, ...] = ()
    presentation_rules: Presentation = Presentation()
    telemetry_overlays: Overlays = Overlays()


class ProfilesFile(FilePart):
    profiles: tuple[CommandProfile, ...] = ()
