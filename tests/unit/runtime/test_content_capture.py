"""Content in traces has passed the rules, each text with the place that it has."""

from __future__ import annotations

from typing import Any

from astromesh.core.guardrails import GuardrailsEngine
from astromesh.graph.scope import Scope
from astromesh.guardrails.base import CheckContext, Rule, Verdict
from astromesh.runtime.content_capture import ContentCapture
from astromesh.types import CompletionRequest, Message, ToolCall, ToolResult


class ShowPlaces(Rule):
    type = "show_places"

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        return Verdict("redact", f"{context.place}: {text}")


class RefuseAll(Rule):
    type = "refuse_all"

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        return Verdict("block", "refused")


class Events:
    streaming = False

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []

    def emit(self, type: str, /, **data: Any) -> None:
        self.data.append(data)


def capture(rules: GuardrailsEngine) -> tuple[ContentCapture, Events]:
    events = Events()
    return ContentCapture(Scope("r1", events=events), rules), events


def test_a_rule_knows_arguments_and_results_of_tools_from_answers() -> None:
    content, events = capture(GuardrailsEngine((), [ShowPlaces()]))
    call = ToolCall("c1", "search", '{"q": "x"}')
    content.tool(call, ToolResult("c1", "search", "found"))
    request = CompletionRequest((Message("user", "hi"), Message("tool", "found", tool_call_id="c1")))
    content.model(1, request, None)
    assert events.data[0]["arguments"] == {"tool_argument: q": "tool_argument: x"}
    assert events.data[0]["result"] == "tool_result: found"
    assert [message["content"] for message in events.data[1]["input"]] == ["output: hi", "tool_result: found"]


def test_input_rules_redact_content_and_refuse_none() -> None:
    content, _ = capture(GuardrailsEngine([ShowPlaces(), RefuseAll()]))
    assert content.text("hi") == "output: hi"
