"""How many runs of an agent go on at once in this process, and how many may wait for that (`spec.queue`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from astromesh.abc.clock import Clock
from astromesh.abc.durable import RunRow
from astromesh.errors import Overloaded
from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.runs import Handler, Wrapper

#: for how many seconds, and for what part of the room there was, a count of an agent's queue is trusted
_TRUSTED, _PART = 1.0, 8


@dataclass(slots=True)
class _Line:
    """The runs of one agent."""

    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Slots:
    """The lines of the agents of which runs go on here.

    A run that ends hands its slot to the first that waits, so that nobody who comes later takes it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    async def enter(self, agent: str, most: int, waiting: int, timeout: float | None) -> None:
        """Waits for a slot, first come first served; `leave` gives it back.

        Args:
            most: slots there are.
            waiting: how many may wait.
            timeout: seconds to wait; None as long as it takes.

        Raises:
            Overloaded: as many wait as may, or `timeout` is over.
        """
        line = self._lines.setdefault(agent, _Line())
        if line.running < most:
            line.running += 1
            return
        if len(line.waiting) >= waiting:
            raise queue_full(agent, waiting)
        await self._wait(agent, line, timeout)

    def leave(self, agent: str) -> None:
        line = self._lines[agent]
        if line.waiting:
            line.waiting.popleft().set_result(None)
            return
        line.running -= 1
        if not line.running:
            del self._lines[agent]

    async def _wait(self, agent: str, line: _Line, timeout: float | None) -> None:
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(given)
        timer = None if timeout is None else asyncio.create_task(self._clock.sleep(timeout))
        try:
            await asyncio.wait([given, *([timer] if timer else ())], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if given.done():  # given in this very moment
                self.leave(agent)
            else:
                line.waiting.remove(given)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not given.done():
            line.waiting.remove(given)
            raise Overloaded(
                f"{agent!r} has had too much to do for {timeout:g} s; send the request again later."
            )


class Room:
    """How many more runs of one agent this process may accept until it must count again.

    The store counts, and not at every run: a count is trusted for a part of the room that it found, and for a
    second, so that several processes together are a few runs beyond the bound at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left, self._until = 0, 0.0
        self._counting = asyncio.Lock()

    async def enter(
        self,
        count: Callable[[], Awaitable[int]],
        agent: str,
        most: int,
        accept: Callable[[], Awaitable[RunRow]],
    ) -> RunRow:
        """Raises: Overloaded: there is no room."""
        if not self._has_some():
            async with self._counting:
                if not self._has_some():  # nobody has counted meanwhile
                    free = most - await count()
                    if free <= 0:
                        raise queue_full(agent, most)
                    self._left, self._until = free // _PART, self._clock.monotonic() + _TRUSTED
                    return await accept()
        return await accept()

    def _has_some(self) -> bool:
        """Takes a place that the last count has found."""
        if self._left <= 0 or self._clock.monotonic() >= self._until:
            return False
        self._left -= 1
        return True


def queue_full(agent: str, most: int) -> Overloaded:
    return Overloaded(
        f"{most} runs of {agent!r} wait to begin (spec.queue.max_queued); send this one again later."
    )


def in_its_line(slots: Slots) -> Wrapper:
    """Wraps a run so that no more of its agent go on here than may; what is nested goes with its run."""

    def wrap(handler: Handler) -> Handler:
        async def run_in_line(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
            spec = agent.manifest.spec
            accepted = run.journal is not None
            await slots.enter(
                agent.name,
                agent.most_running,
                # an accepted run was counted when it was accepted
                1 << 62 if accepted else spec.queue.max_queued,
                None if accepted else spec.sessions.queue_timeout_seconds,
            )
            try:
                return await handler(agent, request, run)
            finally:
                slots.leave(agent.name)

        def run_if_bounded(agent: Agent, request: RunRequest, run: Run) -> Awaitable[RunAnswer]:
            """No coroutine of its own: most agents have no bound."""
            if not agent.most_running or run.parent:
                return handler(agent, request, run)
            return run_in_line(agent, request, run)

        return run_if_bounded

    return wrap
