"""Places where a process can be killed, for the tests of docs/reliability.md.

    ASTROMESH_FAILPOINT=NAME[:N]     sends SIGKILL at the N-th (default: first) pass of that place

The variable is read when this module is imported. Without it, `reach` does nothing. Only durable runs pass.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count

#: the places, in the order in which a run passes them
ACCEPTED = "accepted"
BEFORE_MODEL, AFTER_MODEL = "before_model", "after_model"
TOOL_INTENT, TOOL_DONE = "tool_intent", "tool_done"
BEFORE_STEP_11, AFTER_STEP_11 = "before_step_11", "after_step_11"
BEFORE_LAST_EVENT = "before_last_event"
PLACES = (
    ACCEPTED, BEFORE_MODEL, AFTER_MODEL, TOOL_INTENT, TOOL_DONE, BEFORE_STEP_11, AFTER_STEP_11,
    BEFORE_LAST_EVENT,
)  # fmt: skip
#: places that only functions in graphs pass
NODE_INTENT, NODE_DONE = "node_intent", "node_done"
GRAPH_PLACES = (NODE_INTENT, NODE_DONE)
VARIABLE = "ASTROMESH_FAILPOINT"


def _ignore(place: str) -> None:
    """Does nothing: no failpoint is set."""


def parse_failpoint(text: str, places: Sequence[str] = (*PLACES, *GRAPH_PLACES)) -> Callable[[str], None]:
    """Returns a function that kills the process at the place `wanted`, NAME or NAME:N.

    Raises:
        ValueError: there is no such place; a test that kills nothing would prove nothing.
    """
    name, _, which = text.partition(":")
    if name not in places:
        raise ValueError(f"There is no failpoint {name!r}. Known: {', '.join(places)}.")
    passed, at = count(1), int(which or 1)

    def maybe_die(place: str) -> None:
        if place == name and next(passed) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return maybe_die


reach: Callable[[str], None] = parse_failpoint(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _ignore
