"""The history of a stored run: its finished nodes, and the state after each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from msgspec import Struct

from astromesh.graph.records import NO_USAGE, S
from astromesh.types import Message, Usage


class Checkpoint(Struct, frozen=True):
    """A finished node of a stored run.

    Args:
        step: Its number among the steps of the run. Model calls and tool calls are steps, too.
        path: The place of the node: `outer/inner`.
        next: The node that follows, `__end__`, or an empty text if the run was stopped.
        output: Of the node, as JSON.
        error: Empty if the node succeeded.
        finished_at: Seconds since the epoch.
    """

    step: int
    path: str
    next: str = ""
    output: Any = None
    error: str = ""
    duration_ms: float = 0.0
    usage: Usage = NO_USAGE
    finished_at: float = 0.0


@dataclass(frozen=True, slots=True)
class GraphSnapshot(Generic[S]):
    """The state of a run after a step.

    Args:
        step: The finished node, 0 for the start of the run.
        path: Its place, empty for the start.
        next: The node that follows, `__end__`, or an empty text if the run was stopped.
        state: The typed state. None if the graph has none.
    """

    run_id: str
    step: int
    path: str
    next: str
    state: S
    context: Mapping[str, Any]
    messages: list[Message]
