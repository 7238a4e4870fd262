"""Requests and answers of models and tools in traces, if `telemetry.capture_content` is set.

All content goes through the rules of its agent: what an input rule redacts, or an output rule redacts, cuts
or blocks, is in no trace. Texts and calls are bounded.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from astromesh.core.guardrails import GuardrailsEngine, filter_data
from astromesh.durable.recording import Redactor
from astromesh.graph.call_record import arguments_of
from astromesh.graph.model_output import without_thinking
from astromesh.graph.scope import Scope
from astromesh.guardrails.base import CheckContext, Guardrail, Place, RuleStream, Verdict
from astromesh.logs import get_logger
from astromesh.runtime.agent import Agent
from astromesh.telemetry.events import MODEL_CONTENT, TOOL_CONTENT
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    JsonObject,
    Message,
    ToolCall,
    ToolResult,
)

#: what is shown of a text whose rules cannot be asked
HIDDEN = "[REDACTED]"
#: characters of one text, and of all messages of one call: beyond it the oldest but the first are left out
MAX_TEXT, MAX_CALL = 8_000, 64_000
#: checked texts of a run that are cached: every call repeats those of the call before
_MAX_CHECKED = 500
log = get_logger("astromesh.runs")


class ContentCapture:
    """Emits the content of one run as events.

    Args:
        scope: The scope of the run.
        rules: The guardrails of its agent.
    """

    __slots__ = ("_known", "_rules", "_scope")

    def __init__(self, scope: Scope, rules: GuardrailsEngine) -> None:
        self._scope = scope
        self._rules = GuardrailsEngine((), (*map(_Redaction, rules.input_rules), *rules.output_rules))
        self._known: dict[tuple[str, Place], str] = {}

    def model(self, step: int, request: CompletionRequest, result: CompletionResult | None) -> None:
        tools = frozenset(spec.name for spec in request.tools)
        messages = [self._message(message, tools) for message in request.messages]
        fitting = _newest_that_fit(messages)
        data: JsonObject = {"step": step, "input": fitting, "left_out": len(messages) - len(fitting)}
        if result is not None:
            answer = self._message(Message("assistant", result.content, tool_calls=result.tool_calls), tools)
            data["output"] = [{**answer, "finish_reason": result.finish_reason}]
        self._scope.events.emit(MODEL_CONTENT, **data)

    def tool(self, call: ToolCall, result: ToolResult) -> None:
        arguments, text = self._arguments(call), self.text(result.content, "tool_result")
        self._scope.events.emit(TOOL_CONTENT, id=call.id, arguments=arguments, result=text)

    def _message(self, message: Message, tools: AbstractSet[str]) -> JsonObject:
        """`tools`: the names of the tools; any other name is text that the model made up."""
        place: Place = "tool_result" if message.role == "tool" else "output"
        fields: JsonObject = {"role": message.role, "content": self.text(message.content, place)}
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id,
                    "name": call.name if call.name in tools else self.text(call.name),
                    "arguments": self._arguments(call),
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            fields["tool_call_id"] = message.tool_call_id
        return fields

    def _arguments(self, call: ToolCall) -> object:
        """Returns arguments as data, or as truncated text if they are long."""
        if len(call.arguments) > MAX_TEXT:
            return self.text(call.arguments, "tool_argument")
        return filter_data(self._rules, arguments_of(call), "tool_argument")

    def text(self, text: str, place: Place = "output") -> str:
        """Checks a text, then truncates it: the end may be what a rule recognises a secret by."""
        found = self._known.get((text, place))
        if found is None:
            found = _cut(self._rules.filter_text(text, place))
            if len(self._known) < _MAX_CHECKED:
                self._known[text, place] = found
        return found


def redactor_of(agent: Agent) -> Redactor | None:
    """Returns what the steps of an agent's runs pass before they are stored for good. None: they stay.

    It is the output rules. The reasoning controller hides the thinking of its models besides.
    """
    rules, hides_thinking = agent.guardrails, agent.pattern_name == "reasoning"
    if not (rules.output_rules or hides_thinking):
        return None

    def redact(value: Any, place: Place) -> Any:
        if hides_thinking and place == "output" and isinstance(value, str):
            value = without_thinking(value)
        try:
            return filter_data(rules, value, place) if rules.output_rules else value
        except Exception:  # a rule raised: what it has not checked is not shown
            log.exception("text_not_checked", agent=agent.name)
            return HIDDEN

    return redact


class _Redaction:
    """An input rule that redacts as it always does, and lets pass what it would refuse."""

    needs_whole_text = True

    def __init__(self, rule: Guardrail) -> None:
        self._rule, self.type = rule, rule.type

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        verdict = self._rule.check(text, context)
        return verdict if verdict is not None and verdict.action == "redact" else None

    def stream(self, context: CheckContext) -> RuleStream:
        raise NotImplementedError(f"{self.type} checks whole texts here.")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [cut: {len(text)} characters]"


def _newest_that_fit(messages: list[JsonObject]) -> list[JsonObject]:
    """Returns the first message, and the newest ones that fit."""
    if not messages:
        return []
    first, *rest = messages
    room, fitting = MAX_CALL - _size(first), list[JsonObject]()
    for message in reversed(rest):
        room -= _size(message)
        if room < 0:
            break
        fitting.append(message)
    return [first, *reversed(fitting)]


def _size(message: JsonObject) -> int:
    return len(message["content"]) + sum(len(str(part)) for part in message.get("tool_calls", ()))
