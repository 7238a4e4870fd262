"""GuardNode: a gate that only good output passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.nodes.guards import Checked, as_guards, check_all
from astromesh.graph.nodes.transform import declared_input, may_answer
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import Message


class GuardNode(BaseNode):
    """Checks the last output (or the input it declares) and lets it through, or does not.

    What it refuses ends the run, unless an edge `on_guard_fail`, an error edge or a transition leads on. A
    guard of mode `retry` sends the work back to the node that did it, with the feedback as a message. Inside
    a LoopNode that is an earlier node of its body; other nodes that run children cannot send work back, there
    it has failed. `guards` are functions or `Guard`s; see the module `guards`.

    Args:
        retry_node: who does the work again; by default the node that ran last.
        keywords: see `NodeKeywords`.
    """

    protected = True
    own = ("retry_node",)
    handles: ClassVar[frozenset[str]] = frozenset({"guards"})
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL

    def __init__(self, name: str, *, retry_node: str = "", **keywords: Unpack[NodeKeywords]) -> None:
        keywords["routes"] = (*keywords.get("routes", ()), *([retry_node] if retry_node else ()))
        super().__init__(name, **keywords)
        self.retry_node = retry_node
        self._guards = as_guards(self.guards)

    def given(self, key: str) -> Any:
        if key == "routes" and self.retry_node:
            return self.routes[:-1]
        return super().given(key)

    def problems(self) -> Iterable[str]:
        if not self.guards:
            yield "guards: there are none, so it would let everything through."

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = declared_input(self, state)
        checked = await check_all(self._guards, value, state)
        result = NodeResult(self.name, guards_passed=checked.passed, guards_failed=checked.failed)
        if not checked.refused:
            result.output, result.is_answer = value, may_answer(value, state)
            state.context.pop(self._key, None)  # what comes next has tries of its own
        elif (again := self._worker(state)) and checked.may_retry(self._tries(state)):
            self._send_back(state, checked, result, again)
        else:
            result.error, result.stop_reason = f"The output was {checked.error}", "critical_error"
            result.exception = checked.refusal(result.error)
        return result

    def _worker(self, state: GraphState) -> str:
        if self.retry_node:
            return self.retry_node
        if self._is_alone(state):
            last = state.last_result
            return last.node_name if last else ""
        return next((n for n in reversed(state.visited) if n != self.name), "")

    def _is_alone(self, state: GraphState) -> bool:
        """Whether another node runs this one: then it is not the graph's current node."""
        return state.current_node != self.name

    def _tries(self, state: GraphState) -> int:
        return int(state.context.get(self._key, 0))

    @property
    def _key(self) -> str:
        return f"_{self.name}_retries"

    def _send_back(self, state: GraphState, checked: Checked, result: NodeResult, worker: str) -> None:
        state.context[self._key] = self._tries(state) + 1
        text = f"That answer cannot be accepted:\n{checked.feedback}\nAnswer again, corrected."
        result.messages_added = (Message("user", text),)
        result.next_node = worker
        if self._is_alone(state):  # until whoever runs it goes back, nothing has passed
            result.error = f"The output was {checked.error}"
