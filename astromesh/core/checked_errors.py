"""Output rules on what ends a run: who refuses a request, or an answer, likes to quote it."""

from __future__ import annotations

from astromesh.core.guardrails import GuardrailsEngine
from astromesh.errors import ProviderError, UpstreamError

_LEFT_OUT = "what was said of it is left out by the output rules"


def check_error(rules: GuardrailsEngine, error: UpstreamError) -> None:
    """Puts what an error says under an agent's output rules; what one of them would block is left out."""
    if not rules.output_rules:
        return
    if isinstance(error, ProviderError):
        error.quote = _checked(rules, error.quote)
    error.args = (_checked(rules, str(error.args[0])), *error.args[1:]) if error.args else ()


def _checked(rules: GuardrailsEngine, text: str) -> str:
    found = rules.check_output(text)
    return _LEFT_OUT if found.blocked else found.text
