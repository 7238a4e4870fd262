"""What a node is given beside the state: model, tools, children, scope. One object per execution."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from astromesh.abc.clock import Clock
from astromesh.abc.events import Emitter
from astromesh.abc.provider import ModelPort
from astromesh.graph.records import ZERO, NodeResult
from astromesh.graph.speech import Speech, heard
from astromesh.graph.state import GraphState, Shared
from astromesh.node.calls import ASSISTANT, ask_model, call_model
from astromesh.node.ledger import RunLedger
from astromesh.node.scope import Scope
from astromesh.types import (
    CallerContext,
    CompletionRequest,
    CompletionResult,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

OnError = Literal["fail", "collect"]
#: something is made of what these say: no answer of theirs is the run's
_ON_THE_WAY = frozenset({Speech.FOLLOWED, Speech.INWARD})


class Node(Protocol):
    """A node as the runner sees it; `BaseNode` is the implementation."""

    name: str

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult: ...


class Graph(Protocol):
    """A graph as the runner sees it; `PromptGraph` is the implementation."""

    name: str


@dataclass(frozen=True, slots=True)
class Child:
    """One of several children that run together.

    Args:
        name: its part of the path; give each repetition of one node its own, e.g. `fetch[0]`.
        context: values that this child alone sees in its context, e.g. its item of a fan-out.
    """

    node: Node
    name: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)


class Nesting(Protocol):
    """What a run does for the nodes in it; `run.Run` is the implementation."""

    shared: Shared
    #: whether nobody listens and no scope was asked for yet; model calls are counted in the ledger until then
    unheard: bool
    values: dict[str, Any]

    @property
    def lightweight_model(self) -> ModelPort | str | None: ...

    @property
    def human_handler(self) -> Any: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped."""

    def chance(self) -> float:
        """A random number in [0, 1), from the engine's seed."""

    def scope_at(self, path: str) -> Scope: ...

    def specs(self, node: Node) -> tuple[ToolSpec, ...]: ...

    async def call_tools(
        self, config: NodeConfig, state: GraphState, calls: Sequence[ToolCall]
    ) -> list[ToolResult]: ...

    async def run_child(self, node: Node, state: GraphState, path: str) -> NodeResult: ...

    async def run_together(
        self, children: Sequence[Child], state: GraphState, path: str, on_error: OnError
    ) -> list[NodeResult]: ...

    async def run_graph(self, graph: Graph, state: GraphState, path: str) -> NodeResult: ...


class NodeConfig(MutableMapping[str, Any]):
    """One execution of a node, seen from within.

    As a mapping it is the run's own copy of the `config` given to `ainvoke`, shared by all nodes of the run:
    a node may keep things there from one re-entry to the next (document 000: `_node_cache_NAME`).

    Args:
        run: the run that the execution is part of.
        node: the node that is executed.
        path: where in the run's tree: `outer/inner`; the ledger and the events are the run's at every path.
        model: the model this node uses, with `model_override` and LIGHTWEIGHT already applied.
        role: the name given as `model_override`, put into requests that name none.
        speech: what listeners may hear of its model calls.
    """

    __slots__ = ("model", "nesting", "node", "path", "role", "said", "speech", "usage")

    def __init__(
        self,
        run: Nesting,
        node: Node,
        path: str,
        model: ModelPort,
        role: str = "",
        speech: Speech = Speech.FREE,
    ) -> None:
        self.nesting = run
        self.node = node
        self.path = path
        self.model = model
        self.role = role
        self.speech = speech
        self.usage = ZERO
        #: set by a node of the engine's own: its result is the model's words, nothing in it decides anything
        self.said = False

    # -- the run ------------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """The run's scope at this path: events, ledger, caller, deadline, session."""
        return self.nesting.scope_at(self.path)

    @property
    def ledger(self) -> RunLedger:
        return self.scope.ledger

    @property
    def events(self) -> Emitter:
        return self.scope.events

    @property
    def caller(self) -> CallerContext | None:
        return self.scope.caller

    @property
    def clock(self) -> Clock:
        return self.nesting.clock

    @property
    def lightweight_model(self) -> ModelPort | str | None:
        return self.nesting.lightweight_model

    @property
    def human_handler(self) -> Any:
        return self.nesting.human_handler

    # -- model and tools ----------------------------------------------------------------------------------

    def complete(
        self,
        request: CompletionRequest,
        role: str = ASSISTANT,
        shown: Callable[[CompletionResult], str] | None = None,
    ) -> Coroutine[Any, Any, CompletionResult]:
        """Asks the node's model: budgets, events, deltas; what it cost becomes part of the result's usage.

        `role` is `assistant` for the run's own voice, whose deltas listeners see as the answer if the node is
        the one that answers (see `speech`); anything else (`router`, `judge`, …) for calls that a node makes
        for itself. `shown` says what listeners may see of the answer where that is not every word; they get
        it as one delta at its end.

        Raises:
            BudgetExhausted: before the call; let it pass, it ends the run.
            ProviderError, AllProvidersFailed: from the model.
        """
        if self.role and not request.role:
            request = _with_role(request, self.role)
        run = self.nesting
        if run.unheard:
            shared = run.shared
            return ask_model(shared.spent or shared.ledger, self.model, request, self)
        return self._heard(request, role, shown)

    async def _heard(
        self, request: CompletionRequest, role: str, shown: Callable[[CompletionResult], str] | None
    ) -> CompletionResult:
        if self.speech in _ON_THE_WAY and request.answers:
            request = replace(request, answers=False)
        role, shown = heard(self.speech, role, self.node.name, shown)
        result = await call_model(self.scope, self.model, request, role=role, shown=shown)
        self.book(result.usage)
        return result

    def book(self, usage: Usage) -> None:
        """Counts what a model call of this execution has cost."""
        self.usage = usage if self.usage is ZERO else self.usage + usage

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools this node may call: its own, those it names, under INJECT_TOOLS all of the engine's."""
        return self.nesting.specs(self.node)

    async def call_tools(self, calls: Sequence[ToolCall], state: GraphState) -> list[ToolResult]:
        """Calls tools, together where there are several, through the hooks, budgets and events of the run.

        Exactly one result per call, in their order. A tool that failed, is unknown, or is not this node's is
        a result with `ok=False` for the model to read.
        """
        return await self.nesting.call_tools(self, state, calls)

    # -- children -----------------------------------------------------------------------------------------

    async def run(self, node: Node, state: GraphState, name: str = "") -> NodeResult:
        """Runs a child to its answer, its tool loop included, with the run's hooks, flags, limits and events.

        It is reported as `path/name`; `name` is by default the child's own: give one to each repetition that
        runs at the same time. The child's writes go to `state`. Its failure is in the result; a child that
        may not run any more (the run is being stopped) raises, and that is to be let through. Its usage is
        booked already: never add it to your own result.
        """
        return await self.nesting.run_child(node, state, f"{self.path}/{name or node.name}")

    async def together(
        self, children: Sequence[Child], state: GraphState, *, on_error: OnError = "fail"
    ) -> list[NodeResult]:
        """Runs children at once if each is READONLY or PARALLEL_SAFE, else one after another in order.

        Children at once work on copies; what they wrote is merged in declared order, whatever the timing.
        `on_error`: `fail` cancels the others and raises; `collect` answers every result, failed ones too.

        Raises:
            NodeFailed: under `fail`, the first failure.
        """
        return await self.nesting.run_together(children, state, self.path, on_error)

    async def run_graph(self, graph: Graph, state: GraphState, name: str = "") -> NodeResult:
        """Runs a whole graph as a child, from entry to end: visits, limits and stops are the run's.

        Its nodes are reported as `path/NODE`, or `path/name/NODE` where a name is given: give one to each of
        several graphs that run at the same time.
        """
        return await self.nesting.run_graph(graph, state, f"{self.path}/{name}" if name else self.path)

    # -- the run's values, as a mapping -------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        return self.nesting.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.nesting.values.get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        self.nesting.values[key] = value

    def __delitem__(self, key: str) -> None:
        del self.nesting.values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nesting.values)

    def __len__(self) -> int:
        return len(self.nesting.values)

    def __bool__(self) -> bool:
        return True


def _with_role(request: CompletionRequest, role: str) -> CompletionRequest:
    return CompletionRequest(
        request.messages,
        request.tools,
        request.parameters,
        request.output_schema,
        request.tool_choice,
        role,
        request.answers,
    )
