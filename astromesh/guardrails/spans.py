"""Rules that replace places in a text, whole or streamed.

A scanner finds places from left to right. Its decision about a place depends on the `CONTEXT` visible
characters before it, each with a run of invisible ones, and on at most `max_lookahead` characters after
it. A stream holds no more of the text than that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

from pydantic import Field

from astromesh.guardrails.base import Action, CheckContext, Part, Rule, RuleStream, Verdict
from astromesh.text import LONGEST_INVISIBLE_RUN, has_invisible, visible_text

#: characters before a position that a scanner may look at
CONTEXT = 40
#: characters that hold `CONTEXT` visible ones even if each has invisible ones before it
_LONG_CONTEXT = (CONTEXT + 1) * (LONGEST_INVISIBLE_RUN + 1)


class Finding(NamedTuple):
    """Characters `start` to `end` are to be replaced. Findings of a scan are in order and do not overlap."""

    start: int
    end: int
    replacement: str


class Scan(NamedTuple):
    """The findings of a scanner.

    Args:
        settled: no continuation of the text changes anything before this position; no finding straddles it.
    """

    findings: Sequence[Finding]
    settled: int


NOTHING: tuple[Finding, ...] = ()


class Scanner(Protocol):
    """Finds places."""

    @property
    def max_lookahead(self) -> int | None:
        """Characters behind a place that decide about it; None: no bound is known."""

    def scan(self, text: str, start: int, final: bool) -> Scan:
        """The findings from `start` on; `final`: the text is complete, so all of it is settled."""


def settle(findings: Sequence[Finding], settled: int) -> Scan:
    """A scan whose settled part ends before the first finding that straddles its end."""
    for found in findings:
        if found.start < settled < found.end:
            return Scan(findings, found.start)
    return Scan(findings, settled)


def scan_visible(scan: Callable[[str, int, bool], Scan], text: str, start: int, final: bool) -> Scan:
    """The findings of a scanner in the visible part of a text, as places of the text."""
    if not has_invisible(text):
        return scan(text, start, final)
    visible, origin = visible_text(text)
    found, settled = scan(visible, bisect_left(origin, start), final)
    findings = [Finding(origin[f.start], origin[f.end - 1] + 1, f.replacement) for f in found]
    return Scan(findings, origin[settled] if settled < len(visible) else len(text))


def replace_findings(text: str, findings: Sequence[Finding], start: int, end: int) -> tuple[str, int]:
    """The text from `start` to `end` with the findings in it replaced, and how many they were."""
    parts: list[str] = []
    at, count = start, 0
    for found in findings:
        if found.end > end:
            break
        parts += (text[at : found.start], found.replacement)
        at, count = found.end, count + 1
    parts.append(text[at:end])
    return "".join(parts), count


class SpanStream:
    """A `RuleStream` of one scanner: its window holds the unsettled text and `CONTEXT` before it."""

    __slots__ = ("_scanner", "_start", "_window", "count", "done")
    action: Action = "redact"

    def __init__(self, scanner: Scanner) -> None:
        self.count, self.done = 0, False
        self._scanner, self._window, self._start = scanner, "", 0

    def feed(self, text: str) -> str:
        return self._advance(self._window + text, False)

    def finish(self) -> str:
        return self._advance(self._window, True)

    def _advance(self, window: str, final: bool) -> str:
        start = self._start
        findings, settled = self._scanner.scan(window, start, final)
        if settled <= start:
            self._window = window
            return ""
        cut = settled - CONTEXT if settled > CONTEXT else 0
        if cut and has_invisible(window[cut:settled]):
            cut = max(settled - _LONG_CONTEXT, 0)
        self._window, self._start = window[cut:], settled - cut
        if not findings:
            return window[start:settled]
        released, count = replace_findings(window, findings, start, settled)
        self.count += count
        return released


class ChainStream:
    """Several streams, one after the other, as one."""

    __slots__ = ("_streams",)
    action: Action = "redact"

    def __init__(self, streams: Sequence[RuleStream]) -> None:
        self._streams = streams

    @property
    def done(self) -> bool:
        return any(stream.done for stream in self._streams)

    @property
    def count(self) -> int:
        return sum(stream.count for stream in self._streams)

    def feed(self, text: str) -> str:
        for stream in self._streams:
            text = stream.feed(text)
        return text

    def finish(self) -> str:
        rest = ""
        for stream in self._streams:
            rest = stream.feed(rest) + stream.finish()
        return rest


class SpanRule(Rule):
    """A rule that redacts what its scanners find, one scanner after the other, or blocks the text.

    Define `scanners`, and `refusal`, the text that replaces a blocked one.
    """

    default_parts: ClassVar[tuple[Part, ...]] = ("query", "context", "metadata")

    action: Literal["redact", "block"] = Field(
        "redact", description="Replace the places that were found, or refuse the whole text."
    )

    @property
    def scanners(self) -> Sequence[Scanner]:
        raise NotImplementedError

    @property
    def refusal(self) -> str:
        raise NotImplementedError

    @property
    def needs_whole_text(self) -> bool:
        return self.action == "block" or any(scanner.max_lookahead is None for scanner in self.scanners)

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        total = 0
        for scanner in self.scanners:
            findings = scanner.scan(text, 0, True).findings
            if findings:
                total += len(findings)
                text, _ = replace_findings(text, findings, 0, len(text))
        if not total:
            return None
        return Verdict(self.action, self.refusal if self.action == "block" else text, total)

    def stream(self, context: CheckContext) -> RuleStream:
        streams: list[RuleStream] = [SpanStream(scanner) for scanner in self.scanners]
        return streams[0] if len(streams) == 1 else ChainStream(streams)
