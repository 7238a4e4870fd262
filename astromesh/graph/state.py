"""The state that a graph's nodes read and write, and how nested executions get their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar, cast

from astromesh.graph.containers import engine_write
from astromesh.graph.records import END, ZERO, NodeResult, StopReason
from astromesh.node.ledger import RunLedger
from astromesh.types import Message, Usage

T = TypeVar("T")
#: the lists that only grow: those that nodes write, and all of them
WRITTEN = ("messages", "plan", "observations", "reflections")
GATHERED = (*WRITTEN, "node_history")
#: the lists that the engine itself works with, and what they hold
_HELD = {"messages": Message, "visited": str, "node_history": NodeResult}


class Shared:
    """What all states of one run share: the ledger, the hooks' own data, and whether the run is to stop.

    Args:
        above: the ledger of the surrounding run, charged as well, or None.

    `spent` is the ledger, None until it is first asked for.
    """

    __slots__ = ("_above", "error", "locals", "spent", "stop_reason")

    def __init__(self, above: RunLedger | None = None) -> None:
        self._above = above
        self.spent: RunLedger | None = None
        self.locals: dict[int, Any] = {}
        self.stop_reason: StopReason | None = None
        self.error = ""

    @property
    def ledger(self) -> RunLedger:
        """Made when it is first asked for: most runs of plain functions spend nothing."""
        if self.spent is None:
            self.spent = RunLedger(None, self._above)
        return self.spent

    @property
    def usage(self) -> Usage:
        return ZERO if self.spent is None else self.spent.usage


class GraphState:
    """What nodes see and change.

    Args:
        messages: the conversation; nodes may append, `NodeResult.messages_added` does it for them.
        context: values by name: `output_key`s, `NAME_output`s, the caller's own, and the engine's `_…`.
        current_node: set by the engine; a hook that sets it to `__end__` ends the run.
        visited: names of the nodes executed at this level, in order.
        plan, observations, reflections: what reasoning nodes gather.
        node_history: results at this level, in order, those of children before their parent's; skipped nodes
            are not among them.
        loop: what the current node's tool loop added to the messages so far.
    """

    __slots__ = (
        "context", "current_node", "loop", "messages", "node_history", "observations", "plan", "reflections",
        "shared", "visited",
    )  # fmt: skip

    def __init__(
        self,
        messages: Sequence[Message] = (),
        context: dict[str, Any] | None = None,
        shared: Shared | None = None,
    ) -> None:
        self.messages: list[Message] = [*messages]
        self.context: dict[str, Any] = {} if context is None else context
        self.current_node = ""
        self.visited: list[str] = []
        self.plan: list[Any] = []
        self.observations: list[Any] = []
        self.reflections: list[Any] = []
        self.node_history: list[NodeResult] = []
        self.loop: Sequence[Message] = ()
        self.shared = shared or Shared()

    @property
    def ledger(self) -> RunLedger:
        """The run's one budget ledger: tokens, cost, calls and whatever nodes spend by name."""
        return self.shared.ledger

    @property
    def iteration(self) -> int:
        """Executions at this level so far, the current one included."""
        return len(self.visited)

    @property
    def node_iterations(self) -> Mapping[str, int]:
        """Executions at this level by name; 0 for a node that was not executed yet."""
        return Counter(self.visited)

    @property
    def last_result(self) -> NodeResult | None:
        """Of the last node that ran at this level."""
        return self.node_history[-1] if self.node_history else None

    @property
    def question(self) -> str:
        """The text of the newest user message, empty where there is none."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")

    def stop(self, reason: StopReason, error: str = "") -> None:
        """Ends the run after this node, also from inside nested nodes. The first reason wins."""
        self.current_node = END
        if self.shared.stop_reason is None:
            self.shared.stop_reason, self.shared.error = reason, error

    def local(self, owner: object, make: Callable[[], T]) -> T:
        """The data of one hook (or node) in this run; made on first use. The owner must outlive the run."""
        data = self.shared.locals
        key = id(owner)
        if key not in data:
            data[key] = make()
        return cast(T, data[key])

    def mend(self, shared: Shared) -> str:
        """Empties what is not of the kind that it must be; answers what was wrong, or nothing."""
        wrong = []
        if self.shared is not shared:
            self.shared = shared
            wrong.append("shared is not the run's")
        if type(self.context) is not dict:
            wrong.append(f"context must be a dict, not {type(self.context).__name__}")
            self.context = {}
        for name, kind in _HELD.items():
            held = getattr(self, name)
            if not isinstance(held, list) or any(not isinstance(m, kind) for m in held):
                wrong.append(f"{name} must be a list of {kind.__name__}")
                kept = held if isinstance(held, list | tuple) else ()
                setattr(self, name, [one for one in kept if isinstance(one, kind)])
        return "; ".join(wrong)

    def become(self, other: GraphState) -> None:
        """Takes over what another state holds; for hooks that answer one of their own."""
        for slot in GraphState.__slots__:
            if slot != "shared":
                setattr(self, slot, getattr(other, slot))

    def view(self, messages: list[Message], context: dict[str, Any]) -> GraphState:
        """The same run and gatherings with other messages and context; changes of those stay in the view."""
        other = self.__class__.__new__(self.__class__)
        for slot in GraphState.__slots__:
            setattr(other, slot, getattr(self, slot))
        other.messages, other.context = messages, context
        return other

    def frame(self) -> GraphState:
        """A level of its own for a nested traversal: same messages, context and gatherings, own visits."""
        other = self.view(self.messages, self.context)
        other.visited, other.node_history, other.loop, other.current_node = [], [], (), ""
        return other

    def fork(self) -> GraphState:
        """A copy for one of several children that run together: what it adds is merged by `join`."""
        other = self.view(list(self.messages), dict(self.context))
        other.node_history, other.loop = list(self.node_history), ()
        other.plan, other.observations = list(self.plan), list(self.observations)
        other.reflections = list(self.reflections)
        return other

    def isolated(self, context: dict[str, Any]) -> GraphState:
        """A copy that shares nothing changeable with this one: deep values, no plan, no observations."""
        other = self.view(deepcopy(self.messages), deepcopy(context))
        other.plan, other.observations, other.reflections = [], [], []
        other.visited, other.node_history = list(self.visited), []
        return other

    def join(self, forks: Sequence[GraphState]) -> None:
        """Takes over what forks of this state added, in their order, whatever order they ended in."""
        seen = {name: len(getattr(self, name)) for name in GATHERED}
        base = dict(self.context)
        for fork in forks:
            for name, length in seen.items():
                if added := getattr(fork, name)[length:]:
                    getattr(self, name).extend(added)
            for key, value in fork.context.items():
                if key not in base or base[key] is not value:
                    engine_write(self.context, key, value)
