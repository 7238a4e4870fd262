"""workflow.yaml: nodes, edges, and the settings of Tasks (document 004, sections 1 to 4)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astromesh.config.fields import Count, JsonMap, Seconds
from astromesh.config.workflow.part import FilePart, Id, Part

Role = Literal["start", "linear", "decision", "branch", "split", "merge", "exit"]
Kind = Literal["agent", "deterministic"]
Strategy = Literal["list", "first", "concat", "majority", "op", "agent"]
Layer = Literal["task", "project", "global"]
#: a stage: a node's id, or `id#tag` for a further occurrence of the node
StageId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}(#[A-Za-z0-9_-]{1,64})?$")]
SchemaRef = str | JsonMap

SELECTION_KEY = "selected_edge"
ITEMS_KEY = "subtask_inputs"


class MergeSpec(Part):
    strategy: Strategy = Field("list", description="How the inputs become one output.")
    on_failure: Literal["continue", "halt"] = Field(
        "continue", description="halt: the stage fails when an input failed; its operation does not run."
    )
    min_success: int = Field(1, ge=0, description="Least number of successful inputs.")


class BranchSpec(Part):
    on_exit: Literal["cancel_siblings", "wait_all"] = Field(
        "cancel_siblings", description="What happens to the other clones when one has ended successfully."
    )


class SplitSpec(Part):
    mode: Literal["per_edge", "items"] = Field(
        "per_edge", description="One subtask per edge, or one per item of a list, round robin over the edges."
    )
    items_key: str = Field(ITEMS_KEY, min_length=1, description="Key of the output that holds the items.")
    on_empty: Literal["fail", "continue"] = Field("fail", description="What a list without items means.")
    on_failure: Literal["wait", "fail_fast"] = Field(
        "wait", description="fail_fast: the first failed subtask cancels those that still run."
    )
    max_subtasks: Count = Field(1000, description="More items fail the stage with limit_exceeded.")


class NodeSpec(Part):
    """A node; its occurrences in the edges (`id`, `id#tag`) are the stages."""

    id: Id = Field(description="Unique among the nodes.")
    name: str = Field("", description="For people; empty: the id.")
    kind: Kind = Field(description="Whether a model is involved.")
    role: Role = Field(description="How it routes.")
    default: bool = Field(False, description="Start only: where Tasks begin unless told otherwise.")
    agent: str | None = Field(None, description="Of agents.yaml or of the runtime; required iff kind: agent.")
    op: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:function of a deterministic node, called with (input, context, tools); "
        "absent: the input is the output.",
    )
    schema_in: SchemaRef | None = Field(None, description="Id of a schema file, or an inline JSON Schema.")
    schema_out: SchemaRef | None = Field(None, description="Id of a schema file, or an inline JSON Schema.")
    context: str = Field(min_length=1, description="A context profile, 'global' or 'none'.")
    tools: tuple[str, ...] = Field((), description="Tools that the stage may call.")
    continue_on_failure: bool | None = Field(
        None, description="Go on with the previous output; absent: what task.failure says."
    )
    always_fail: bool = Field(False, description="Exit only: Tasks that end here have failed.")
    merge: MergeSpec | None = Field(None, description="Merge only.")
    branch: BranchSpec | None = Field(None, description="Branch only.")
    split: SplitSpec | None = Field(None, description="Split only.")
    default_edge: str | None = Field(
        None, description="Decision only: taken where the decision itself failed."
    )
    selection_key: str | None = Field(
        None, min_length=1, description=f"Decision only: key that names the edge; absent: {SELECTION_KEY}."
    )
    on_failure: StageId | None = Field(
        None, description="An always_fail exit that Tasks go to when this fails."
    )
    tool_on_error: Literal["continue", "fail"] = Field(
        "continue", description="Whether a tool's own error fails the stage."
    )
    idempotent: bool = Field(False, description="Whether an interrupted stage may simply run again.")
    timeout_s: Seconds = Field(300.0, description="Seconds that one execution may take.")
    metadata: JsonMap = Field(default_factory=dict, description="Free; a list under 'tags' tags its memory.")


class EdgeSpec(Part):
    from_: StageId = Field(alias="from", description="The stage that it leaves.")
    to: StageId = Field(description="The stage that it leads to.")
    label: str | None = Field(
        None, min_length=1, description="What a decision selects; absent: the target's id."
    )


class StatusRules(Part):
    clone_failures: Literal["log", "partial"] = Field(
        "log", description="What a failed clone means for a Task that another clone completed."
    )
    subtask_failures: Literal["log", "partial"] = Field(
        "partial", description="What a failed subtask means for a Task whose others succeeded."
    )


class MemoryRules(Part):
    write: tuple[Layer, ...] = Field(("task",), description="Layers that each stage's output is written to.")


class TaskSpec(Part):
    history_retention: str = Field(
        "all", pattern=r"^(all|none|last:[1-9][0-9]{0,5})$", description="all, none or last:N entries."
    )
    failure: Literal["stop", "continue"] = Field(
        "stop", description="What a failed stage means where its node does not say."
    )
    status: StatusRules = StatusRules()
    memory: MemoryRules = MemoryRules()
    pause_before: tuple[StageId, ...] = Field((), description="Stages that the inspector waits in front of.")
    max_depth: Count = Field(8, description="Forks within forks.")
    max_live_tasks: Count = Field(1000, description="Tasks of one run that live at once.")


class WorkflowFile(FilePart):
    version: int = Field(description="Version of the file's form: 1.")
    workflow: Id = Field(description="The workflow's name: that of its folder.")
    description: str = Field("", description="For people.")
    nodes: tuple[NodeSpec, ...] = Field(min_length=1, description="What stages do.")
    edges: tuple[EdgeSpec, ...] = Field(description="Who follows whom; null: none.")
    task: TaskSpec = TaskSpec()

    def node(self, stage: str) -> NodeSpec:
        """The node that a stage is an occurrence of."""
        wanted = stage.partition("#")[0]
        return next(node for node in self.nodes if node.id == wanted)
