"""A nested run that speaks for the outer one: its words become the outer run's tokens (swarm).

Only text passes, through the outer run's own output rules; model calls, tools and their cost stay events of
the nested run, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable

from astromesh.abc.run import Terms
from astromesh.node.calls import ASSISTANT
from astromesh.node.scope import Scope
from astromesh.runtime.run import GatedEvents
from astromesh.telemetry.stream import DELTA
from astromesh.types import Event

#: a text that begins with one of these may be data that nobody should see
_DATA = ("{", "`")


def relay(outer: Scope, terms: Terms) -> tuple[Relay, ...]:
    """The listeners that a nested run gets: one where it speaks and somebody listens to the outer run."""
    events = outer.events
    if not terms.speaks or not isinstance(events, GatedEvents) or not events.streaming:
        return ()
    return (Relay(outer, events, terms.withheld),)


class Relay:
    """A listener to a nested run.

    Args:
        outer: the scope of the run that it speaks for; it numbers the steps.
        events: that run's emitter.
        withheld: whether a whole step that looks like data is to be kept back.
    """

    wants_deltas = True

    def __init__(self, outer: Scope, events: GatedEvents, withheld: Callable[[str], bool] | None) -> None:
        self._outer, self._events, self._withheld = outer, events, withheld
        #: the step under way, in the outer run's numbers; 0 where none is
        self._step = 0
        #: text that may turn out to be no answer, or None where everything passes
        self._held: list[str] | None = None

    def send(self, event: Event) -> None:
        data = event.data
        if event.type == DELTA and data["role"] == ASSISTANT:
            self._hear(data["content"])
        elif event.type == "model.started" and data["role"] == ASSISTANT:
            self._begin()
        elif event.type == "model.finished" and data["role"] == ASSISTANT:
            self._end(data["usage"]["output_tokens"])
        elif event.type == "run.completed":
            self._end(0)

    def _begin(self) -> None:
        self._events.begin()
        self._step = 0

    def _hear(self, text: str) -> None:
        if not self._step:
            self._step = self._outer.next_step()
            self._held = None if self._withheld is None else []
        if self._held is None:
            self._say(text)
            return
        self._held.append(text)
        begun = "".join(self._held).lstrip()
        if begun and not begun.startswith(_DATA):
            self._let_out()

    def _let_out(self) -> None:
        held, self._held = self._held, None
        if held:
            self._say("".join(held))

    def _say(self, text: str) -> None:
        self._events.emit(DELTA, step=self._step, role=ASSISTANT, content=text)

    def _end(self, output_tokens: int) -> None:
        if not self._step:
            return
        if self._held and not (self._withheld and self._withheld("".join(self._held))):
            self._let_out()
        self._events.end(self._step, output_tokens)
        self._step, self._held = 0, None
