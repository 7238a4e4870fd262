"""How far a run is: what the loop counts, and what it may do."""

from __future__ import annotations

from collections.abc import Callable

from astromesh.graph.config import NodeConfig
from astromesh.graph.plan import Plan
from astromesh.graph.records import Mutation
from astromesh.graph.state import Shared
from astromesh.graph.step import Kit, Step


class Progress:
    """Counts of one run, over all levels of nesting.

    Args:
        kit: what changed graphs are compiled with.
        max_iterations: node executions of the whole run.
        shared: what all states of the run share. It does not know the run: a circle of references would leave
            every run to the garbage collector.

    `visited` holds paths in order, `skipped` the places of nodes that did not run; these count for the limit
    too. `counts` are executions by path. `emit` is None where nobody listens.
    """

    max_iterations: int
    shared: Shared
    visited: list[str]
    counts: dict[str, int]
    #: whether nodes may change the graph, and how often
    mutable = False
    max_mutations = 0
    emit: Callable[..., None] | None = None
    #: places of what was skipped, what guards said, what became of graph actions; a run that has any of these
    #: replaces the tuple
    skipped: tuple[int, ...] = ()
    guards: tuple[str, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    #: plans that graph actions have made, by the prefix of their level
    changed: dict[str, Plan] | None = None

    @property
    def kit(self) -> Kit:
        raise NotImplementedError

    def config_for(self, step: Step, path: str) -> NodeConfig:
        """What a node is given for one execution."""
        raise NotImplementedError
