"""The scope of a run: what every unit of work in it shares."""

from __future__ import annotations

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.events import Emitter
from astromesh.abc.tool import ToolContext
from astromesh.node.ledger import RunLedger
from astromesh.telemetry.stream import NoEvents
from astromesh.types import CallerContext, SessionKey

#: the events of a scope that nobody listens to
NO_EVENTS = NoEvents()
_CLOCK: Clock = SystemClock()


class Scope:
    """One run as its parts see it. Nested units get a child with a longer path, the same ledger and events.

    Args:
        path: where in the run's tree this is, e.g. `react/lookup`; recorded steps are keyed by it.
        deadline: `clock.monotonic()` at which the run must have ended, or None.
        retries: tries that are left for the whole run, over all layers; shared by children.
        depth: how many agents stand above this run.
    """

    __slots__ = (
        "agent", "caller", "clock", "deadline", "depth", "events", "ledger", "path", "retries", "run_id",
        "session", "steps", "tools_called", "trace_id",
    )  # fmt: skip

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
        self.run_id = run_id
        self.agent = agent
        self.session = session
        self.caller = caller
        self.trace_id = trace_id
        self.events: Emitter = events or NO_EVENTS
        self.ledger = ledger or RunLedger()
        self.clock: Clock = clock or _CLOCK
        self.deadline = deadline
        self.retries = [retries]
        self.depth = depth
        self.path = ""
        self.steps = [0]
        self.tools_called: list[str] = []

    def child(self, name: str) -> Scope:
        """The same run, one level down: `path/name`."""
        nested = Scope.__new__(Scope)
        # written out: a loop over the slots takes six times as long, and every model call comes through here
        nested.agent, nested.caller, nested.clock = self.agent, self.caller, self.clock
        nested.deadline, nested.depth, nested.events = self.deadline, self.depth, self.events
        nested.ledger, nested.retries, nested.run_id = self.ledger, self.retries, self.run_id
        nested.session, nested.steps, nested.tools_called = self.session, self.steps, self.tools_called
        nested.trace_id = self.trace_id
        nested.path = f"{self.path}/{name}" if self.path else name
        return nested

    def charging(self, ledger: RunLedger) -> Scope:
        """The same place in the run with a ledger of its own; make it a child of this one's."""
        other = self.child("")
        other.path, other.ledger = self.path, ledger
        return other

    def next_step(self) -> int:
        """Numbers model calls of the whole run from 1."""
        self.steps[0] += 1
        return self.steps[0]

    def take_retry(self) -> bool:
        """Takes one try from the run's retry budget; False when it is used up."""
        if self.retries[0] <= 0:
            return False
        self.retries[0] -= 1
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
