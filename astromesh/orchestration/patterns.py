"""The patterns that are one graph: `react`, and `graph`, which runs a graph of the operator's own."""

from __future__ import annotations

from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.errors import ConfigError
from astromesh.graph import prebuilt
from astromesh.graph.graph import PromptGraph
from astromesh.orchestration.graph_pattern import GraphPattern, engine_of


class React:
    """Reasoning and acting: the model calls tools until it answers (document 001, step 7)."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(partial(engine_of, prebuilt.react()))


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
