"""The files that a workflow runs by and is evaluated by, and the base classes of all files of a workflow.

workflow.yaml, memory.yaml, agents.yaml, tools.yaml, providers.yaml, provider_credentials.yaml, policy.yaml,
scheduler.yaml, metrics.yaml, plugins.yaml, cli_profiles.yaml and evaluations.yaml, with the datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from astromesh.config.agent import ApprovalRule, CallbackSpec
from astromesh.config.environment import VariableName
from astromesh.config.records import Count, Duration, JsonMap, Record, Seconds
from astromesh.config.schedules import WorkflowSchedule
from astromesh.types import Effect

#: id of a node, agent, tool or profile; `#`, `/` and `:` separate ids from suffixes
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
#: the only version of the files
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class RefersTo:
    """Marks a field whose text, or texts, must be names of this kind. The field may be a list."""

    kind: Literal["agent", "adapter", "context", "credential", "model", "node", "op", "pattern", "schema",
                  "stage", "tool"]  # fmt: skip


class Section(Record):
    """A mapping in a workflow's files; ignores keys that begin with `x-`."""


class ManifestFile(Section):
    """A whole file."""

    version: int = Field(MANIFEST_VERSION, description="Version of the file's form.")


# -- workflow.yaml: nodes, edges, and the settings of Tasks (document 004, sections 1 to 4) ------------------

Role = Literal["start", "linear", "decision", "branch", "split", "merge", "exit"]
Kind = Literal["agent", "deterministic"]
Strategy = Literal["list", "first", "concat", "majority", "op", "agent"]
Layer = Literal["task", "project", "global"]
#: a stage: a node's id, or `id#tag` for a further occurrence of the node
StageId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}(#[A-Za-z0-9_-]{1,64})?$")]
SchemaRef = Annotated[Annotated[str, Field(min_length=1)] | JsonMap | None, RefersTo("schema")]
ContextName = Annotated[str, Field(min_length=1), RefersTo("context")]
ToolNames = Annotated[tuple[str, ...], RefersTo("tool")]
#: module:function, in the workflow's folder or an installed module
Function = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
SELECTION_KEY = "selected_edge"
ITEMS_KEY = "subtask_inputs"


IsolationField = Annotated[
    Literal["process"] | None,
    Field(description="process: the function runs in a worker process; its time limit kills that."),
]
MemoryField = Annotated[
    Count | None,
    Field(description="MiB of data that a call in a worker process may have; needs isolation: process."),
]


class MergeSpec(Section):
    strategy: Strategy = Field("list", description="How the inputs are combined into one output.")
    on_failure: Literal["continue", "halt"] = Field(
        "continue", description="halt: the stage fails when an input failed; its operation does not run."
    )
    min_success: int = Field(1, ge=0, description="Minimum number of successful inputs.")


class BranchSpec(Section):
    on_exit: Literal["cancel_siblings", "wait_all"] = Field(
        "cancel_siblings", description="What happens to the other clones when one has ended successfully."
    )


class SplitSpec(Section):
    mode: Literal["per_edge", "items"] = Field(
        "per_edge", description="One subtask per edge, or one per item of a list, round robin over the edges."
    )
    items_key: str = Field(ITEMS_KEY, min_length=1, description="Key of the output that holds the items.")
    on_empty: Literal["fail", "continue"] = Field(
        "fail", description="Whether an empty list fails the stage."
    )
    on_failure: Literal["wait", "fail_fast"] = Field(
        "wait", description="fail_fast: the first failed subtask cancels those that still run."
    )
    max_subtasks: Count = Field(1000, description="More items fail the stage with limit_exceeded.")


class HumanSpec(Section):
    """A question to a person, whose answer is the output of the stage."""

    instructions: str = Field(min_length=1, description="What the person has to do, beside the input.")
    answer_schema: SchemaRef = Field(
        None, alias="schema", description="Schema of the answer: an id or an inline JSON Schema."
    )
    assignees: tuple[str, ...] = Field(
        (), description="Scopes of which the person needs one; absent: as for runs that wait."
    )
    expires_after: Duration = Field(
        604_800.0, description="Seconds, or a number with a unit (s, m, h, d, w), until nobody may answer."
    )
    on_expiry: Literal["failure", "continue"] = Field(
        "failure", description="continue: go on with the input, or a decision's default_edge."
    )


class NodeSpec(Section):
    """A node; its occurrences in the edges (`id`, `id#tag`) are the stages."""

    id: Id = Field(description="Unique among the nodes.")
    name: str = Field("", description="For people; empty: the id.")
    kind: Kind = Field(description="Whether a model is involved.")
    role: Role = Field(description="How it routes.")
    default: bool = Field(False, description="Start only: where Tasks begin by default.")
    agent: Annotated[str | None, RefersTo("agent")] = Field(
        None, description="Of agents.yaml or of the runtime; required with kind: agent."
    )
    op: Annotated[Function | None, RefersTo("op")] = Field(
        None,
        description="module:function of a deterministic node, called with (input, context, tools); "
        "absent: the input is the output.",
    )
    schema_in: SchemaRef = Field(None, description="Id of a schema file, or an inline JSON Schema.")
    schema_out: SchemaRef = Field(None, description="Id of a schema file, or an inline JSON Schema.")
    context: ContextName = Field(description="A context profile, 'global' or 'none'.")
    tools: ToolNames = Field((), description="Tools that the stage may call.")
    continue_on_failure: bool | None = Field(
        None, description="Continue with the previous output; absent: as task.failure says."
    )
    always_fail: bool = Field(False, description="Exit only: Tasks that end here have failed.")
    merge: MergeSpec | None = Field(None, description="Merge only.")
    branch: BranchSpec | None = Field(None, description="Branch only.")
    split: SplitSpec | None = Field(None, description="Split only.")
    default_edge: str | None = Field(None, description="Decision only: edge taken if the decision fails.")
    selection_key: str | None = Field(
        None, min_length=1, description=f"Decision only: key that names the edge; absent: {SELECTION_KEY}."
    )
    on_failure: StageId | None = Field(
        None, description="An always_fail exit that Tasks go to when this fails."
    )
    tool_on_error: Literal["continue", "fail"] = Field(
        "continue", description="Whether a tool's own error fails the stage."
    )
    idempotent: bool | None = Field(
        None,
        description="false: a person decides whether an interrupted stage runs again; else it does.",
    )
    isolation: IsolationField = None
    max_memory_mb: MemoryField = None
    human: HumanSpec | None = Field(
        None, description="Asks a person; linear and decision nodes of kind: deterministic without an op."
    )
    timeout_s: Seconds = Field(300.0, description="Seconds that one execution may take.")
    metadata: JsonMap = Field(
        default_factory=dict, description="Free key-value pairs; a list `tags` tags its memory."
    )


class EdgeSpec(Section):
    from_: StageId = Field(alias="from", description="The stage that it leaves.")
    to: StageId = Field(description="The stage that it leads to.")
    label: str | None = Field(
        None, min_length=1, description="Label that a decision selects; absent: the target's id."
    )


class StatusRules(Section):
    clone_failures: Literal["log", "partial"] = Field(
        "log", description="Effect of a failed clone on a Task that another clone completed."
    )
    subtask_failures: Literal["log", "partial"] = Field(
        "partial", description="Effect of a failed subtask on a Task whose others succeeded."
    )


class MemoryRules(Section):
    write: tuple[Layer, ...] = Field(("task",), description="Layers that each stage's output is written to.")


class TaskSpec(Section):
    history_retention: str = Field(
        "all", pattern=r"^(all|none|last:[1-9][0-9]{0,5})$", description="all, none or last:N entries."
    )
    failure: Literal["stop", "continue"] = Field("stop", description="Default effect of a failed stage.")
    status: StatusRules = StatusRules()
    memory: MemoryRules = MemoryRules()
    pause_before: Annotated[tuple[StageId, ...], RefersTo("stage")] = Field(
        (), description="Stages before which the inspector pauses."
    )
    on_code_change: Literal["continue", "fail"] = Field(
        "continue", description="What an interrupted Task does when the code of its operations has changed."
    )
    max_attempts: Count = Field(
        3, description="Deaths of a stage's own process after which the stage fails with crashed."
    )
    max_depth: Count = Field(8, description="Forks within forks.")
    max_live_tasks: Count = Field(1000, description="Tasks of one run that live at once.")


class WorkflowFile(ManifestFile):
    version: int = Field(description="Version of the file's form: 1.")
    workflow: Id = Field(description="The workflow's name: that of its folder.")
    description: str = Field("", description="For people.")
    nodes: tuple[NodeSpec, ...] = Field(min_length=1, description="What stages do.")
    edges: tuple[EdgeSpec, ...] = Field(description="Edges between stages; null: none.")
    task: TaskSpec = TaskSpec()
    schedules: tuple[WorkflowSchedule, ...] = Field((), description="When a Task begins by itself.")
    callback: CallbackSpec | None = Field(
        None, description="Whom to call when a Task ends or waits; its Tasks are durable."
    )


# -- memory.yaml: three stores and the context profiles ------------------------------------------------------


class StoreSpec(Section):
    type: Literal["in_memory", "sqlite", "jsonl"] = Field("in_memory", description="Where items are stored.")
    path: str | None = Field(
        None, min_length=1, description="File, relative to the workflow's folder; for sqlite and jsonl."
    )
    max_items: Count = Field(10_000, description="Maximum of items; older ones are dropped.")


class SourceSpec(Section):
    store: Layer = Field(description="Which layer is read.")
    tags: tuple[str, ...] = Field((), description="Only items with any of these tags; empty: all.")


class ContextProfile(Section):
    id: Id = Field(description="Unique among the profiles; not 'global' or 'none'.")
    max_tokens: Count = Field(2000, description="Maximum of estimated tokens of a package.")
    retrieval_policy: Literal["recency", "semantic", "hybrid"] = Field(
        "recency", description="How items are chosen."
    )
    sources: tuple[SourceSpec, ...] = Field(min_length=1, description="Layers that are read.")


class MemorySpec(Section):
    task_store: StoreSpec = StoreSpec()
    project_store: StoreSpec = StoreSpec()
    global_store: StoreSpec = StoreSpec()
    context_profiles: tuple[ContextProfile, ...] = ()

    def stores(self) -> dict[str, StoreSpec]:
        """Returns the store of each layer."""
        return {"task": self.task_store, "project": self.project_store, "global": self.global_store}


class MemoryFile(ManifestFile):
    memory: MemorySpec = MemorySpec()


# -- agents.yaml: the engine opens an agent as a pattern, and a model as a provider plugin -------------------


class AgentConfig(Section):
    temperature: float | None = Field(None, ge=0, description="Sent with every call.")
    top_p: float | None = Field(None, gt=0, le=1, description="Sent with every call.")
    max_tokens: Count | None = Field(None, description="Most tokens of one answer.")
    seed: int | None = Field(None, description="Sent with every call.")
    max_tool_rounds: Count = Field(10, description="Rounds of tool calls before the answer.")


class OwnAgent(Section):
    id: Id = Field(description="Unique among the agents.")
    model: Annotated[str, RefersTo("model")] = Field(
        min_length=1, description="Id of a model in providers.yaml."
    )
    system_prompt: str = Field("", description="System prompt; plain text.")
    pattern: Annotated[str, RefersTo("pattern")] = Field(
        "react", min_length=1, description="Name of the orchestration pattern."
    )
    pattern_options: JsonMap = Field(default_factory=dict, description="The pattern's own options.")
    schema_in: SchemaRef = Field(None, description="Schema of its input, if the node has none.")
    schema_out: SchemaRef = Field(None, description="Schema of its output, if the node has none.")
    context: ContextName = Field("none", description="The profile that it was written for.")
    tools: ToolNames = Field((), description="Tools that it may use, if the node also names them.")
    config: AgentConfig = AgentConfig()


class AgentsFile(ManifestFile):
    agents: tuple[OwnAgent, ...] = ()


# -- tools.yaml ------------------------------------------------------------------------------------------


class ToolHead(Section):
    id: Id = Field(description="Unique among the tools; the name that models see.")
    description: str = Field("", description="Description for the model.")
    schema_in: SchemaRef = Field(None, description="Schema of the arguments, type: object.")
    schema_out: SchemaRef = Field(None, description="Schema of the result.")
    timeout_s: Seconds = Field(30.0, description="Seconds that one call may take.")
    effect: Effect = Field("external", description="Effect on the world.")
    approval: Literal["none", "required"] | ApprovalRule = Field(
        "none", description="Whether a person must approve calls: all, or those that a rule selects."
    )


class PythonTool(ToolHead):
    type: Literal["python"] = "python"
    entrypoint: Annotated[Function, RefersTo("op")] = Field(
        description="module:function, called with the arguments."
    )
    isolation: IsolationField = None
    max_memory_mb: MemoryField = None


class BuiltinTool(ToolHead):
    type: str = Field(min_length=1, description="A kind of tool of the runtime: builtin, webhook, internal …")
    options: JsonMap = Field(default_factory=dict, description="The options of that kind.")
    root: str | None = Field(None, description="Folder that confines file tools.")
    allow_network: bool = Field(False, description="Whether the tool may use the network.")
    allow_shell: bool = Field(False, description="Whether the tool may run programs.")


def _tool_tag(value: Any) -> str:
    kind = value.get("type", "python") if isinstance(value, dict) else getattr(value, "type", "python")
    return "python" if kind == "python" else "other"


ToolSpecs = Annotated[
    Annotated[PythonTool, Tag("python")] | Annotated[BuiltinTool, Tag("other")], Discriminator(_tool_tag)
]


class ToolsFile(ManifestFile):
    tools: tuple[ToolSpecs, ...] = ()


# -- providers.yaml and provider_credentials.yaml --------------------------------------------------------


#: adapters under other names than their plugins'
ADAPTER_PLUGINS: Mapping[str, str] = {"openai_compat": "openai"}


class ProviderSpec(Section):
    id: Id = Field(description="Unique among the models.")
    kind: Literal["llm"] = Field("llm", description="What it provides.")
    adapter: Annotated[str, RefersTo("adapter")] = Field(
        min_length=1, description="Provider plugin: openai_compat, anthropic, ollama …"
    )
    model: str = Field("", description="The model's name at the service.")
    base_url: str = Field("", description="The service's address; empty: its own.")
    credential: Annotated[str | None, RefersTo("credential")] = Field(
        None, description="Id in provider_credentials.yaml."
    )
    fallback: Annotated[tuple[str, ...], RefersTo("model")] = Field(
        (), description="Models that are called when this one fails."
    )
    version: str = Field("", description="Version of the adapter's settings, free text.")
    timeout_s: Seconds = Field(60.0, description="Seconds of one model call.")
    options: JsonMap = Field(default_factory=dict, description="Further options of the plugin.")


class ProvidersFile(ManifestFile):
    providers: tuple[ProviderSpec, ...] = ()


class AuthSpec(Section):
    type: Literal["api_key", "bearer", "encrypted"] = Field("api_key", description="Kind of secret.")
    source: Literal["env", "file"] = Field(description="Where the secret is.")
    env_var: VariableName | None = Field(
        None, min_length=1, description="Variable that holds it (source: env)."
    )
    file_path: str | None = Field(None, min_length=1, description="File that holds it (source: file).")
    file_key: str | None = Field(None, min_length=1, description="Dotted key within a JSON file.")
    key_env: VariableName | None = Field(None, min_length=1, description="Variable with the key (encrypted).")
    key_file: str | None = Field(None, min_length=1, description="File with the key (encrypted).")


class CredentialSpec(Section):
    id: Id = Field(description="Unique among the credentials.")
    provider: str = Field(min_length=1, description="Adapter that receives it.")
    auth: AuthSpec


class CredentialsFile(ManifestFile):
    provider_credentials: tuple[CredentialSpec, ...] = ()


# -- evaluations.yaml, and datasets evals/NAME.yaml: cases and their checks ----------------------------------

CheckType = Literal[
    "status", "equals", "contains", "regex", "path", "schema", "schema_valid", "golden", "tool_called",
    "no_tool_called", "cost_below", "latency_below", "judge", "function",
]  # fmt: skip


class Assertion(Section):
    """A check of one outcome."""

    type: CheckType = Field(description="Which check; `schema` is `schema_valid`.")
    expected: Any = Field(
        None,
        description="What is expected. cost_below: US dollars; latency_below: seconds; regex: pattern.",
    )
    field_path: str = Field("", description="Dotted path within the output; empty: all of it.")
    schema_id: str | JsonMap = Field(
        "", alias="schema", description="schema: an id of the workflow's schemas, a file, or a JSON Schema."
    )
    file: str = Field("", description="golden: the file compared with.")
    ignore: tuple[str, ...] = Field((), description="golden: keys that may differ.")
    tool: str = Field("", description="tool_called, no_tool_called: which tool; empty: any.")
    arguments: JsonMap = Field(
        default_factory=dict, description="tool_called: arguments that a call must have; it may have more."
    )
    rubric: str = Field("", description="judge: what a good answer is, as text for a model.")
    model: str = Field("", description="judge: `provider:name`; absent: `judge` of the file.")
    function: str = Field(
        "", description="function: module:name, called with the outcome. False or a text: it fails."
    )


class EvaluationCase(Section):
    id: Id = Field(description="Unique in its suite.")
    input: Any = Field(None, description="The query of an agent, or the input of a workflow.")
    context: JsonMap = Field(default_factory=dict, description="Agents: variables of the prompt template.")
    history: tuple[JsonMap, ...] = Field((), description="Agents: the messages before, `{role, content}`.")
    start: str | None = Field(None, description="Workflows: start node; absent: the default one.")
    replay: str | None = Field(None, description="File with the recorded model and tool results.")
    assertions: tuple[Assertion, ...] = Field((), description="Checks; all must hold.")


class EvaluationSuite(Section):
    name: str = Field(min_length=1)
    tags: tuple[str, ...] = ()
    cases: tuple[EvaluationCase, ...] = ()


class EvaluationsFile(ManifestFile):
    """Suites, or the cases of one suite, which has the name of the file."""

    agent: str = Field("", description="evals/NAME.yaml: the agent; absent: the one with the file's name.")
    judge: str = Field("", description="Model of `judge` checks that name none, as `provider:name`.")
    tags: tuple[str, ...] = Field((), description="Of the suite that `cases` are.")
    suites: tuple[EvaluationSuite, ...] = ()
    cases: tuple[EvaluationCase, ...] = ()


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
