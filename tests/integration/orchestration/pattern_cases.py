"""One run of each pattern that ends well, as data: the agent, its helpers, what the model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write

TOOLS = [
    {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"},
    {"name": "explode", "type": "internal", "function": "tests.integration.sample_tools:explode"},
]
PERMITTED = {"tools": ["lookup"]}
LOOK = ToolCall("c1", "lookup", '{"query": "tea"}')
QUESTION = "What does tea cost?"
WORKERS = (
    manifest("coffee-agent", identity={"description": "Knows coffee."}, tools=TOOLS, permissions=PERMITTED),
    manifest("tea-agent", identity={"description": "Knows tea."}, tools=TOOLS, permissions=PERMITTED),
)
POOL = [
    {"name": "look", "instructions": "Look up.", "inject_tools": True},
    {"name": "end", "instructions": "Answer.", "is_terminal": True},
]


@dataclass(frozen=True)
class Case:
    """A pattern at work.

    Args:
        script: of the model, tool calls included.
        answer: the response.
        roles: who speaks in the stream.
        tool_at: position in the script of the call of a tool.
        others: agents beside `helper`.
    """

    orchestration: dict[str, Any]
    script: Sequence[Any]
    answer: str
    roles: frozenset[str]
    tool_at: int
    others: Sequence[dict[str, Any]] = ()
    spec: dict[str, Any] = field(default_factory=lambda: {"tools": TOOLS, "permissions": PERMITTED})

    def with_tool(self, call: ToolCall) -> list[Any]:
        """The script with another tool called."""
        return [*self.script[: self.tool_at], call, *self.script[self.tool_at + 1 :]]


CASES = {
    "plan_and_execute": Case(
        {"pattern": "plan_and_execute"},
        ["1. look it up\n2. convert it", LOOK, "it is 3", "it is 4 EUR", "Tea costs 4 EUR."],
        "Tea costs 4 EUR.",
        frozenset({"planner", "worker", "assistant"}),
        1,
    ),
    "parallel_fan_out": Case(
        {"pattern": "parallel_fan_out", "branches": [{"name": "one"}], "merge": "concat"},
        [LOOK, "Tea costs 3."],
        "Tea costs 3.",
        frozenset({"worker", "assistant"}),
        0,
    ),
    "pipeline": Case(
        {
            "pattern": "pipeline",
            "stages": [{"name": "find", "prompt": "Find."}, {"name": "write", "prompt": "Write."}],
        },
        [LOOK, "tea: 3", "Dear customer, 3."],
        "Dear customer, 3.",
        frozenset({"worker", "assistant"}),
        0,
    ),
    "supervisor": Case(
        {"pattern": "supervisor", "workers": ["coffee-agent", "tea-agent"]},
        [ToolCall("d1", "tea-agent", '{"task": "price of tea"}'), LOOK, "tea is 3", "Tea costs 3."],
        "Tea costs 3.",
        frozenset({"assistant"}),
        1,
        WORKERS,
        {},
    ),
    "swarm": Case(
        {"pattern": "swarm", "agents": ["coffee-agent", "tea-agent"]},
        [ToolCall("h1", "handoff_to_tea-agent", '{"message": "wants tea"}'), LOOK, "Tea costs 3."],
        "Tea costs 3.",
        frozenset({"assistant"}),
        1,
        WORKERS,
        {},
    ),
    "autonomous": Case(
        {"pattern": "autonomous", "pool": POOL},
        ['{"next_node": "look"}', LOOK, "tea: 3", '{"next_node": "end"}', "Tea costs 3."],
        "Tea costs 3.",
        frozenset({"assistant"}),
        1,
    ),
}


def runtime_for(
    folder: Path, case: Case, script: Sequence[Any], **spec: Any
) -> tuple[AgentRuntime, ScriptedProvider]:
    """A runtime with the case's agents and its model."""
    orchestration = {**case.orchestration, **spec.pop("orchestration", {})}
    provider = ScriptedProvider(*script)
    agents = (manifest(orchestration=orchestration, **{**case.spec, **spec}), *case.others)
    return runtime_of(write(folder, *agents), provider), provider


def by_words(**lines: Any) -> Callable[[Any], Any]:
    """A line of a script for calls whose order is open: the answer by words of the messages."""

    def line(request: Any) -> Any:
        text = "\n".join(message.content for message in request.messages)
        return next(answer for word, answer in lines.items() if word in text)

    return line
