"""Whose words are the run's answer: what listeners may hear of a node's model calls.

`voices` decides it for each node when its graph is compiled:

    FREE      every way leads straight to the end: it streams token by token
    WHOLE     the answer, unless it fails: it is let out once it is whole, without words beside tool calls
    FOLLOWED  something comes behind it: its words are its own, not the answer's
    INWARD    a node that runs it makes something else of them
    SILENT    a guard or a human may still refuse them: nobody hears them before

What is not streamed and turns out to be the answer is let out at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from astromesh.node.calls import ASSISTANT
from astromesh.types import CompletionResult


class Speech(IntEnum):
    """What listeners may hear of a node's model calls; the higher, the less."""

    FREE = 0
    WHOLE = 1
    FOLLOWED = 2
    INWARD = 3
    SILENT = 4


#: what listeners may see of an answer
Shown: TypeAlias = Callable[[CompletionResult], str]


def heard(speech: Speech, role: str, name: str, shown: Shown | None) -> tuple[str, Shown | None]:
    """The role of a model call, and what listeners may see of it.

    Args:
        role: that the node asks in.
        name: of the node.
        shown: what the node says may be seen, where it has decided that itself.
    """
    if speech is Speech.SILENT:
        return (name if role == ASSISTANT else role), _nothing
    if role != ASSISTANT or speech is Speech.FREE:
        return role, shown
    if speech is Speech.INWARD:
        return name, shown
    if shown is not None:
        return role, shown
    return (role, _final) if speech is Speech.WHOLE else (name, None)


def _nothing(result: CompletionResult) -> str:
    return ""


def _final(result: CompletionResult) -> str:
    return "" if result.tool_calls else result.content
