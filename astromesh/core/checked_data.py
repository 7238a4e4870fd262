"""Output rules on data that leaves beside an answer: a pattern's metadata, arguments of tools in events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.core.guardrails import GuardrailsEngine

_NONE: Mapping[str, str] = {}
#: levels of nesting that are shown: arguments may be nested deeper than Python recurses
_LEVELS = 50


def checked_data(
    rules: GuardrailsEngine, value: Any, released: Mapping[str, str] = _NONE, levels: int = _LEVELS
) -> Any:
    """JSON with each text of it, keys and numbers too, under the output rules of an agent.

    Args:
        released: texts that the rules have seen already, and what they made of them.
        levels: of nesting; what lies deeper is left out.
    """
    if isinstance(value, str):
        return released[value] if value in released else rules.check_output(value).text
    if isinstance(value, dict | list):
        return _checked_parts(rules, value, released, levels - 1) if levels else "…"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    said = str(value)  # a card number is one, whether somebody wrote it as text or not
    found = rules.check_output(said).text
    return value if found == said else found


def _checked_parts(
    rules: GuardrailsEngine, parts: dict[Any, Any] | list[Any], released: Mapping[str, str], levels: int
) -> Any:
    def checked(value: Any) -> Any:
        return checked_data(rules, value, released, levels)

    if isinstance(parts, list):
        return [checked(part) for part in parts]
    return {checked(key): checked(part) for key, part in parts.items()}
