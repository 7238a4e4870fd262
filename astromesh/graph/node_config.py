"""The arguments of a node besides the state: model, tools, children, scope. One object per execution."""

from __future__ import annotations

from collections import UserDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, Protocol, cast

from msgspec.structs import replace

from astromesh.errors import ConfigError
from astromesh.graph.audibility import Audibility, visible_part
from astromesh.graph.calls import ASSISTANT, call_model, call_model_silently
from astromesh.graph.ledger import RunLedger
from astromesh.graph.records import NO_USAGE, NodeResult
from astromesh.graph.scope import Scope
from astromesh.graph.state import GraphState, NodeLimits, SharedState
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import Clock
from astromesh.telemetry.events import Emitter
from astromesh.tools.base import ToolPort
from astromesh.types import (
    CallerContext,
    CompletionRequest,
    CompletionResult,
    Delta,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

OnError = Literal["fail", "collect"]
#: The children of a node that run at a time.
MAX_CONCURRENCY = 10
#: The text of these nodes is used by others. It is never the answer of the run.
_INTERMEDIATE = frozenset({Audibility.INTERMEDIATE, Audibility.INTERNAL})


class Node(Protocol):
    """A node as the runner sees it. `BaseNode` implements it."""

    name: str

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult: ...


class Graph(Protocol):
    """A graph as the runner sees it. `PromptGraph` implements it."""

    name: str


@dataclass(frozen=True, slots=True)
class Child:
    """One of several children that run together.

    Args:
        name: Its part of the path. Give each repetition of one node its own, e.g. `fetch[0]`.
        context: Values that only this child sees in its context, e.g. its item of a fan-out.
        is_item: Whether it is one of many equal works. It has the limits of the run for itself, and its
            `output_key` and `NAME_output` do not leave it.
        source: The list that its item is from. Of it no copies are made: each item would copy all.
    """

    node: Node
    name: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)
    is_item: bool = False
    source: Sequence[Any] = ()


class NodeRuntime(Protocol):
    """The methods of a run that nodes use. `run.Run` implements them."""

    shared: SharedState
    #: Whether the run has no listeners and no scope yet. Until then the ledger counts model calls.
    is_unobserved: bool
    values: dict[str, Any]
    #: Executions by path.
    counts: dict[str, int]

    @property
    def graph_name(self) -> str: ...

    @property
    def cache(self) -> Any:
        """The results of nodes across runs (`node_cache.NodeCache`)."""

    @property
    def lightweight_model(self) -> ModelPort | str | None: ...

    @property
    def human_handler(self) -> Any: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped."""

    def note_error(self, path: str, result: NodeResult) -> None:
        """Adds a failure to the report, to the events and to the log."""

    def jitter(self) -> float:
        """Returns a random number in [0, 1), from the engine's seed."""

    def scope_at(self, path: str) -> Scope: ...

    def tools_of(self, node: Node) -> ToolPort: ...

    async def call_tools(
        self, config: NodeConfig, state: GraphState, calls: Sequence[ToolCall]
    ) -> list[ToolResult]: ...

    def limits_within(self, path: str) -> NodeLimits: ...

    async def run_child(
        self, node: Node, state: GraphState, path: str, limits: NodeLimits | None = None
    ) -> NodeResult: ...

    async def run_together(
        self, children: Sequence[Child], state: GraphState, path: str, on_error: OnError, max_concurrency: int
    ) -> list[NodeResult]: ...

    async def run_graph(self, graph: Graph, state: GraphState, path: str) -> NodeResult: ...


class NodeConfig(UserDict[str, Any]):
    """One execution of a node, seen from within.

    As a mapping it is the run's own copy of the `config` passed to `ainvoke`. All nodes of the run share it:
    a node may keep values there between its executions (document 000: `_node_cache_NAME`).

    Args:
        run: The run that the execution is part of.
        node: The node that is executed.
        path: The place in the run's tree: `outer/inner`. Ledger and events are the run's at every path.
        model: The model of this node, with `model_override` and LIGHTWEIGHT applied.
        role: The name passed as `model_override`. It is added to requests that name none.
        audibility: What listeners may hear of its model calls.
    """

    def __init__(
        self,
        run: NodeRuntime,
        node: Node,
        path: str,
        model: ModelPort,
        role: str = "",
        audibility: Audibility = Audibility.STREAMED,
    ) -> None:
        self.runtime = run
        self.data = run.values
        self.node = node
        self.path = path
        self.model = model
        self.role = role
        self.audibility = audibility
        self.usage = NO_USAGE
        #: Set by a PromptNode whose result is the text of the model and decides nothing about the next node.
        self.is_verbatim = False

    # -- the run ------------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """The scope of the run at this path: events, ledger, caller, deadline, session."""
        return self.runtime.scope_at(self.path)

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
        return self.runtime.clock

    @property
    def lightweight_model(self) -> ModelPort | str | None:
        return self.runtime.lightweight_model

    @property
    def human_handler(self) -> Any:
        return self.runtime.human_handler

    # -- model and tools ----------------------------------------------------------------------------------

    def complete(
        self,
        request: CompletionRequest,
        role: str = ASSISTANT,
        visible_text: Callable[[CompletionResult], str] | None = None,
    ) -> Coroutine[Any, Any, CompletionResult]:
        """Asks the node's model, within budgets and with events. The result's usage includes the cost.

        Args:
            request: The messages, tools and schema of the call.
            role: `assistant` writes the answer of the run: listeners see its deltas if this node answers (see
                `audibility`). Any other role (`router`, `judge`, …) is a call that the node makes for itself.
            visible_text: Returns the part of the answer that listeners may see, if that is not all of it.
                They receive it as one delta at its end.

        Raises:
            BudgetExhausted: The call is not made. Do not catch it: it ends the run.
            ProviderError, AllProvidersFailed: The model failed.
        """
        if self.role and not request.role:
            request = _with_role(request, self.role)
        if own := getattr(self.node, "parameters", None):
            request = replace(request, parameters={**own, **request.parameters})
        run = self.runtime
        if run.is_unobserved:
            ledger = run.shared.opened_ledger or run.shared.ledger
            return call_model_silently(ledger, self.model, request, self.add_usage)
        if self.audibility is not Audibility.STREAMED:
            if self.audibility in _INTERMEDIATE and request.answers:
                request = replace(request, answers=False)
            role, visible_text = visible_part(self.audibility, role, self.node.name, visible_text)
        scope = run.scope_at(self.path)
        return call_model(
            scope, self.model, request, role=role, visible_text=visible_text, add_usage=self.add_usage
        )

    def add_usage(self, usage: Usage) -> None:
        """Adds the usage of a model call of this execution."""
        self.usage = usage if self.usage is NO_USAGE else self.usage + usage

    def specs(self) -> tuple[ToolSpec, ...]:
        """Returns the node's tools: its own, those it names, and under INJECT_TOOLS all of the engine's."""
        return self.runtime.tools_of(self.node).specs()

    async def call_tools(self, calls: Sequence[ToolCall], state: GraphState) -> list[ToolResult]:
        """Calls tools through the hooks, budgets and events of the run; several of them concurrently.

        Returns exactly one result per call, in their order. A tool that failed, is unknown or belongs to
        another node gives a result with `ok=False` for the model.
        """
        return await self.runtime.call_tools(self, state, calls)

    # -- children -----------------------------------------------------------------------------------------

    def limits(self) -> NodeLimits:
        """Returns the limits of the run anew, for one of several rounds of children. Pass them to `run`."""
        return self.runtime.limits_within(self.path)

    async def run(
        self, node: Node, state: GraphState, name: str = "", *, limits: NodeLimits | None = None
    ) -> NodeResult:
        """Runs a child to its answer, tool loop included, with the run's hooks, flags, limits and events.

        It is reported as `path/name`. The default of `name` is the child's own name: pass another one for
        each concurrent repetition. The child writes to `state`. Its failure is part of the result. A child
        that may not start because the run is being stopped raises an exception, which you must not catch. Its
        usage is already charged: never add it to your own result.

        Args:
            limits: Those of this round. The default is what is left of those around it.
        """
        return await self.runtime.run_child(node, state, f"{self.path}/{name or node.name}", limits)

    async def together(
        self,
        children: Sequence[Child],
        state: GraphState,
        *,
        on_error: OnError = "fail",
        max_concurrency: int = MAX_CONCURRENCY,
    ) -> list[NodeResult]:
        """Runs children concurrently, each on a copy of the state. `branches` describes what remains.

        Args:
            on_error: `fail` cancels the others and raises. `collect` returns every result, failed ones too.
            max_concurrency: The children that run at a time. They start in order.

        Raises:
            NodeFailed: The first failure, under `fail`.
            ConflictingWrites: Two children wrote different values under one key that has no reducer.
        """
        return await self.runtime.run_together(children, state, self.path, on_error, max_concurrency)

    async def run_graph(self, graph: Graph, state: GraphState, name: str = "") -> NodeResult:
        """Runs a whole graph as a child, from entry to end. Visits, limits and stops are the run's.

        Its nodes are reported as `path/NODE`, or as `path/name/NODE` with a name. Pass a name for each of
        several concurrent graphs.
        """
        return await self.runtime.run_graph(graph, state, f"{self.path}/{name}" if name else self.path)

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


# -- placeholders for a missing model and a missing run ----------------------------------------------------


class NoModel:
    """A `ModelPort` without a model.

    Args:
        why: The error message for its callers.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        self._refuse()

    async def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | CompletionResult]:
        self._refuse()
        yield Delta("")  # type: ignore[unreachable]  # what makes this a stream

    def _refuse(self) -> NoReturn:
        raise ConfigError(self._why)


NO_MODEL = NoModel("This graph has no model, and one of its nodes asks for one.")
#: The model of a finalizer: a stopped run asks no model.
STOPPED_MODEL = NoModel("The finalizer runs without a model.")
#: The config of functions that take the state alone, without flags and hooks.
NO_CONFIG = NodeConfig(cast(Any, SimpleNamespace(values={})), cast(Any, None), "", NO_MODEL)
