"""What the code of a node or tool reaches without an argument: `interrupt`, and `emit`.

The loop notes the active node where somebody listens or records, so that a plain run costs nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import ref

from astromesh.errors import NotDurable
from astromesh.graph.call_record import to_lenient_json
from astromesh.graph.node_json import to_json
from astromesh.graph.scope import Scope
from astromesh.graph.validation import check_seconds
from astromesh.tools.base import HumanQuestion, RecordedToolCall
from astromesh.types import JsonObject

#: Seconds that an interrupt waits for its answer.
WAIT_SECONDS = 7 * 86_400.0
#: The event of what a node emits.
CUSTOM_EVENT = "node.custom"


class ActiveRun(Protocol):
    """The members of a run that the code of its nodes reaches. `run.Run` has them."""

    emit: Callable[..., None] | None
    #: Whether its events stay in the program, so that they may hold any objects.
    is_local: bool

    def scope_at(self, path: str) -> Scope: ...


class ActiveNode:
    """One visit of a node.

    Timers and connections that begin in a node keep its context, and so this object, after the run has ended.
    That must not keep the run and its texts.

    Args:
        visit: The number of the visit, from 1.
    """

    __slots__ = ("_run", "interrupts", "loop", "name", "path", "visit")

    def __init__(self, run: ActiveRun, path: str, name: str, visit: int) -> None:
        self._run = ref(run)
        self.path, self.name, self.visit = path, name, visit
        self.interrupts = 0
        self.loop = asyncio.get_running_loop()

    @property
    def run(self) -> ActiveRun | None:
        """The run, or None when it has ended."""
        return self._run()


class ActiveTool(NamedTuple):
    """One call of a tool in a durable run.

    Args:
        step: Refers to its place in the journal, while the call is active.
        around: The node that calls it, if somebody listens or records.
    """

    name: str
    step: ref[RecordedToolCall]
    around: ActiveNode | None


Active: TypeAlias = ActiveNode | ActiveTool | None
_ACTIVE: ContextVar[Active] = ContextVar("astromesh_active_node", default=None)


def enter_node(run: ActiveRun, path: str, name: str, visit: int) -> Token[Active]:
    """Notes the active node of the current code, until `leave`."""
    return _ACTIVE.set(ActiveNode(run, path, name, visit))


def enter_tool(name: str, step: RecordedToolCall) -> Token[Active]:
    """Notes the active tool call of the current code, until `leave`."""
    return _ACTIVE.set(ActiveTool(name, ref(step), _active_node()))


def leave(token: Token[Active]) -> None:
    _ACTIVE.reset(token)


def _active_node() -> ActiveNode | None:
    active = _ACTIVE.get()
    return active.around if isinstance(active, ActiveTool) else active


async def interrupt(value: Any = None, *, seconds: float = WAIT_SECONDS) -> Any:
    """Asks a person, or a program, from inside a node or a tool. Returns the answer.

    The run waits in its store, without a process. With the answer the node, or the tool alone, runs again
    from its beginning. Interrupts that have their answer return it at once, in order, and model and tool
    calls of a node come from the journal. Everything else before the interrupt happens again.

    Args:
        value: What is asked. A text, or the `question` of a mapping, is shown as text.
        seconds: The time for the answer.

    Returns:
        The value of the answer. True and False for `approve` and `deny`.

    Raises:
        NotDurable: The run has no journal: give the engine or the agent a `store`, or start a durable run.
        ValueError, TypeError: `seconds` is no time, or `value` is not JSON.
        TimeoutError: There was no answer in time.
    """
    check_seconds("interrupt()", "seconds", seconds)
    text = value.get("question", "") if isinstance(value, Mapping) else value
    content, text = to_json(value, "The value of interrupt()"), text if isinstance(text, str) else ""
    active = _ACTIVE.get()
    if isinstance(active, ActiveTool):
        step = active.step()
        if step is None:
            raise NotDurable(f"interrupt() was called after the call of the tool {active.name!r} had ended.")
        decision = await step.ask(HumanQuestion("interrupt", active.name, content, text, seconds))
        return _answer(active.name, decision, seconds)
    run = None if active is None else active.run
    scope = None if active is None or run is None else run.scope_at(active.path)
    journal = None if scope is None else scope.journal
    if active is None or scope is None or journal is None or not journal.is_durable:
        raise NotDurable(
            "interrupt() needs a run that can wait. Call it in a node or a tool, and give the engine or the "
            "agent a `store`, or start the agent with POST /v1/agents/NAME/runs."
        )
    ticket = f"{active.path}#{active.visit}:{active.interrupts}"
    active.interrupts += 1
    question = HumanQuestion("interrupt", active.name, content, text, seconds)
    return _answer(active.name, await journal.person(scope, ticket, question), seconds)


def _answer(name: str, decision: JsonObject, seconds: float) -> Any:
    if decision["decision"] == "expired":
        raise TimeoutError(f"{name!r} got no answer within {seconds:g} s.")
    return decision.get("answer") if decision["decision"] == "answer" else decision["decision"] == "approve"


def emit(value: Any) -> None:
    """Sends a value from inside a node to the listeners of the run: as `custom` to `engine.astream`.

    Without a listener it does nothing. Functions that run in a thread may call it, too.
    """
    active = _active_node()
    if active is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # of a thread
        active.loop.call_soon_threadsafe(_emit, active, value)
    else:
        _emit(active, value)


def _emit(active: ActiveNode, value: Any) -> None:
    run = active.run
    if run is not None and run.emit is not None:
        run.emit(CUSTOM_EVENT, node=active.path, data=value if run.is_local else to_lenient_json(value))
