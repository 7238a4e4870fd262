"""The patterns that are one graph and need nobody else: factories of graphs with their YAML options.

`supervisor` and `swarm`, which run other agents, have modules of their own, as has `reasoning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import InitErrorDetails

from astromesh.abc.deps import Deps
from astromesh.errors import ConfigError, InvalidGraph
from astromesh.graph.graph import PromptGraph
from astromesh.graph.reacting import react
from astromesh.orchestration.branching import Branch, FanOutNotes, Merge, fan_out_graph
from astromesh.orchestration.exploring import autonomous_graph
from astromesh.orchestration.graph_pattern import GraphPattern, engine_of, unbounded_engine_of
from astromesh.orchestration.planning import PlanNotes, plan_graph
from astromesh.orchestration.staging import Stage, StageNotes, stages_graph

#: names of stages, branches and nodes: they stand in paths
_NAME = r"^[^/\s][^/]{0,63}$"


class React:
    """Reasoning and acting: the model calls tools until it answers (document 001, step 7)."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(partial(engine_of, react()))


class OwnGraph:
    """A graph of `config/graphs/`, or one given to the runtime in Python."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        graph: str = Field(min_length=1, description="Name of a graph of graphs/NAME.graph.yaml.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Raises: ConfigError, InvalidGraph: there is no such graph, or it cannot run."""
        given = deps.graphs.get(options.graph)
        if given is None:
            known = ", ".join(sorted(deps.graphs)) or "none"
            raise ConfigError(f"There is no graph {options.graph!r} (known: {known}).")
        graph = given if isinstance(given, PromptGraph) else PromptGraph.from_config(given)
        pattern = GraphPattern(partial(engine_of, graph))
        engine_of(graph, 1).plan  # noqa: B018 (compiles it now: a graph that cannot run is found at load)
        return pattern


class PlanAndExecute:
    """A numbered plan, step after step with tools, planned anew where a step fails; then the answer."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        max_replans: int = Field(1, ge=0, description="Further plans after the first.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(
            lambda iterations: unbounded_engine_of(plan_graph(options.max_replans, iterations)),
            lambda task: PlanNotes(),
        )


class ParallelFanOut:
    """Several models or roles answer at once; their answers are joined, voted on, or judged."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        class Branch(BaseModel):
            """Who answers: a role, or a model of its own; without either the agent's main model."""

            model_config = ConfigDict(extra="forbid")

            name: str = Field("", pattern=rf"^$|{_NAME}", description="Absent: the role or model.")
            role: str = Field("", description="A role of spec.model.roles.")
            model: str | dict[str, Any] = Field(
                "", description="Instead of a role: a model block, or PROVIDER/MODEL."
            )
            prompt: str = Field("", description="What this branch is told besides the system prompt.")

        branches: tuple[Branch, ...] = Field(min_length=1, description="Who answers.")
        merge: Merge = Field(
            "concat",
            description="concat: all; vote: the one most agree on; judge: the one that the role judge picks.",
        )

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        branches = _named(options.branches)
        return GraphPattern(
            lambda iterations: unbounded_engine_of(fan_out_graph(branches, options.merge, iterations)),
            lambda task: FanOutNotes(),
        )


def _named(given: Iterable[ParallelFanOut.Options.Branch]) -> list[Branch]:
    """Branches with different names: as written, else their role or model, numbered where they repeat."""
    seen: Counter[str] = Counter()
    branches = []
    for number, branch in enumerate(given, 1):
        model = branch.model if isinstance(branch.model, str) else ""
        name = branch.name or model.replace("/", ":") or branch.role or f"branch {number}"
        seen[name] += 1
        branches.append(
            Branch(f"{name} {seen[name]}" if seen[name] > 1 else name, branch.role, branch.prompt)
        )
    return branches


class Pipeline:
    """Stages one after another, each output the next one's input."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        class Stage(BaseModel):
            model_config = ConfigDict(extra="forbid")

            name: str = Field(pattern=_NAME, description="Stands in events and traces.")
            prompt: str = Field(min_length=1, description="What this stage does.")
            role: str = Field("", description="A role of spec.model.roles; absent: the main model.")

        stages: tuple[Stage, ...] = Field(min_length=1, description="In their order.")

        @field_validator("stages")
        @classmethod
        def _different(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
            twice = [name for name, times in Counter(s.name for s in stages).items() if times > 1]
            if twice:
                raise ValueError(f"two stages are called {twice[0]!r}")
            return stages

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        stages = [Stage(stage.name, stage.prompt, stage.role) for stage in options.stages]
        return GraphPattern(
            lambda iterations: unbounded_engine_of(stages_graph(stages, iterations)),
            lambda task: StageNotes(),
        )


class Autonomous:
    """The model chooses, step by step, which node of a pool runs next."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        pool: tuple[dict[str, Any], ...] = Field(
            min_length=1, description="The nodes to choose from, as graphs/*.graph.yaml writes nodes."
        )
        max_steps: int = Field(10, ge=1, description="Choices of the model.")

        @field_validator("pool")
        @classmethod
        def _sound(cls, pool: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
            try:
                autonomous_graph(pool, 1)
            except InvalidGraph as error:
                faults = [_fault_of_pool(problem) for problem in error.problems]
                raise ValidationError.from_exception_data("pool", faults) from error
            return pool

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Raises: InvalidGraph: the pool cannot run."""
        graph = autonomous_graph(options.pool, options.max_steps)
        engine_of(graph, 1).plan  # noqa: B018 (compiles it now: a pool that cannot run is found at load)
        return GraphPattern(partial(engine_of, graph))


def _fault_of_pool(problem: str) -> InitErrorDetails:
    """A problem with its place, `nodes.1.guards: …`, as pydantic's, so that it is told at its line."""
    place, _, message = problem.partition(": ")
    nodes, *steps = place.split(".")
    if nodes != "nodes":
        steps, message = [], problem
    path = tuple(int(step) if step.isdecimal() else step for step in steps)
    return InitErrorDetails(type="value_error", loc=path, input=None, ctx={"error": ValueError(message)})
