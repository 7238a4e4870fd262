"""autonomous: the model builds the path itself out of a pool of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.config import NodeConfig
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.autonomous import DONE, AutonomousNode
from astromesh.graph.state import GraphState
from astromesh.orchestration.fitting import best_fit

_NAME = "autonomous"


class Explorer(AutonomousNode):
    """An AutonomousNode that goes on with models that cannot choose.

    A second unusable choice in a row is decided here: the node that fits the question best among those that
    have not run yet, or the end where all have.
    """

    async def _choose(self, state: GraphState, config: NodeConfig, taken: list[str]) -> str:
        choice = await super()._choose(state, config, taken)
        if choice in self.pool or choice == DONE or not taken or not _was_unusable(taken[-1]):
            return choice
        left = [node for node in self.pool.values() if not _ran(node.name, taken)]
        about = {node.name: node.description or node.instructions for node in left}
        return best_fit(state.question, about) if about else DONE


def autonomous_graph(pool: Sequence[Mapping[str, Any]], max_steps: int) -> PromptGraph:
    """A graph of the nodes that a pool describes.

    Args:
        pool: nodes as `graphs/*.graph.yaml` writes them.
        max_steps: choices of the model.

    Raises:
        InvalidGraph: a node is wrong, or two have one name.
    """
    nodes = PromptGraph.from_config({"name": "pool", "nodes": list(pool)}).nodes
    try:
        explorer = Explorer(_NAME, nodes.values(), max_steps, is_terminal=True)
    except ValueError as error:
        raise InvalidGraph([str(error)]) from error
    return PromptGraph(_NAME, nodes=[explorer])


def _was_unusable(account: str) -> bool:
    return account.endswith("is not one of the nodes.")


def _ran(name: str, taken: Sequence[str]) -> bool:
    return any(account.startswith((f"{name}:", f"{name} failed:")) for account in taken)
