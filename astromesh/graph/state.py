"""The state that nodes read and write, its read-only view, and the reserved keys of the context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

from msgspec import Struct

from astromesh.graph.ledger import RunLedger
from astromesh.graph.records import END, NodeResult, StopReason
from astromesh.types import JsonObject, Message

# -- read-only containers, for READONLY nodes --------------------------------------------------------------


def _refuse_write(self: object, *arguments: object, **keywords: object) -> NoReturn:
    raise TypeError("A READONLY node may not write to context, plan, observations, messages or reflections.")


class FrozenDict(dict[str, Any]):
    """A read-only copy of a dict. `source` is the original."""

    __slots__ = ("source",)

    def __init__(self, source: dict[str, Any]) -> None:
        super().__init__(source)
        self.source = source

    __setitem__ = __delitem__ = __ior__ = _refuse_write
    clear = pop = popitem = setdefault = update = _refuse_write


class FrozenList(list[Any]):
    """A read-only copy of a list. `source` is the original."""

    __slots__ = ("source",)

    def __init__(self, source: list[Any]) -> None:
        super().__init__(source)
        self.source = source

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_write
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_write


def engine_forget(context: dict[str, Any], key: str) -> None:
    """Removes a key on behalf of the engine, from a read-only view and its source too."""
    dict.pop(context, key, None)
    if isinstance(context, FrozenDict):
        engine_forget(context.source, key)


def engine_write(context: dict[str, Any], key: str, value: Any) -> None:
    """Writes a key on behalf of the engine, to a read-only view and its source too."""
    if not isinstance(context, FrozenDict):
        context[key] = value
        return
    dict.__setitem__(context, key, value)
    engine_write(context.source, key, value)


def engine_extend(items: list[Any], added: Iterable[Any], keep: int | None = None) -> None:
    """Appends to a list on behalf of the engine, to a read-only view and its source too.

    Args:
        keep: The number of items that stay. The default is all.
    """
    added = list(added)
    if isinstance(items, FrozenList):
        engine_extend(items.source, added, keep)
    if keep is not None:
        list.__delitem__(items, slice(keep, None))
    list.extend(items, added)


T = TypeVar("T")
#: The lists that only grow: those that nodes write, and all of them.
NODE_LISTS = ("messages", "plan", "observations", "reflections")
ALL_LISTS = (*NODE_LISTS, "node_history")
#: The lists that the engine works with, and the types of their items.
_LIST_TYPES = {"messages": Message, "visited": str, "node_history": NodeResult}


#: What a hook that returns another state does not change.
_SLOTS_OF_THE_RUN = frozenset({"limits", "reducers", "shared"})
#: Node executions of a run, if the engine is given no other number.
MAX_ITERATIONS = 50


class SharedState(Struct):
    """What all states of one run share: the ledger, the data of hooks, and whether the run is stopping.

    Args:
        opened_ledger: The ledger, or None if nothing has used it yet.
    """

    opened_ledger: RunLedger | None = None
    locals: dict[int, Any] = {}
    stop_reason: StopReason | None = None
    error: str = ""

    @property
    def ledger(self) -> RunLedger:
        """The ledger, created on first use: most runs of plain functions spend nothing."""
        if self.opened_ledger is None:
            self.opened_ledger = RunLedger()
        return self.opened_ledger


class NodeLimits(Struct, eq=False):
    """How many nodes may still be executed in one run, one item of a FanOutNode or one round of a LoopNode.

    Args:
        most: Node executions.
        earlier: Visits by path, of earlier items or rounds, that do not count here.
        used: Executions so far.
    """

    most: int
    earlier: Mapping[str, int] = MappingProxyType({})
    used: int = 0

    def are_reached(self, path: str, visits: int, max_visits: int) -> bool:
        """Whether a node has used up its visits. `visits` are all visits of the run."""
        return visits - self.earlier.get(path, 0) >= max_visits


#: Joins the value of a key and one that a concurrent node has written under it.
Reducer: TypeAlias = Callable[[Any, Any], Any]
NO_REDUCERS: Mapping[str, Reducer] = MappingProxyType({})


class SharedObject:
    """An object in the context that nodes share. `BaseNode.restores` makes it again of its JSON."""

    __slots__ = ()

    def to_json(self) -> JsonObject:
        raise NotImplementedError


#: Makes the value of a key of the context of its JSON, when a run is resumed.
Restore: TypeAlias = "Callable[[JsonObject, GraphState], Any]"
NO_RESTORES: Mapping[str, Restore] = MappingProxyType({})


class GraphState:
    """What nodes see and change.

    Args:
        messages: The conversation. Nodes may append; the engine appends `NodeResult.messages_added`.
        context: Values by name: `output_key`s, `NAME_output`s, the caller's values, and the engine's `_…`.
        current_node: Set by the engine. A hook that sets it to `__end__` ends the run.
        visited: The names of the nodes executed at this level, in order.
        plan, observations, reflections: What reasoning nodes collect.
        node_history: The results at this level, in order. Those of children stand before their parent's;
            skipped nodes are left out.
        loop: The messages that the tool loop of the current node has added.
        reducers: Functions by key of the context that join what concurrent nodes write. They are the graph's.
        limits: Those of the item or round that this state belongs to. None: those of the run.
        updates: The updates of a typed state since the branch of this state began. None outside branches.
    """

    __slots__ = (
        "context", "current_node", "limits", "loop", "messages", "node_history", "observations", "plan",
        "reducers", "reflections", "shared", "updates", "visited",
    )  # fmt: skip

    def __init__(
        self,
        messages: Sequence[Message] = (),
        context: dict[str, Any] | None = None,
        shared: SharedState | None = None,
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
        self.reducers: Mapping[str, Reducer] = NO_REDUCERS
        self.limits: NodeLimits | None = None
        self.updates: dict[str, list[Any]] | None = None
        self.shared = shared or SharedState()

    @property
    def ledger(self) -> RunLedger:
        """The budget ledger of the run: tokens, cost, calls and the budgets that nodes name."""
        return self.shared.ledger

    @property
    def iteration(self) -> int:
        """The number of executions at this level, the current one included."""
        return len(self.visited)

    @property
    def node_iterations(self) -> Mapping[str, int]:
        """Executions at this level by name. It is 0 for a node that was not executed."""
        return Counter(self.visited)

    @property
    def last_result(self) -> NodeResult | None:
        """The result of the last node that ran at this level."""
        return self.node_history[-1] if self.node_history else None

    @property
    def question(self) -> str:
        """The text of the newest user message, or an empty string."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")

    def stop(self, reason: StopReason, error: str = "") -> None:
        """Ends the run after this node, also from inside nested nodes. The first reason counts."""
        self.current_node = END
        if self.shared.stop_reason is None:
            self.shared.stop_reason, self.shared.error = reason, error

    def local(self, owner: object, make: Callable[[], T]) -> T:
        """Returns the data of a hook or node in this run, created on first use.

        The owner must outlive the run.
        """
        data = self.shared.locals
        key = id(owner)
        if key not in data:
            data[key] = make()
        return cast(T, data[key])

    def repair(self, shared: SharedState) -> str:
        """Replaces attributes of a wrong type by empty ones. Returns what was wrong, or an empty string."""
        wrong = []
        if self.shared is not shared:
            self.shared = shared
            wrong.append("shared was replaced by another object")
        if type(self.context) is not dict:
            wrong.append(f"context must be a dict, not {type(self.context).__name__}")
            self.context = {}
        for name, kind in _LIST_TYPES.items():
            values = getattr(self, name)
            if not isinstance(values, list) or any(not isinstance(m, kind) for m in values):
                wrong.append(f"{name} must be a list of {kind.__name__}")
                items = values if isinstance(values, list | tuple) else ()
                setattr(self, name, [one for one in items if isinstance(one, kind)])
        return "; ".join(wrong)

    def replace_with(self, other: GraphState) -> None:
        """Takes all values of another state, which a hook has returned."""
        for slot in GraphState.__slots__:
            if slot not in _SLOTS_OF_THE_RUN:
                setattr(self, slot, getattr(other, slot))

    def view(self, messages: list[Message], context: dict[str, Any]) -> GraphState:
        """Returns a state of the same run with other messages and context. It shares everything else."""
        other = self.__class__.__new__(self.__class__)
        for slot in GraphState.__slots__:
            setattr(other, slot, getattr(self, slot))
        other.messages, other.context = messages, context
        return other

    def frame(self) -> GraphState:
        """Returns the level of a nested traversal.

        It shares messages, context and lists, and has its own visits.
        """
        other = self.view(self.messages, self.context)
        other.visited, other.node_history, other.loop, other.current_node = [], [], (), ""
        return other

    def fork(self, context: Mapping[str, Any]) -> GraphState:
        """Returns a copy for one of several concurrent children. See `branches`.

        Args:
            context: Values that only this child sees.
        """
        other = self.view(list(self.messages), {**self.context, **context})
        other.node_history, other.loop, other.updates = list(self.node_history), (), {}
        other.plan, other.observations = list(self.plan), list(self.observations)
        other.reflections = list(self.reflections)
        return other

    def isolated(self, context: dict[str, Any]) -> GraphState:
        """Returns a deep copy without plan, observations and reflections, which shares nothing mutable."""
        other = self.view(deepcopy(list(self.messages)), deepcopy(context))
        other.plan, other.observations, other.reflections = [], [], []
        other.visited, other.node_history = list(self.visited), []
        return other

    def extend_lists(self, forks: Sequence[GraphState]) -> None:
        """Adds what forks of this state have added to its lists, in the order of the forks."""
        seen = {name: len(getattr(self, name)) for name in ALL_LISTS}
        for fork in forks:
            for name, length in seen.items():
                if added := getattr(fork, name)[length:]:
                    engine_extend(getattr(self, name), added)


# -- the state of READONLY nodes: writing to its context and lists raises ----------------------------------

_READ_ONLY_FIELDS = frozenset({"context", *NODE_LISTS})


class ReadOnlyState(GraphState):
    """A view whose containers cannot be replaced."""

    __slots__ = ("locked",)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _READ_ONLY_FIELDS and getattr(self, "locked", False):
            _refuse_write(self)
        super().__setattr__(name, value)


def read_only_view(state: GraphState) -> ReadOnlyState:
    """Returns a read-only view of a state. It does not copy the values inside."""
    other = ReadOnlyState.__new__(ReadOnlyState)
    for slot in GraphState.__slots__:
        setattr(other, slot, getattr(state, slot))
    other.context = FrozenDict(state.context)
    for name in NODE_LISTS:
        setattr(other, name, FrozenList(getattr(state, name)))
    other.locked = True
    return other


# -- reserved keys of the context: no `output_key` may be one of them --------------------------------------

#: The node that waits for a person, the ticket of the decision, and decisions by ticket.
AWAITING_HUMAN, HUMAN_TICKET, HUMAN_DECISIONS = "_awaiting_human", "_human_ticket", "_human_decisions"
#: Why the last attempt of a node failed.
RETRY_ERROR = "_retry_error"
#: Results of CACHEABLE nodes by their inputs.
NODE_CACHE = "_node_cache"


def retries_key(name: str) -> str:
    """Returns the key under which a GuardNode counts how often it has sent work back."""
    return f"_{name}_retries"


RESERVED_KEYS = frozenset({AWAITING_HUMAN, HUMAN_TICKET, HUMAN_DECISIONS, RETRY_ERROR, NODE_CACHE})
