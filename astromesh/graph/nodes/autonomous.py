"""AutonomousNode: the model chooses, step by step, which node of a pool runs next (document 000)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.config import Graph, Node, NodeConfig
from astromesh.graph.extract import extract_object
from astromesh.graph.keywords import check_whole
from astromesh.graph.nodes import assembly
from astromesh.graph.nodes.composite import all_nodes
from astromesh.graph.nodes.guard import GuardNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import CompletionRequest, Message

log = logging.getLogger("astromesh.graph")

DONE = "__done__"
#: characters of an earlier step's output that the chooser sees
_SHOWN = 500
#: what is wrong with a guard in a pool
SKIPPABLE = (
    "a guard in a pool guards nothing, for the model can leave it out; give `guards` to the nodes whose "
    "output it is to check, or put it behind them in a SubgraphNode."
)


class AutonomousNode(BaseNode):
    """Asks the model which node of the pool runs next, runs it, and asks again.

    It ends when the model says `__done__` or a terminal node succeeded. A name that is not in the pool is
    asked again and counts as a step. The developer decides what is in the pool, the model the path.

    Args:
        name: of the node; may be left out, with the pool in its place.
        pool: the nodes to choose from; their `description` (or instructions) tells the model what each does.
        max_steps: choices; after them the run stops as `max_iterations` with the last output.
        keywords: see `NodeKeywords`; `instructions` say what to choose by.

    Raises:
        ValueError: the pool is empty or two of its nodes have one name.
    """

    own = ("pool", "max_steps")
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL - {"model_override"}

    def __init__(
        self,
        name: str | Iterable[BaseNode],
        pool: Iterable[BaseNode] = (),
        max_steps: int = 10,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        own, members = (name, tuple(pool)) if isinstance(name, str) else ("autonomous", tuple(name))
        super().__init__(own, **keywords)
        all_nodes(own, members)
        check_whole(f"Node {own!r}", "max_steps", max_steps)
        self.pool: dict[str, BaseNode] = {node.name: node for node in members}
        self.max_steps = max_steps
        if not members or len(self.pool) != len(members):
            raise ValueError(f"The pool of {own!r} needs nodes with different names.")
        if DONE in self.pool:
            raise ValueError(f"{own!r}: no node of the pool may be called {DONE}.")

    def given(self, key: str) -> Any:
        return tuple(self.pool.values()) if key == "pool" else super().given(key)

    def children(self) -> Iterable[BaseNode]:
        return self.pool.values()

    def lets_speak(self, child: Node | Graph) -> bool:
        return isinstance(child, BaseNode) and child.is_terminal

    def problems(self) -> Iterable[str]:
        guards = (node.name for node in self.pool.values() if isinstance(node, GuardNode))
        return [f"{name}: {SKIPPABLE}" for name in guards]

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        taken: list[str] = []
        last = NodeResult(self.name)
        for _ in range(self.max_steps):
            choice = await self._choose(state, config, taken)
            if choice == DONE:
                return self._ended(last)
            node = self.pool.get(choice)
            if node is None:
                log.warning("%s: the model chose %.80r, which is not one of the nodes", config.path, choice)
                taken.append(f"{choice!r} is not one of the nodes.")
                continue
            result = await config.run(node, state)
            taken.append(_account(result))
            last = result
            if node.is_terminal and not result.error:
                return self._ended(result)
        return replace(self._passed(last), stop_reason="max_iterations")

    async def _choose(self, state: GraphState, config: NodeConfig, taken: list[str]) -> str:
        system = assembly.with_system(state.messages, Message("system", self._prompt(taken)))
        answer = await config.complete(CompletionRequest(assembly.ready(system)), role="router")
        found = extract_object(answer.content, "next_node")
        return str(found["next_node"]).strip() if found else answer.content.strip().strip("\"'`.")

    def _prompt(self, taken: list[str]) -> str:
        nodes = "\n".join(_line(node) for node in self.pool.values())
        steps = "\n".join(f"{number}. {text}" for number, text in enumerate(taken, 1))
        return assembly.join([
            self.instructions,
            f"Here are available nodes:\n{nodes}\n- {DONE}: the work is complete",
            f"Steps so far:\n{steps}" if steps else "",
            'Which should run next? Answer with one JSON object: {"next_node": "NAME", "reason": "WHY"}',
        ])  # fmt: skip

    def _ended(self, last: NodeResult) -> NodeResult:
        error = last.error or ("" if last.output is not None else f"{self.name!r} ended without a result.")
        return replace(self._passed(last), error=error, exception=last.exception)

    def _passed(self, last: NodeResult) -> NodeResult:
        return NodeResult(self.name, last.output, last.raw_output, is_answer=last.is_answer)


def _line(node: BaseNode) -> str:
    first = (node.description or node.instructions).strip().partition("\n")[0]
    return f"- {node.name}: {first or type(node).__name__}{' (terminal)' if node.is_terminal else ''}"


def _account(result: NodeResult) -> str:
    if result.error:
        return f"{result.node_name} failed: {result.error[:_SHOWN]}"
    output: Any = assembly.as_text(result.output)
    return f"{result.node_name}: {output[:_SHOWN]}"
