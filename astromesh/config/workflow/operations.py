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
    persist_history: bool = Field(True, description="Whether what was asked is kept in history_file.")
    persist_attachments: bool = Field(True, description="Whether attached texts are kept with it.")
    history_file: str = Field(
        "./.state/sessions/history.jsonl", description="Only appended to; relative to the workflow's folder."
    )
    max_history_items: Count = Field(500, description="Latest entries that a session knows.")


class InputMapping(Part):
    mode: Literal["chat", "json", "text"] = Field(
        "chat", description='What a line becomes: `{"text": line}`, JSON (else a text), or a text.'
    )
    attach_files_as_context: bool = Field(True, description="chat: attached files under `attachments`.")
    include_profile_id: bool = Field(False, description="chat: the profile's id under `profile_id`.")
    include_session_id: bool = Field(True, description="chat: the session's id under `session_id`.")


class CustomCommand(Part):
    name: Id = Field(description="Typed as /name.")
    entrypoint: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:function, called with (argument, session); what it answers is printed.",
    )
    description: str = Field("", description="Shown by /help.")
    aliases: tuple[str, ...] = Field((), description="Further names.")
    help: str = Field("", description="How it is typed, shown by /help.")


class Presentation(Part):
    show_system_messages: bool = Field(False, description="Tell each stage as it begins.")
    show_telemetry_inline: bool = Field(True, description="Tell below each output what it took.")
    truncate_output_lines: Count = Field(80, description="Lines of an output that are shown.")


class Overlays(Part):
    enabled: bool = Field(True, description="Whether anything of what a Task took is told.")
    level: Literal["summary", "detail"] = Field("summary", description="One line, or one for each stage.")


class CommandProfile(Part):
    id: Id = Field(description="Named by --profile.")
    label: str = Field("", description="Shown at the start.")
    default_config_dir: str = Field("", description="Without effect here: the profile's folder is the one.")
    session_policies: SessionPolicies = SessionPolicies()
    input_mappings: dict[str, InputMapping] = Field(
        default_factory=dict, description="Start node, or `default` → what becomes of a line."
    )
    custom_commands: tuple[CustomCommand, ...] = Field((), description="Commands of the project's own.")
    presentation_rules: Presentation = Presentation()
    telemetry_overlays: Overlays = Overlays()


class ProfilesFile(FilePart):
    profiles: tuple[CommandProfile, ...] = ()
