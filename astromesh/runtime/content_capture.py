"""What models and tools are told and answer, for traces: only where `telemetry.capture_content` asks for it.

Whatever is kept has gone through the rules of its agent: what an input rule redacts and what an output rule
redacts, cuts or blocks is in no trace. Texts and calls are bounded.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from astromesh.core.guardrails import GuardrailsEngine, filter_data
from astromesh.graph.call_record import arguments_of
from astromesh.graph.scope import Scope
from astromesh.guardrails.base import CheckContext, Guardrail, Place, RuleStream, Verdict
from astromesh.telemetry.events import MODEL_CONTENT, TOOL_CONTENT
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    JsonObject,
    Message,
    ToolCall,
    ToolResult,
)

#: characters of one text, and of all messages of one call: the oldest but the first are left out beyond it
MAX_TEXT, MAX_CALL = 8_000, 64_000
#: texts of a run whose checked form is remembered: every call repeats those of the one before
_MAX_CHECKED = 500


class ContentCapture:
    """The content of one run.

    Args:
        scope: its events are where the content goes.
        rules: of its agent.
    """

    __slots__ = ("_known", "_rules", "_scope")

    def __init__(self, scope: Scope, rules: GuardrailsEngine) -> None:
        self._scope = scope
        self._rules = GuardrailsEngine((), (*map(_Redaction, rules.input_rules), *rules.output_rules))
        self._known: dict[tuple[str, Place], str] = {}

    def model(self, step: int, request: CompletionRequest, result: CompletionResult | None) -> None:
        tools = frozenset(spec.name for spec in request.tools)
        shown = [self._message(message, tools) for message in request.messages]
        kept = _newest_that_fit(shown)
        data: JsonObject = {"step": step, "input": kept, "left_out": len(shown) - len(kept)}
        if result is not None:
            said = self._message(Message("assistant", result.content, tool_calls=result.tool_calls), tools)
            data["output"] = [{**said, "finish_reason": result.finish_reason}]
        self._scope.events.emit(MODEL_CONTENT, **data)

    def tool(self, call: ToolCall, result: ToolResult) -> None:
        told, said = self._arguments(call), self.text(result.content, "tool_result")
        self._scope.events.emit(TOOL_CONTENT, id=call.id, arguments=told, result=said)

    def _message(self, message: Message, tools: AbstractSet[str]) -> JsonObject:
        """`tools`: the names that there are; any other one is a text of the model's own."""
        place: Place = "tool_result" if message.role == "tool" else "output"
        shown: JsonObject = {"role": message.role, "content": self.text(message.content, place)}
        if message.tool_calls:
            shown["tool_calls"] = [
                {
                    "id": call.id,
                    "name": call.name if call.name in tools else self.text(call.name),
                    "arguments": self._arguments(call),
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            shown["tool_call_id"] = message.tool_call_id
        return shown

    def _arguments(self, call: ToolCall) -> object:
        """As data; too long ones as text that is cut."""
        if len(call.arguments) > MAX_TEXT:
            return self.text(call.arguments, "tool_argument")
        return filter_data(self._rules, arguments_of(call), "tool_argument")

    def text(self, text: str, place: Place = "output") -> str:
        """Checked as a whole, then cut: what is cut may be what tells a rule that there is a secret."""
        found = self._known.get((text, place))
        if found is None:
            found = _cut(self._rules.filter_text(text, place))
            if len(self._known) < _MAX_CHECKED:
                self._known[text, place] = found
        return found


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
    """The first message and the newest ones that there is room for."""
    if not messages:
        return []
    first, *rest = messages
    room, kept = MAX_CALL - _size(first), list[JsonObject]()
    for message in reversed(rest):
        room -= _size(message)
        if room < 0:
            break
        kept.append(message)
    return [first, *reversed(kept)]


def _size(message: JsonObject) -> int:
    return len(message["content"]) + sum(len(str(part)) for part in message.get("tool_calls", ()))
