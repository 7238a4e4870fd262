"""Steps 3 and 10: the rules of an agent, in the order in which the YAML declares them.

Input rules let a query pass, redact it, or refuse it. Output rules let an answer pass, redact or cut it, or
put a safe response in its place. Each rule gets what the one before left. An answer that streams goes through
a `StreamGate`, whose pieces join to exactly what `check_output` makes of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from astromesh.abc.guardrail import Checked, Guardrail, RuleStream, Stage
from astromesh.errors import GuardrailBlocked
from astromesh.growing import GrowingText
from astromesh.quick import quick
from astromesh.types import JsonObject

StreamMode = Literal["token", "sentence", "final"]

_INPUT = Checked("input")
#: characters of a sentence end, the space behind it not counted
_LONGEST_END = 8
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]*_]{0,6}\s|[。！？][”’」』）]?|\n")


@quick
@dataclass(frozen=True, slots=True)
class Admitted:
    """What step 3 lets in.

    Args:
        actions: `{stage, type, action, count}` of every rule that did something, in order.
    """

    text: str
    actions: tuple[JsonObject, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Released:
    """What step 10 lets out.

    Args:
        blocked: a rule refused the answer; the text is its safe response.
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
        self.output_rules = tuple(output_rules)

    @property
    def unstreamable(self) -> tuple[str, ...]:
        """Types of the output rules that need the whole answer; with one the agent streams as `final`."""
        return tuple(rule.type for rule in self.output_rules if rule.max_lookahead is None)

    @property
    def max_lookahead(self) -> int | None:
        """Most characters that a token stream holds back, or None."""
        return None if self.unstreamable else sum(rule.max_lookahead or 0 for rule in self.output_rules)

    def check_input(self, text: str) -> Admitted:
        """The query as it goes on.

        Raises:
            GuardrailBlocked: a rule refuses it; `actions` of the error holds what the rules did.
        """
        actions: list[JsonObject] = []
        for rule in self.input_rules:
            verdict = rule.check(text, _INPUT)
            if verdict is None:
                continue
            actions.append(_action("input", rule.type, verdict.action, verdict.count))
            if verdict.action == "block":
                raise GuardrailBlocked(rule.type, verdict.text, actions)
            text = verdict.text
        return Admitted(text, tuple(actions))

    def check_output(self, text: str, *, tokens_used: int = 0, output_tokens: int = 0) -> Released:
        """The answer as it leaves.

        Args:
            tokens_used: of the whole turn so far, those of the answer included where they are counted.
            output_tokens: those of the answer; 0: nobody has counted them.
        """
        if not self.output_rules:
            return Released(text)
        about = Checked("output", tokens_used, output_tokens)
        actions: list[JsonObject] = []
        for rule in self.output_rules:
            verdict = rule.check(text, about)
            if verdict is None:
                continue
            actions.append(_action("output", rule.type, verdict.action, verdict.count))
            text = verdict.text
            if verdict.action == "block":
                return Released(text, tuple(actions), True)
        return Released(text, tuple(actions))

    def shown(self, text: str) -> str:
        """What the output rules leave of a text that is no answer."""
        return self.check_output(text).text

    def gate(self, mode: StreamMode = "token", *, tokens_used: int = 0) -> StreamGate:
        """A gate for the deltas of one model call. Modes that a rule does not allow become `final`.

        Args:
            tokens_used: of the turn before the answer, this call's prompt included, for `cost_limit`.
        """
        if mode == "final" or self.unstreamable:
            return _FinalGate(self)
        about = Checked("output", tokens_used)
        gate: StreamGate = _TokenGate(self.output_rules, about) if self.output_rules else _OpenGate()
        return _SentenceGate(gate) if mode == "sentence" else gate


def _action(stage: Stage, kind: str, action: str, count: int) -> JsonObject:
    return {"stage": stage, "type": kind, "action": action, "count": count}


class StreamGate(Protocol):
    """What a model's deltas go through; one per model call."""

    @property
    def done(self) -> bool:
        """Nothing that follows will be released: the model may stop."""

    @property
    def released(self) -> Released:
        """What left so far, and what the rules did for it; the answer once `finish` was called."""

    def feed(self, delta: str) -> str:
        """Takes a delta; answers the text that may leave now, possibly none."""

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        """Says that the text is over; answers the rest that leaves.

        Args:
            tokens_used, output_tokens: as in `check_output`, for a gate that releases the whole at the end.
        """


class _OpenGate:
    """No rules: everything leaves at once."""

    __slots__ = ("_said",)
    done = False

    def __init__(self) -> None:
        self._said = GrowingText()

    @property
    def released(self) -> Released:
        return Released(self._said.getvalue())

    def feed(self, delta: str) -> str:
        self._said.write(delta)
        return delta

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        return ""


class _TokenGate:
    """Text leaves as soon as no rule can change it any more; each rule's stream feeds the next one's."""

    __slots__ = ("_rules", "_said", "_streams")

    def __init__(self, rules: Sequence[Guardrail], about: Checked) -> None:
        self._rules = rules
        self._streams: list[RuleStream] = [rule.stream(about) for rule in rules]
        self._said = GrowingText()

    @property
    def done(self) -> bool:
        return any(stream.done for stream in self._streams)

    @property
    def released(self) -> Released:
        actions = tuple(
            _action("output", rule.type, rule.action, stream.count)
            for rule, stream in zip(self._rules, self._streams, strict=True)
            if stream.count
        )
        return Released(self._said.getvalue(), actions)

    def feed(self, delta: str) -> str:
        for stream in self._streams:
            if not delta:
                return ""
            delta = stream.feed(delta)
        if delta:
            self._said.write(delta)
        return delta

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        rest = ""
        for stream in self._streams:
            rest = stream.feed(rest) + stream.finish() if rest else stream.finish()
        self._said.write(rest)
        return rest


class _SentenceGate:
    """Text leaves in whole sentences."""

    __slots__ = ("_gate", "_held")

    def __init__(self, gate: StreamGate) -> None:
        self._gate, self._held = gate, ""

    @property
    def done(self) -> bool:
        return self._gate.done

    @property
    def released(self) -> Released:
        whole = self._gate.released
        return replace(whole, text=whole.text[: len(whole.text) - len(self._held)])

    def feed(self, delta: str) -> str:
        fresh = self._gate.feed(delta)
        if not fresh:
            return ""
        held, end = self._held + fresh, 0
        # an end that this piece completes begins at most a few characters before the piece
        for found in _SENTENCE_END.finditer(held, max(len(self._held) - _LONGEST_END, 0)):
            end = found.end()
        self._held = held[end:]
        return held[:end]

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        rest = self._gate.finish()
        held, self._held = self._held, ""
        return held + rest


class _FinalGate:
    """Text leaves when it is whole."""

    __slots__ = ("_engine", "_said", "released")
    done = False

    def __init__(self, engine: GuardrailsEngine) -> None:
        self._engine = engine
        self._said = GrowingText()
        self.released = Released("")

    def feed(self, delta: str) -> str:
        self._said.write(delta)
        return ""

    def finish(self, *, tokens_used: int = 0, output_tokens: int = 0) -> str:
        self.released = self._engine.check_output(
            self._said.getvalue(), tokens_used=tokens_used, output_tokens=output_tokens
        )
        return self.released.text
