"""The scope of a run: what every unit of work in it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.events import Emitter
from astromesh.abc.tool import ToolContext
from astromesh.node.capture import Capture
from astromesh.node.journal import Journal
from astromesh.node.ledger import RunLedger
from astromesh.telemetry.stream import NoEvents
from astromesh.types import CallerContext, SessionKey, ToolCall

T = TypeVar("T")

#: the events of a scope that nobody listens to
NO_EVENTS = NoEvents()
_CLOCK: Clock = SystemClock()


class Told(NamedTuple):
    """A tool call that was made. `name` as others may see it, `result` as the model was shown it."""

    name: str
    call: ToolCall
    ok: bool
    result: str


class _OfTheRun(Protocol[T]):
    """What all scopes of a run have in common, read and written wherever one of them stands."""

    def __get__(self, scope: Any, owner: type[Any]) -> T: ...

    def __set__(self, scope: Any, value: T) -> None: ...


def _of_the_run(name: str) -> Any:
    """An `_OfTheRun` that is read without a call of Python's: a run does it some thirty times."""

    def write(scope: Scope, value: object) -> None:
        setattr(scope.common, name, value)

    return property(attrgetter(f"common.{name}"), write)


@dataclass(slots=True)
class _Common:
    """What the scopes of one run share."""

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
    sampled: bool | None = None
    unstopped: list[str] = field(default_factory=list)
    untrusted: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=lambda: [0])
    tools_called: list[str] = field(default_factory=list)
    tools_told: list[Told] | None = None
    capture: Capture | None = None
    shown: Callable[[str], str] | None = None
    journal: Journal | None = None
    accounts: object | None = None
    #: ids of tool calls that no model made, by the path that made them
    call_ids: dict[str, int] = field(default_factory=dict)


class Scope:
    """One run as its parts see it. Nested units get a child with a longer path.

    Args:
        events: what the run emits to; `NO_EVENTS` where nobody ever listens.
        deadline: `clock.monotonic()` at which the run must have ended, or None.
        retries: tries that are left for the whole run, over all layers; shared by children.
        depth: how many agents stand above this run.

    `tools_told` is a list where somebody wants to be told what tools were asked and answered, else None;
    `capture` keeps that of models and tools for traces, where an operator asks for it; `shown` answers what
    others may see of a text that a model made up, None where they may see all of it.
    `journal` is the record of a durable run, None of every other one. `accounts` are the stored budgets that
    the run is charged to (`runtime.budgets`), None where there are none. `unstopped` names tools that go on
    although their call was cancelled, `untrusted` whose words were read that nobody vouches for; like
    `retries` they are those of the whole tree of runs.
    `sampled`: whether who began the trace keeps it; None: nobody has decided.
    `path` is where in the run's tree this is, e.g. `react/lookup`; recorded steps are keyed by it. Path and
    ledger are a scope's own. The rest is the run's, so that a child is cheap: every model call has one.
    """

    __slots__ = ("common", "ledger", "path")

    run_id: _OfTheRun[str] = _of_the_run("run_id")
    agent: _OfTheRun[str] = _of_the_run("agent")
    session: _OfTheRun[SessionKey] = _of_the_run("session")
    caller: _OfTheRun[CallerContext | None] = _of_the_run("caller")
    trace_id: _OfTheRun[str] = _of_the_run("trace_id")
    sampled: _OfTheRun[bool | None] = _of_the_run("sampled")
    events: _OfTheRun[Emitter] = _of_the_run("events")
    clock: _OfTheRun[Clock] = _of_the_run("clock")
    deadline: _OfTheRun[float | None] = _of_the_run("deadline")
    depth: _OfTheRun[int] = _of_the_run("depth")
    retries: _OfTheRun[list[int]] = _of_the_run("retries")
    unstopped: _OfTheRun[list[str]] = _of_the_run("unstopped")
    untrusted: _OfTheRun[list[str]] = _of_the_run("untrusted")
    steps: _OfTheRun[list[int]] = _of_the_run("steps")
    tools_called: _OfTheRun[list[str]] = _of_the_run("tools_called")
    tools_told: _OfTheRun[list[Told] | None] = _of_the_run("tools_told")
    capture: _OfTheRun[Capture | None] = _of_the_run("capture")
    shown: _OfTheRun[Callable[[str], str] | None] = _of_the_run("shown")
    journal: _OfTheRun[Journal | None] = _of_the_run("journal")
    accounts: _OfTheRun[object | None] = _of_the_run("accounts")

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
        self.path = ""
        self.ledger = ledger or RunLedger()
        self.common = _Common(
            run_id, agent, session, caller, trace_id, events or NO_EVENTS, clock or _CLOCK, deadline, depth,
            [retries],
        )  # fmt: skip

    def child(self, name: str) -> Scope:
        """The same run, one level down: `path/name`."""
        nested = Scope.__new__(Scope)
        nested.common, nested.ledger = self.common, self.ledger
        nested.path = f"{self.path}/{name}" if self.path else name
        return nested

    def charging(self, ledger: RunLedger) -> Scope:
        """The same place in the run with a ledger of its own; make it a child of this one's."""
        other = Scope.__new__(Scope)
        other.common, other.ledger, other.path = self.common, ledger, self.path
        return other

    def call_id(self) -> str:
        """An id of a tool call that no model made: unique in the run, the same when that goes on."""
        numbers = self.common.call_ids
        n = numbers[self.path] = numbers.get(self.path, 0) + 1
        return f"{self.path.replace('/', '.')}_{n}"

    def next_step(self) -> int:
        """Numbers model calls of the whole run from 1."""
        steps = self.steps
        steps[0] += 1
        return steps[0]

    def note_untrusted(self, names: Iterable[str]) -> None:
        """Notes whose words the model is about to read: behind all calls of its turn, made without them."""
        seen = self.untrusted
        seen += [name for name in dict.fromkeys(names) if name not in seen]

    def take_retry(self) -> bool:
        """Takes one try from the run's retry budget; False when it is used up."""
        retries = self.retries
        if retries[0] <= 0:
            return False
        retries[0] -= 1
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
