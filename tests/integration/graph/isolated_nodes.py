"""Functions of nodes that run in worker processes, for `test_isolated_functions`."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from astromesh.graph import GraphState, NodeResult, node
from astromesh.types import Message


def where(state: GraphState) -> dict[str, Any]:
    """Answers what reaches it."""
    last = state.last_result
    return {
        "pid": os.getpid(), "question": state.question, "number": state.context["number"],
        "before": last.output if last else None, "visited": state.visited,
    }  # fmt: skip


async def where_async(state: GraphState) -> dict[str, Any]:
    await asyncio.sleep(0)
    return where(state)


@node("writes", isolation="process")
def writes(state: GraphState) -> NodeResult:
    state.context["found"] = {"n": 1}
    state.context["nested"]["list"].append(2)
    del state.context["gone"]
    state.observations.append("seen")
    state.messages.append(Message("assistant", "from the worker"))
    return NodeResult(output="fine", next_node="last")


def with_config(state: GraphState, config: Any) -> Any:
    return None


def fails(state: GraphState) -> None:
    raise ValueError("as told")


def dies(state: GraphState) -> None:
    os._exit(6)


def hangs(state: GraphState) -> None:
    state.context["pid"] = os.getpid()
    time.sleep(600)


def no_json(state: GraphState) -> Any:
    return object()


def stops(state: GraphState) -> None:
    state.stop("cycle", "it goes round")


def big(state: GraphState) -> int:
    return len(bytearray(512 * 1024 * 1024))
