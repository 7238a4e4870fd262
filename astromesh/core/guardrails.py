"""The guardrails engine (document 001, steps 3 and 10): runs the rules of an agent in declared order.

Input rules pass, redact or refuse a query. Output rules pass, redact or cut an answer, or replace it by a
safe response. Each rule receives the text that the rule before it returned. A streamed answer passes a
`StreamGate`, whose pieces join to exactly the text that `check_output` returns for the whole answer.
`filter_data` and `filter_error` apply the output rules to data and errors other than the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import orjson
from msgspec import Struct
from msgspec.structs import replace

from astromesh.errors import AstromeshError, GuardrailBlocked, InvalidInput, InvalidOutput, ProviderError
from astromesh.guardrails.base import (
    AnswerRule,
    CheckContext,
    Guardrail,
    Part,
    Place,
    RetrievedPassage,
    RuleStream,
    Stage,
    Verdict,
    parts_of,
)  # fmt: skip
from astromesh.logs import get_logger
from astromesh.text import TextBuffer
from astromesh.types import JsonObject

log = get_logger("astromesh.run")
StreamMode = Literal["token", "sentence", "final"]

_INPUT = CheckContext("input")
#: characters of a sentence end, without the space behind it
_LONGEST_END = 8
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]*_]{0,6}\s|[。！？][”’」』）]?|\n")


class CheckedText(Struct, frozen=True):
    """A text as the rules return it.

    Args:
        actions: `{stage, type, action, count}` of every rule that acted, in order.
        blocked: whether a rule refused the text; then `text` is its safe response or rejection message.
    """

    text: str
    actions: tuple[JsonObject, ...] = ()
    blocked: bool = False


class GuardrailsEngine:
    """The rules of one agent.

    Args:
        input_rules, output_rules: in declared order.
    """

    def __init__(self, input_rules: Sequence[Guardrail] = (), output_rules: Sequence[Guardrail] = ()) -> None:
        self.input_rules = tuple(input_rules)
        self._rules_of: dict[Part, tuple[Guardrail, ...]] = {
            part: tuple(rule for rule in self.input_rules if part in parts_of(rule))
            for part in get_args(Part)
        }
        self.output_rules = tuple(output_rules)
        self.answer_rules = tuple(rule for rule in self.output_rules if isinstance(rule, AnswerRule))

    def check_input(self, text: str) -> CheckedText:
        """The query as the agent receives it.

        Raises:
            GuardrailBlocked: a rule refuses it; `actions` of the error lists the actions of the rules.
        """
        result = _check(self._rules_of["query"], text, _INPUT, "input")
        if result.blocked:
            raise GuardrailBlocked(result.actions[-1]["type"], result.text, result.actions)
        return result

    def check_part(self, value: Mapping[str, Any], part: Part) -> CheckedValue:
        """The context or the metadata of a request as the agent receives it: its texts change, no names.

        Raises:
            GuardrailBlocked: as of `check_input`.
        """
        rules = self._rules_of[part]
        if not (rules and value):
            return CheckedValue(value)
        actions: list[JsonObject] = []

        def checked(inner: Any, depth: int) -> Any:
            if isinstance(inner, str):
                result = _check(rules, inner, _INPUT, "input")
                actions.extend(result.actions)
                if result.blocked:
                    raise GuardrailBlocked(result.actions[-1]["type"], result.text, tuple(actions))
                return result.text
            if not isinstance(inner, dict | list):
                return inner
            if not depth:
                raise InvalidInput(f"The {part} is nested more than {_MAX_DEPTH} levels deep.")
            if isinstance(inner, list):
                return [checked(one, depth - 1) for one in inner]
            return {key: checked(one, depth - 1) for key, one in inner.items()}

        return CheckedValue(checked(dict(value), _MAX_DEPTH), tuple(actions))

    def visible_metadata(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """The metadata of a request as it may be shown and stored; none of it if a rule blocks it."""
        try:
            found: Mapping[str, Any] = self.check_part(metadata, "metadata").value
        except (GuardrailBlocked, InvalidInput):
            return {}
        return found

    def visible_tags(self, tags: tuple[str, ...]) -> tuple[str, ...]:
        """The tags of a request under the rules of its metadata."""
        return tuple(self.visible_metadata({"tags": list(tags)}).get("tags", ()))

    def check_output(
        self, text: str, *, place: Place = "output", tokens_used: int = 0, output_tokens: int = 0
    ) -> CheckedText:
        """The answer, or another text, as the output rules return it.

        Args:
            place: the kind of the text.
            tokens_used: tokens of the whole turn so far, with those of the answer if they are counted.
            output_tokens: tokens of the answer; 0: not counted.
        """
        if not self.output_rules:
            return CheckedText(text)
        return _check(self.output_rules, text, CheckContext(place, tokens_used, output_tokens), "output")

    def check_value(self, value: Any, *, tokens_used: int = 0, output_tokens: int = 0) -> CheckedValue:
        """The JSON value of a structured answer as the output rules return it.

        Rules change the texts of the value, and nothing else of it.

        Args:
            tokens_used, output_tokens: as in `check_output`.

        Raises:
            GuardrailBlocked: a rule refuses a part; the message is that of the rule.
            InvalidOutput: a rule would change a number or a key, or cut the answer.
        """
        walk = _ValueWalk(self.output_rules, CheckContext("output", tokens_used, output_tokens))
        checked = walk.check(value, _MAX_DEPTH)
        if not walk.has_texts:  # for rules that count what the turn has cost
            walk.check(orjson.dumps(value).decode(), 0)
        return CheckedValue(checked, walk.actions())

    async def check_answer(
        self, answer: str, passages: Sequence[RetrievedPassage], *, is_json: bool = False
    ) -> CheckedText:
        """The answer of a run under the rules that compare it with what the run has retrieved.

        Args:
            is_json: the texts of the JSON value are compared. It stays as it is.

        Raises:
            GuardrailBlocked: a rule blocks an answer that is JSON.
            ProviderError: a rule that blocks cannot check it.
        """
        text, actions = "\n".join(_texts(orjson.loads(answer))) if is_json else answer, list[JsonObject]()
        for rule in self.answer_rules if passages else ():
            verdict = await _answer_verdict(rule, text, passages)
            if verdict is None:
                continue
            actions.append(_action("output", rule.type, verdict.action, verdict.count))
            if verdict.action == "block" and is_json:
                raise GuardrailBlocked(rule.type, verdict.text, tuple(actions))
            if verdict.action == "block":
                return CheckedText(verdict.text, tuple(actions), blocked=True)
        return CheckedText(answer, tuple(actions))

    def filter_text(self, text: str, place: Place = "output") -> str:
        """The text as the output rules return it, for a text that is not an answer."""
        return self.check_output(text, place=place).text

    def gate(self, mode: StreamMode = "token", *, tokens_used: int = 0) -> StreamGate:
        """A gate for the deltas of one model call. Modes that a rule does not allow become `final`.

        Args:
            tokens_used: tokens of the turn before the answer, with the prompt of this call, for `cost_limit`.
        """
        if mode == "final" or any(rule.needs_whole_text for rule in self.output_rules):
            return _FinalGate(self)
        context = CheckContext("output", tokens_used)
        gate = _TokenGate(self.output_rules, context)
        return _SentenceGate(gate) if mode == "sentence" else gate


class CheckedValue(Struct, frozen=True):
    """A JSON value as the rules return it, with their actions as in `CheckedText`."""

    value: Any
    actions: tuple[JsonObject, ...] = ()


class _ValueWalk:
    """The output rules on every text of a JSON value."""

    def __init__(self, rules: Sequence[Guardrail], context: CheckContext) -> None:
        self._rules, self._context = rules, context
        self._counts: dict[tuple[str, str], int] = {}
        #: whether the value has texts or numbers
        self.has_texts = False

    def actions(self) -> tuple[JsonObject, ...]:
        return tuple(_action("output", kind, action, n) for (kind, action), n in self._counts.items())

    def check(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict | list):
            if not depth:
                raise InvalidOutput(f"The answer nests deeper than {_MAX_DEPTH} levels.")
            if isinstance(value, list):
                return [self.check(part, depth - 1) for part in value]
            return {self._fixed(k, "a key"): self.check(v, depth - 1) for k, v in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._fixed(orjson.dumps(value).decode(), "a number")
        return value

    def _text(self, text: str) -> str:
        self.has_texts = True
        checked = _check(self._rules, text, self._context, "output")
        for action in checked.actions:
            key = (action["type"], action["action"])
            self._counts[key] = self._counts.get(key, 0) + action["count"]
            if action["action"] == "truncate":
                raise InvalidOutput(
                    f"The output rule {action['type']} would cut the answer, which must be JSON."
                )
        if checked.blocked:
            blocked = checked.actions[-1]["type"]
            raise GuardrailBlocked(blocked, checked.text, self.actions())
        return checked.text

    def _fixed(self, text: str, what: str) -> str:
        """Returns a text that is no value of its own. Raises: InvalidOutput: a rule would change it."""
        if self._text(text) != text:
            raise InvalidOutput(
                f"An output rule hides {what} of the answer, which must be JSON of its schema."
            )
        return text


def _check(rules: Sequence[Guardrail], text: str, context: CheckContext, stage: Stage) -> CheckedText:
    actions: list[JsonObject] = []
    for rule in rules:
        verdict = rule.check(text, context)
        if verdict is None:
            continue
        actions.append(_action(stage, rule.type, verdict.action, verdict.count))
        text = verdict.text
        if verdict.action == "block":
            return CheckedText(text, tuple(actions), blocked=True)
    return CheckedText(text, tuple(actions))


async def _answer_verdict(
    rule: AnswerRule, answer: str, passages: Sequence[RetrievedPassage]
) -> Verdict | None:
    try:
        return await rule.check_answer(answer, passages)
    except ProviderError as error:
        if rule.needs_whole_text:
            raise
        log.warning("answer_not_checked", rule=rule.type, error=str(error))
        return None


def _texts(value: Any) -> Iterator[str]:
    """The texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _action(stage: Stage, kind: str, action: str, count: int) -> JsonObject:
    return {"stage": stage, "type": kind, "action": action, "count": count}


class StreamGate(Protocol):
    """The output rules on the deltas of one model call."""

    @property
    def done(self) -> bool:
        """Whether the gate releases nothing more, so that the model may stop."""

    @property
    def released(self) -> CheckedText:
        """The text released so far, and the actions of the rules; after `finish` the answer."""

    def feed(self, delta: str) -> str:
        """Takes a delta; returns the text that may be sent now, possibly none."""

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        """Ends the text; returns the rest.

        Args:
            tokens_used, output_tokens: as in `check_output`, for a gate that checks the whole text.
        """


class _TokenGate:
    """Releases text once no rule can change it; the stream of each rule feeds the next."""

    __slots__ = ("_rules", "_streams", "_text")

    def __init__(self, rules: Sequence[Guardrail], context: CheckContext) -> None:
        self._rules = rules
        self._streams: list[RuleStream] = [rule.stream(context) for rule in rules]
        self._text = TextBuffer()

    @property
    def done(self) -> bool:
        return any(stream.done for stream in self._streams)

    @property
    def released(self) -> CheckedText:
        actions = tuple(
            _action("output", rule.type, stream.action, stream.count)
            for rule, stream in zip(self._rules, self._streams, strict=True)
            if stream.count
        )
        return CheckedText(self._text.getvalue(), actions)

    def feed(self, delta: str) -> str:
        for stream in self._streams:
            if not delta:
                return ""
            delta = stream.feed(delta)
        if delta:
            self._text.write(delta)
        return delta

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        rest = ""
        for stream in self._streams:
            rest = stream.feed(rest) + stream.finish() if rest else stream.finish()
        self._text.write(rest)
        return rest


class _SentenceGate:
    """Releases whole sentences."""

    __slots__ = ("_gate", "_pending")

    def __init__(self, gate: StreamGate) -> None:
        self._gate, self._pending = gate, ""

    @property
    def done(self) -> bool:
        return self._gate.done

    @property
    def released(self) -> CheckedText:
        whole = self._gate.released
        return replace(whole, text=whole.text[: len(whole.text) - len(self._pending)])

    def feed(self, delta: str) -> str:
        fresh = self._gate.feed(delta)
        if not fresh:
            return ""
        text, end = self._pending + fresh, 0
        # a sentence end that this piece completes begins at most `_LONGEST_END` characters before it
        for found in _SENTENCE_END.finditer(text, max(len(self._pending) - _LONGEST_END, 0)):
            end = found.end()
        self._pending = text[end:]
        return text[:end]

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        rest = self._gate.finish()
        pending, self._pending = self._pending, ""
        return pending + rest


class _FinalGate:
    """Releases the text when it is complete."""

    __slots__ = ("_engine", "_text", "released")
    done = False

    def __init__(self, engine: GuardrailsEngine) -> None:
        self._engine = engine
        self._text = TextBuffer()
        self.released = CheckedText("")

    def feed(self, delta: str) -> str:
        self._text.write(delta)
        return ""

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        self.released = self._engine.check_output(
            self._text.getvalue(), tokens_used=tokens_used, output_tokens=output_tokens
        )
        return self.released.text


# -- data and errors ---------------------------------------------------------------------------------------

#: levels of nesting that are checked: arguments may be nested deeper than Python recurses
_MAX_DEPTH = 50
_NO_TEXTS: Mapping[str, str] = {}
_WITHHELD = "the output rules withhold the message"


def filter_data(
    rules: GuardrailsEngine,
    value: Any,
    place: Place = "output",
    *,
    checked: Mapping[str, str] = _NO_TEXTS,
    depth: int = _MAX_DEPTH,
) -> Any:
    """JSON whose texts, keys and numbers too, have passed the output rules of an agent.

    Args:
        place: the kind of the data.
        checked: texts that the rules have checked already, with the results.
        depth: levels of nesting; deeper values are omitted.
    """
    if isinstance(value, str):
        return checked[value] if value in checked else rules.filter_text(value, place)
    if isinstance(value, dict | list):
        if not depth:
            return "…"

        def part(inner: Any) -> Any:
            return filter_data(rules, inner, place, checked=checked, depth=depth - 1)

        return (
            [*map(part, value)] if isinstance(value, list) else {part(k): part(v) for k, v in value.items()}
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    text = str(value)  # a number may be a card number
    filtered = rules.filter_text(text, place)
    return value if filtered == text else filtered


def filter_error(rules: GuardrailsEngine, error: AstromeshError) -> None:
    """Applies the output rules to the message of an error, which may quote a request or an answer."""
    if not rules.output_rules:
        return
    if isinstance(error, ProviderError):
        error.quote = _filter_message(rules, error.quote)
    error.args = (_filter_message(rules, str(error.args[0])), *error.args[1:]) if error.args else ()


def _filter_message(rules: GuardrailsEngine, text: str) -> str:
    result = rules.check_output(text)
    return _WITHHELD if result.blocked else result.text
