"""Patterns of one graph: react, graph, pipeline and autonomous, with their YAML options.

`plan_and_execute`, `parallel_fan_out`, `supervisor`, `swarm` and `reasoning` have modules of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_core import InitErrorDetails

from astromesh.errors import ConfigError, InvalidGraph
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.routing import DONE, AutonomousNode
from astromesh.graph.prebuilt import react
from astromesh.graph.problems import unknown_roles
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.graph_pattern import (
    NAME_PATTERN,
    NOTES,
    GraphPattern,
    IsolatedNode,
    PatternOptions,
    ToolLoop,
    append_sections,
    best_fit,
)
from astromesh.plugins import Deps
from astromesh.types import STANDARD_ROLES, JsonObject, Message

# -- autonomous: the model builds the path from a pool of nodes --------------------------------------------

_AUTONOMOUS = "autonomous"


class Explorer(AutonomousNode):
    """An AutonomousNode for models that cannot choose.

    After two unusable choices in a row it picks the node that fits the question best, among those that have
    not run. If all have run, it ends.
    """

    async def _choose(self, state: GraphState, config: NodeConfig, history: list[str]) -> str:
        choice = await super()._choose(state, config, history)
        if choice in self.pool or choice == DONE or not history or not _was_unusable(history[-1]):
            return choice
        left = [node for node in self.pool.values() if not _ran(node.name, history)]
        about = {node.name: node.description or node.instructions for node in left}
        return best_fit(state.question, about) if about else DONE


def autonomous_graph(pool: Sequence[Mapping[str, Any]], max_steps: int) -> PromptGraph:
    """Returns a graph of the nodes that a pool describes.

    Args:
        pool: Nodes as `graphs/*.graph.yaml` writes them.
        max_steps: How often the model may choose a node.

    Raises:
        InvalidGraph: A node is invalid, or two have one name.
    """
    nodes = PromptGraph.from_config({"name": "pool", "nodes": list(pool)}).nodes
    try:
        explorer = Explorer(_AUTONOMOUS, nodes.values(), max_steps, is_terminal=True)
    except ValueError as error:
        raise InvalidGraph([str(error)]) from error
    return PromptGraph(_AUTONOMOUS, nodes=[explorer])


def _was_unusable(line: str) -> bool:
    return line.endswith("is not one of the nodes.")


def _ran(name: str, history: Sequence[str]) -> bool:
    return any(line.startswith((f"{name}:", f"{name} failed:")) for line in history)


# -- pipeline: stages one after another --------------------------------------------------------------------


class Stage(PatternOptions):
    name: str = Field(pattern=NAME_PATTERN, description="The name in events and traces.")
    prompt: str = Field(min_length=1, description="What this stage does.")
    role: str = Field("", description="A role of spec.model.roles. The default is the main model.")


@dataclass(slots=True)
class StageNotes:
    """The finished stages, and the output of the last one."""

    done: list[str] = field(default_factory=list)
    output: str = ""

    def metadata(self) -> JsonObject:
        return {"stages": list(self.done)}


class StageNode(IsolatedNode):
    """Runs a stage on the question and the output of the stage before."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        if not result.error:
            notes: StageNotes = config[NOTES]
            notes.done.append(self.name)
            notes.output = str(result.output or "")
        return result


def stages_graph(stages: Sequence[Stage], max_iterations: int) -> PromptGraph:
    """Returns the graph of the stages, in order. The last one answers. A stage that fails ends the run.

    Args:
        stages: At least one, with different names.
        max_iterations: The model calls of one stage.
    """
    last = stages[-1]
    nodes = [_stage_node(stage, "" if stage is last else "worker", max_iterations) for stage in stages]
    return PromptGraph("pipeline", nodes=nodes).sequential(*(node.name for node in nodes))


def _stage_node(stage: Stage, role: str, max_iterations: int) -> StageNode:
    loop = ToolLoop(
        "act",
        role=role,
        answers=not role,
        max_rounds=max_iterations,
        instructions=stage.prompt,
        model_override=stage.role or None,
    )
    return StageNode(stage.name, loop, _stage_messages, flags={NodeFlag.CRITICAL}, is_terminal=not role)


def _stage_messages(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: StageNotes = config[NOTES]
    before = notes.done[-1] if notes.done else ""
    return append_sections(state.messages, **{f"Result of {before}": notes.output})


# -- the plugins -------------------------------------------------------------------------------------------


class React:
    """Reasoning and acting: the model calls tools until it answers (document 001, step 7)."""

    class Options(PatternOptions):
        pass

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(react())


class OwnGraph:
    """A graph of `config/graphs/`, or one that was passed to the runtime in Python."""

    class Options(PatternOptions):
        graph: str = Field(min_length=1, description="The name of a graph: graphs/NAME.graph.yaml.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Opens the pattern.

        Raises:
            ConfigError, InvalidGraph: The graph does not exist or cannot run.
        """
        source = deps.graphs.get(options.graph)
        if source is None:
            known = ", ".join(sorted(deps.graphs)) or "none"
            raise ConfigError(f"There is no graph {options.graph!r}. Known: {known}.")
        graph = source if isinstance(source, PromptGraph) else PromptGraph.from_config(source)
        return GraphPattern(_with_known_roles(graph, deps), node_model=deps.node_model)


class Pipeline:
    """Stages one after another. The output of each is the input of the next."""

    class Options(PatternOptions):
        stages: tuple[Stage, ...] = Field(min_length=1, description="The stages, in order.")

        @field_validator("stages")
        @classmethod
        def _check_names(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
            twice = [name for name, times in Counter(s.name for s in stages).items() if times > 1]
            if twice:
                raise ValueError(f"two stages have the name {twice[0]!r}")
            return stages

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(partial(stages_graph, options.stages), lambda task: StageNotes())


class Autonomous:
    """The model chooses the next node of a pool, step by step."""

    class Options(PatternOptions):
        pool: tuple[dict[str, Any], ...] = Field(
            min_length=1, description="The nodes to choose from, as graphs/*.graph.yaml writes nodes."
        )
        max_steps: int = Field(10, ge=1, description="How often the model may choose a node.")

        @field_validator("pool")
        @classmethod
        def _check_pool(cls, pool: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
            try:
                autonomous_graph(pool, 1)
            except InvalidGraph as error:
                faults = [_pool_error(problem) for problem in error.problems]
                raise ValidationError.from_exception_data("pool", faults) from error
            return pool

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Opens the pattern. Raises InvalidGraph if the pool cannot run."""
        graph = autonomous_graph(options.pool, options.max_steps)
        return GraphPattern(_with_known_roles(graph, deps))


def _with_known_roles(graph: PromptGraph, deps: Deps) -> PromptGraph:
    """Returns the graph. Raises InvalidGraph if a node names a role that the agent does not have."""
    if unknown := unknown_roles(graph, {*STANDARD_ROLES, *deps.roles}):
        raise InvalidGraph(unknown)
    return graph


def _pool_error(problem: str) -> InitErrorDetails:
    """Returns a problem with its path, `nodes.1.guards: …`, as an error of pydantic, reported at its line."""
    location, _, message = problem.partition(": ")
    nodes, *steps = location.split(".")
    if nodes != "nodes":
        steps, message = [], problem
    path = tuple(int(step) if step.isdecimal() else step for step in steps)
    return InitErrorDetails(type="value_error", loc=path, input=None, ctx={"error": ValueError(message)})
