"""The prebuilt graph of most agents, without the imports that the others need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes import PromptNode


def react(
    instructions: str = "",
    *,
    tools: Sequence[Any] | None = None,
    max_iterations: int | None = None,
    input_keys: Sequence[str] = (),
    role: str = "",
    name: str = "react",
) -> PromptGraph:
    """One model that calls tools until it answers.

    Args:
        instructions: The system prompt. Empty leaves the one in the messages as it is.
        tools: The default is all tools of the engine.
        max_iterations: Model calls. The default are the engine's limits.
        input_keys: Names in the context that it reads.
        role: The role in which it asks. The default is `assistant`.
        name: The name of the graph.
    """
    node = PromptNode(
        "react",
        role=role,
        instructions=instructions,
        tools=tools or (),
        inject_tools=tools is None,
        input_keys=input_keys,
        max_iterations=max_iterations,
        is_entry=True,
        is_terminal=True,
        routing="edges_only",  # the answer is for the reader and leaves unchanged
    )
    return PromptGraph(name, nodes=[node])
