"""The scope of a run: what every unit of work in it shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from astromesh.errors import AnswerTooLong, OutcomeUnknown
from astromesh.graph.ledger import RunLedger
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.events import Emitter, NullEmitter
from astromesh.tokens import utf8_size
from astromesh.tools.base import HumanQuestion, ToolContext, ToolPort
from astromesh.types import (
    CallerContext,
    CompletionRequest,
    CompletionResult,
    JsonObject,
    SessionKey,
    ToolCall,
    ToolResult,
)

#: Asks the model, as this step of the run.
AskModel = Callable[[int], Awaitable[CompletionResult]]
#: Calls the tool.
CallTool = Callable[[ToolContext], Awaitable[ToolResult]]
#: Emits and charges a tool call that is answered from the record.
ReplayTool = Callable[[ToolResult], None]


class JournaledNode(Protocol):
    """One visit of a node in the journal.

    Attributes:
        record: What `finish` has stored. None if the visit has not ended yet.
        ordinal: The number of its step in the run. 0 if the visit has not ended yet.
        refusal: Why the visit may not happen: the process died during it, and a person decided so.
        dropped: The calls of a visit that a join has cancelled. None for any other visit.
    """

    record: JsonObject | None
    ordinal: int
    refusal: OutcomeUnknown | None
    dropped: Sequence[JsonObject] | None

    async def finish(self, record: JsonObject) -> None:
        """Stores how the visit ended, and the calls that were made in it. It is not repeated after that."""

    def leave(self) -> None:
        """Ends a visit that was cancelled, or is taken as done."""


class Journal(Protocol):
    """The journal of a durable run records its calls and nodes, and answers them when the run is resumed.

    Agent runs, graphs and the agent stages of workflows reach it as `scope.journal`, which is None for a run
    that ends in one process. All model calls, tool calls and questions to people pass through it, and the
    finished nodes of a graph whose nodes are anybody's code, so that a resumed run repeats none of them. The
    implementation is `astromesh.durable.journal`. The forms of the records are `astromesh.graph.call_record`
    and `astromesh.graph.node_record`.

    A call is identified by its place in the run's tree, which is the argument `scope`. Every method raises
    Divergence if the record holds another request at this place.
    """

    @property
    def is_durable(self) -> bool:
        """Whether the run can wait for a person, and is continued if its process dies."""

    @property
    def suspended(self) -> bool:
        """Whether this process ends its part of the run, which goes on later: nothing is concluded."""

    @property
    def is_fork(self) -> bool:
        """Whether the run repeats parts of another one, so that a person approves calls with an effect."""

    def effect_of(self, call: ToolCall) -> JsonObject | None:
        """Returns what a call of the same name and arguments has returned in the run that was forked."""

    def values(self, path: str) -> tuple[JsonObject, ...]:
        """Returns the recorded values at a place of the record, in order."""

    async def visit(self, path: str, effect: NodeEffect, frame: str | None = None) -> JournaledNode:
        """Begins a visit of a node, or returns how it ended.

        Args:
            path: The place of the node in the run's tree.
            effect: If the process died during the visit, `read` and `idempotent` let it begin again. For
                another effect, a person decides.
            frame: The path of the graph that the node is visited in. None for a child that runs alone.

        Raises:
            NondeterministicGraph: The record has another node at this position of the graph.
        """

    def drop(self, path: str) -> None:
        """Records that a branch ends at a node, so that a resumed run does not visit it again."""

    def repeat(self, scope: Any, call: JsonObject) -> JsonObject | None:
        """Takes a call of a finished visit as made: emits and charges it.

        Args:
            call: `{"kind": "node", "model", "tool" or "human", "at": path, …}`, one of `record["calls"]`. A
                finished tool call is made again instead, which the journal answers.

        Returns:
            The record of a node, if its visit has ended.
        """

    def check_children(self, path: str) -> None:
        """Raises NondeterministicGraph if the record has nodes below a path that this visit did not run."""

    def diverge(self, message: str) -> NoReturn:
        """Raises NondeterministicGraph, and ends the run with it whatever becomes of the exception."""

    async def call(
        self,
        path: str,
        request_hash: str,
        name: str,
        make: Callable[[], Awaitable[JsonObject]],
        *,
        once: bool,
        arguments: Any = None,
    ) -> JsonObject:
        """Returns the recorded answer of any call, else makes it and records its answer.

        Args:
            path: The place of the call.
            name: The name of what is called, for a person who decides.
            arguments: Those of the call, for a person who decides.
            once: Whether the call must not be repeated. If the process died during it, a person decides.

        Raises:
            OutcomeUnknown: A person decided that the call is not repeated.
        """

    async def ask_whether_again(self, path: str, name: str, number: int) -> None:
        """Asks a person whether work that was interrupted is repeated.

        Args:
            number: How often it has begun.

        Raises:
            OutcomeUnknown: It is not.
        """

    def suspend(self) -> None:
        """Begins no step any more: another process continues."""

    def restart(self, path: str) -> None:
        """Begins the work below a path again: its calls are numbered from 1."""

    def edited(self, request: CompletionRequest) -> CompletionRequest:
        """Returns the request of a model call as a fork has edited it."""

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: AskModel
    ) -> CompletionResult:
        """Returns the recorded answer of a model call, else makes the call and records its answer.

        Args:
            step: The number of the call, if it is the first one at this place.
        """

    async def tool(
        self, scope: Any, tools: ToolPort, call: ToolCall, do: CallTool, retell: ReplayTool
    ) -> ToolResult:
        """Returns the recorded result of a tool call, else makes the call and records its result.

        Args:
            do: Makes the call.
            retell: Emits and charges a recorded call.
        """

    async def person(self, scope: Any, ticket: str, question: HumanQuestion) -> JsonObject:
        """Returns a person's decision, in the form of `RecordedToolCall.ask`. The run waits for it as a row.

        Args:
            ticket: The identity of the question, the same when the run is resumed.
        """


class Capture(Protocol):
    """Receives the content of model and tool calls, for traces, if the operator enables it.

    `scope.capture` is None in all other runs. The implementation is `astromesh.runtime.content_capture`. Each
    method is called after the event that ends the call.
    """

    def model(self, step: int, request: CompletionRequest, result: CompletionResult | None) -> None:
        """Receives a model call. `result` is None if it failed."""

    def tool(self, call: ToolCall, result: ToolResult) -> None: ...


T = TypeVar("T")
#: What a node does to the world by itself, beside its journaled calls.
NodeEffect = Literal["read", "idempotent", "write", "external"]
#: The emitter of a scope without listeners.
NO_EVENTS = NullEmitter()
_CLOCK: Clock = SystemClock()


class ToolCallRecord(NamedTuple):
    """A tool call that was made: the name that others may see, and the result that the model has read."""

    name: str
    call: ToolCall
    ok: bool
    result: str


class _RunAttribute(Protocol[T]):
    """An attribute that all scopes of a run share. Each of them can read and write it."""

    def __get__(self, scope: Any, owner: type[Any]) -> T: ...

    def __set__(self, scope: Any, value: T) -> None: ...


def _run_attribute(name: str) -> Any:
    """Returns a `_RunAttribute` that is read without a Python call. A run reads them about thirty times."""

    def write(scope: Scope, value: object) -> None:
        setattr(scope.common, name, value)

    return property(attrgetter(f"common.{name}"), write)


#: bytes of an answer, if the configuration gives no other number
MAX_ANSWER_BYTES = 4 * 1024 * 1024


class _RunData(Struct):
    """The attributes that the scopes of one run share."""

    run_id: str
    agent: str
    session: SessionKey
    caller: CallerContext | None
    trace_id: str
    events: Emitter
    clock: Clock
    deadline: float | None
    depth: int
    retries: list[int]
    steps: list[int]
    sampled: bool | None = None
    uncancelled: list[str] = []
    untrusted: list[str] = []
    tools_called: list[str] = []
    tool_records: list[ToolCallRecord] | None = None
    citations: list[JsonObject] = []
    nested_citations: list[JsonObject] = []
    capture: Capture | None = None
    visible_name: Callable[[str], str] | None = None
    journal: Journal | None = None
    accounts: object | None = None
    metadata: Mapping[str, Any] = {}
    tags: tuple[str, ...] = ()
    deps: Any = None
    keeps_graph_result: bool = False
    tells_state: bool = False
    graph_result: object | None = None
    max_answer_bytes: int = MAX_ANSWER_BYTES
    tool_choice: str = "auto"
    #: The number of calls of each tool that has a limit for one run.
    tool_counts: dict[str, int] = {}
    #: The number of tool calls without a model, by path.
    call_ids: dict[str, int] = {}


class Scope:
    """A run as one of its parts sees it. Nested units get a child with a longer path.

    Args:
        events: The emitter of the run. `NO_EVENTS` if there can be no listeners.
        deadline: The `clock.monotonic()` at which the run ends, or None.
        retries: The retry budget of the whole run, over all layers. Children share it.
        depth: The number of agents above this run.

    Attributes:
        tool_records: A list that receives each tool call, or None.
        citations: What the answer of the run cites, once it has ended. The list is changed in place.
        nested_citations: What the answers of the runs nested in it cite.
        capture: Receives the content of calls, or None.
        visible_name: Returns the part of a name made up by the model that others may see. None: all of it.
        journal: The record of a durable run. None in every other run.
        accounts: The stored budgets that the run is charged to (`runtime.budgets`), or None.
        deps: What the program has passed to the run for its tools.
        keeps_graph_result: Whether somebody reads `graph_result`. The errors in it refer to the run, so the
            runs of a server keep none: a reference cycle would leave them to the garbage collector.
        tells_state: Whether events have what the nodes of the run's graph change in its state.
        graph_result: The `GraphResult` of the pattern of the run, also of a failed one. None before.
        max_answer_bytes: The limit of the text of one model call, and of the answer of the run.
        metadata, tags: What the caller says about the run.
        tool_choice: The caller's choice for the next model call that offers tools and makes none of its own.
        uncancelled: Names of tools that continue although their call was cancelled.
        untrusted: Names of tools whose untrusted text the model has read. This list, `uncancelled` and
            `retries` belong to the whole tree of runs.
        sampled: Whether the caller's trace is stored. None if that is undecided.
        path: The place in the run's tree, e.g. `react/lookup`. Recorded steps are keyed by it.

    Only path and ledger belong to one scope. All other attributes belong to the run, so that a child costs
    little: every model call has one.
    """

    __slots__ = ("common", "ledger", "node", "path")

    run_id: _RunAttribute[str] = _run_attribute("run_id")
    agent: _RunAttribute[str] = _run_attribute("agent")
    session: _RunAttribute[SessionKey] = _run_attribute("session")
    caller: _RunAttribute[CallerContext | None] = _run_attribute("caller")
    trace_id: _RunAttribute[str] = _run_attribute("trace_id")
    sampled: _RunAttribute[bool | None] = _run_attribute("sampled")
    events: _RunAttribute[Emitter] = _run_attribute("events")
    clock: _RunAttribute[Clock] = _run_attribute("clock")
    deadline: _RunAttribute[float | None] = _run_attribute("deadline")
    depth: _RunAttribute[int] = _run_attribute("depth")
    retries: _RunAttribute[list[int]] = _run_attribute("retries")
    uncancelled: _RunAttribute[list[str]] = _run_attribute("uncancelled")
    untrusted: _RunAttribute[list[str]] = _run_attribute("untrusted")
    steps: _RunAttribute[list[int]] = _run_attribute("steps")
    tools_called: _RunAttribute[list[str]] = _run_attribute("tools_called")
    tool_records: _RunAttribute[list[ToolCallRecord] | None] = _run_attribute("tool_records")
    citations: _RunAttribute[list[JsonObject]] = _run_attribute("citations")
    nested_citations: _RunAttribute[list[JsonObject]] = _run_attribute("nested_citations")
    capture: _RunAttribute[Capture | None] = _run_attribute("capture")
    visible_name: _RunAttribute[Callable[[str], str] | None] = _run_attribute("visible_name")
    journal: _RunAttribute[Journal | None] = _run_attribute("journal")
    accounts: _RunAttribute[object | None] = _run_attribute("accounts")
    metadata: _RunAttribute[Mapping[str, Any]] = _run_attribute("metadata")
    tags: _RunAttribute[tuple[str, ...]] = _run_attribute("tags")
    deps: _RunAttribute[Any] = _run_attribute("deps")
    keeps_graph_result: _RunAttribute[bool] = _run_attribute("keeps_graph_result")
    tells_state: _RunAttribute[bool] = _run_attribute("tells_state")
    graph_result: _RunAttribute[Any] = _run_attribute("graph_result")
    max_answer_bytes: _RunAttribute[int] = _run_attribute("max_answer_bytes")
    tool_choice: _RunAttribute[str] = _run_attribute("tool_choice")

    def __init__(  # noqa: PLR0913 (one keyword for each thing that a run is made of)
        self,
        run_id: str = "",
        *,
        agent: str = "",
        session: SessionKey = SessionKey("", "", ""),
        caller: CallerContext | None = None,
        trace_id: str = "",
        events: Emitter | None = None,
        ledger: RunLedger | None = None,
        clock: Clock | None = None,
        deadline: float | None = None,
        retries: int = 8,
        depth: int = 0,
    ) -> None:
        self.path = self.node = ""
        self.ledger = ledger or RunLedger()
        self.common = _RunData(
            run_id, agent, session, caller, trace_id, events or NO_EVENTS, clock or _CLOCK, deadline, depth,
            [retries], [0],
        )  # fmt: skip

    def check_answer(self, text: str) -> None:
        """Raises AnswerTooLong if a text has more bytes than an answer may have."""
        limit = self.max_answer_bytes
        if len(text) * 4 > limit and utf8_size(text) > limit:
            raise AnswerTooLong(limit)

    def child(self, name: str = "", ledger: RunLedger | None = None) -> Scope:
        """Returns the scope of `path/name` in the same run.

        Args:
            name: Empty for a scope of the same path.
            ledger: The ledger of the scope, a child of this one's. The default is this one's.
        """
        nested = Scope.__new__(Scope)
        nested.common, nested.ledger, nested.node = self.common, ledger or self.ledger, self.node
        nested.path = f"{self.path}/{name}" if self.path and name else name or self.path
        return nested

    def call_id(self) -> str:
        """Returns an id for a tool call that no model made.

        It is unique in the run, and the same after a resume.
        """
        numbers = self.common.call_ids
        n = numbers[self.path] = numbers.get(self.path, 0) + 1
        return f"{self.path.replace('/', '.')}_{n}"

    def under(self, journal: Journal) -> Scope:
        """Returns a scope of the same path whose calls pass through a journal."""
        nested = self.child()
        nested.common = replace(self.common, journal=journal)
        return nested

    def next_step(self) -> int:
        """Returns the number of the next model call of the run, from 1."""
        steps = self.steps
        steps[0] += 1
        return steps[0]

    def note_untrusted(self, names: Iterable[str]) -> None:
        """Adds names of untrusted tools.

        Call it after all calls of a turn: they are made before the model reads.
        """
        seen = self.untrusted
        for name in names:
            if name not in seen:
                seen.append(name)

    def take_retry(self) -> bool:
        """Takes one attempt from the retry budget of the run. Returns False if none is left."""
        retries = self.retries
        if retries[0] <= 0:
            return False
        retries[0] -= 1
        return True

    def count_tool_call(self, name: str) -> None:
        """Counts a call of a tool. A run that is resumed counts its recorded calls again."""
        counts = self.common.tool_counts
        counts[name] = counts.get(name, 0) + 1

    def take_tool_call(self, name: str, most: int) -> bool:
        """Counts a call unless the run has made `most` calls of this tool. Returns whether it may be made."""
        if self.common.tool_counts.get(name, 0) >= most:
            return False
        self.count_tool_call(name)
        return True

    def tool_context(self, call_id: str, tool: str = "") -> ToolContext:
        return ToolContext(
            run_id=self.run_id,
            call_id=call_id,
            agent=self.agent,
            session=self.session,
            caller=self.caller,
            trace_id=self.trace_id,
            path=self.path,
            deadline=self.deadline,
            events=self.events,
            run=self,
            tool=tool,
        )
