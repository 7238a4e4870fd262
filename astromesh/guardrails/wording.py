"""What `topic_filter` and `content_filter` share: keywords and patterns as options, and their rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator

from astromesh.guardrails.keywords import Keywords, checked_keyword
from astromesh.guardrails.patterns import Patterns, checked_pattern, widest_match
from astromesh.guardrails.spans import Scanner, SpanRule


def _searchable(word: str) -> str:
    checked_keyword(word)
    return word


Keyword = Annotated[str, AfterValidator(_searchable)]
Pattern = Annotated[str, AfterValidator(checked_pattern)]


def unbounded(patterns: Sequence[str]) -> bool:
    """Whether a match of one of the patterns may be so long that no stream can wait for its end."""
    return any(widest_match(pattern) is None for pattern in patterns)


def wording_rule(
    type: str,
    words: Sequence[str],
    patterns: Sequence[str],
    action: Literal["redact", "block"],
    texts: tuple[str, str],
) -> SpanRule:
    """A rule that looks for the keywords first and for the patterns in what they leave.

    Args:
        texts: what stands for a place that is redacted, and for a text that is blocked.
    """
    replacement, message = texts
    scanners: list[Scanner] = []
    if words:
        scanners.append(Keywords(words, replacement))
    if patterns:
        scanners.append(Patterns(patterns, replacement))
    return SpanRule(type, scanners, action, message)
