"""Runs of the reasoning controller with a model that answers by node."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astromesh.graph import PromptGraphEngine
from astromesh.graph.reasoning import ReasoningSettings, ReasoningState, reasoning_controller
from astromesh.graph.records import ExecutionReport
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, ToolCall

NODE = re.compile(r"\(node: (\w+)\)")
TASK = "Can two engineers ship the CSV import in two weeks?"
COMPLEX = {"complexity": "complex", "domain": "planning", "risk": "medium", "subgoals": ["work", "risks"]}
SIMPLE = {"complexity": "simple", "domain": "facts", "risk": "low"}
NEEDS_TOOL = {**COMPLEX, "tool_needs": ["lookup"]}
RISKY = {**COMPLEX, "risk": "high"}
STEP = {"kind": "decomposition", "step": "identify workstreams"}
LOOKUP = {"kind": "tool", "step": "look it up", "tool": "lookup", "args": {"query": "csv"}}
SURE = {"confidence": 0.9, "gaps": [], "done": False, "mismatch": False}
UNSURE = {"confidence": 0.3, "gaps": ["file size"], "done": False, "mismatch": False}
ACCEPTED = {"acceptable": True, "unsupported_claims": [], "missing_constraints": [], "clarity_issues": []}
DRAFT = "Yes, within a limited scope."
#: what the model says at each node unless a test says otherwise
USUAL: dict[str, Any] = {
    "analyze_task": COMPLEX,
    "select_reasoning_strategy": {"strategy": "decompose", "reason": "It has parts."},
    "propose_next_step": STEP,
    "execute_reasoning_step": {"summary": "Found the workstreams.", "conclusions": ["The parser exists."]},
    "evaluate_progress": SURE,
    "draft_answer": DRAFT,
    "critique_answer": ACCEPTED,
    "revise_answer": "Yes, but only for a known schema.",
}
ASKED = tuple(USUAL)


def node_of(request: CompletionRequest) -> str:
    """Which node asks."""
    return NODE.findall(request.messages[0].content)[-1]


def said(answer: Any) -> Any:
    """An answer as the provider gives it; a mapping is JSON."""
    if isinstance(answer, str | BaseException | ToolCall | Reply | CompletionResult):
        return answer
    return json.dumps(answer)


def model_of(**answers: Any) -> ScriptedProvider:
    """A model that answers by node; a tuple is one answer after another, the last one again and again."""
    lines = {**USUAL, **answers}
    counts: dict[str, int] = {}

    def answer(request: CompletionRequest) -> Any:
        node = node_of(request)
        line = lines[node]
        counts[node] = place = counts.get(node, -1) + 1
        if isinstance(line, tuple):
            line = line[min(place, len(line) - 1)]
        return said(line(request) if callable(line) else line)

    return ScriptedProvider(answer, repeat=True)


@dataclass(frozen=True)
class Done:
    """A run that ended."""

    rc: ReasoningState
    final: dict[str, Any]
    report: ExecutionReport
    model: ScriptedProvider

    @property
    def path(self) -> list[str]:
        return self.report.nodes_visited

    @property
    def asked(self) -> list[str]:
        """The nodes that asked the model, in order."""
        return [node_of(request) for request in self.model.requests]

    @property
    def end(self) -> tuple[str, str]:
        return self.final["status"], self.final["termination_reason"]

    @property
    def strategies(self) -> list[str]:
        return [entry["strategy"] for entry in self.final["strategy_history"]]

    def request(self, node: str, place: int = -1) -> CompletionRequest:
        return [request for request in self.model.requests if node_of(request) == node][place]


async def reason(
    task: Any = TASK,
    *,
    tools: Any = (),
    settings: Any = None,
    request: Any = None,
    context: dict[str, Any] | None = None,
    hooks: Sequence[Any] = (),
    model: ScriptedProvider | None = None,
    **answers: Any,
) -> Done:
    """One run; `answers` are those of `model_of`, `request` is `context.reasoning`."""
    valid = ReasoningSettings.of(settings)
    model = model or model_of(**answers)
    engine = PromptGraphEngine(
        reasoning_controller(valid), model, tools=tools, hooks=hooks, max_iterations=valid.max_iterations
    )
    given = dict(context or {})
    if request is not None:
        given["reasoning"] = request
    result = await engine.ainvoke(task, context=given)
    return Done(result.context["rc"], result.output, result.report, model)
