"""How far a run is: what the loop counts, and what it may do."""

from __future__ import annotations

from collections.abc import Callable

from astromesh.graph.config import NodeConfig
from astromesh.graph.plan import Kit, Step
from astromesh.graph.records import Mutation
from astromesh.graph.state import Shared


class Progress:
    """Counts of one run, over all levels of nesting.

    Args:
        kit: what changed graphs are compiled with.
        shared: what all states of the run share.
        max_iterations: node executions of the whole run.

    `turns` counts what the limit counts; skipped nodes are among them, so that a circle of them ends.
    `visited` holds paths in order, `skipped` the places of nodes that did not run. `emit` is None where nobody
    listens.
    """

    __slots__ = (
        "emit", "guards", "kit", "max_iterations", "max_mutations", "mutable", "mutations", "shared", "skipped", "turns",
        "visited",
    )  # fmt: skip

    def __init__(self, kit: Kit, shared: Shared, max_iterations: int) -> None:
        self.kit, self.shared, self.max_iterations = kit, shared, max_iterations
        self.mutable, self.max_mutations = False, 0
        self.turns = 0
        self.visited: list[str] = []
        self.skipped: list[int] = []
        self.mutations: list[Mutation] = []
        self.guards: list[str] = []
        self.emit: Callable[..., None] | None = None

    def config_for(self, step: Step, path: str) -> NodeConfig:
        """What a node is given for one execution."""
        raise NotImplementedError
