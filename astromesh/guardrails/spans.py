"""Rules that replace places in a text, whole or as it arrives.

A scanner finds places from left to right. What it decides about a place depends on the `CONTEXT` characters
before it that are seen, each with a run of unseen ones, and on at most `max_lookahead` after it, so a stream
needs no more of the text than that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from astromesh.abc.guardrail import Action, Checked, RuleStream, Verdict
from astromesh.unseen import LONGEST_RUN, hides, seen

#: characters before a position that a scanner may look at
CONTEXT = 40
#: characters that hold as many as `CONTEXT` even if each has unseen ones before it, and the first a cut run
_LONG_CONTEXT = (CONTEXT + 1) * (LONGEST_RUN + 1)


class Finding(NamedTuple):
    """Characters `start` to `end` are to be replaced. Findings of a scan are in order and do not overlap."""

    start: int
    end: int
    replacement: str


class Scan(NamedTuple):
    """What a scanner found.

    Args:
        settled: no continuation of the text changes anything before it; no finding straddles it.
    """

    findings: Sequence[Finding]
    settled: int


NOTHING: tuple[Finding, ...] = ()


class Scanner(Protocol):
    """Finds places."""

    @property
    def max_lookahead(self) -> int | None:
        """Characters behind a place that decide about it; None where no bound is known."""

    def scan(self, text: str, start: int, final: bool) -> Scan:
        """The findings from `start` on; `final`: nothing follows, so all is settled."""


def settle(findings: Sequence[Finding], settled: int) -> Scan:
    """A scan whose settled part ends before the first finding that straddles its end."""
    for found in findings:
        if found.start < settled < found.end:
            return Scan(findings, found.start)
    return Scan(findings, settled)


def scan_seen(scan: Callable[[str, int, bool], Scan], text: str, start: int, final: bool) -> Scan:
    """What a scanner finds in what is seen of a text, as places of the text."""
    if not hides(text):
        return scan(text, start, final)
    shown, origin = seen(text)
    found, settled = scan(shown, bisect_left(origin, start), final)
    findings = [Finding(origin[f.start], origin[f.end - 1] + 1, f.replacement) for f in found]
    return Scan(findings, origin[settled] if settled < len(shown) else len(text))


def replaced(text: str, findings: Sequence[Finding], start: int, end: int) -> tuple[str, int]:
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
    """A `RuleStream` of one scanner: a window of what is not settled and a little of what was before."""

    __slots__ = ("_scanner", "_start", "_window", "count", "done")

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
        if cut and hides(window[cut:settled]):
            cut = max(settled - _LONG_CONTEXT, 0)
        self._window, self._start = window[cut:], settled - cut
        if not findings:
            return window[start:settled]
        released, count = replaced(window, findings, start, settled)
        self.count += count
        return released


class ChainStream:
    """Several streams, one after the other, as one."""

    __slots__ = ("_streams",)

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


class SpanRule:
    """A `Guardrail` that redacts what its scanners find, one scanner after the other, or blocks the text.

    Args:
        message: what stands for a blocked text.
    """

    def __init__(self, type: str, scanners: Sequence[Scanner], action: Action, message: str) -> None:
        self.type, self.action = type, action
        self._scanners, self._message = tuple(scanners), message

    @property
    def max_lookahead(self) -> int | None:
        bounds = [scanner.max_lookahead for scanner in self._scanners]
        if self.action == "block" or None in bounds:
            return None
        return sum(bound for bound in bounds if bound is not None)

    def check(self, text: str, about: Checked) -> Verdict | None:
        total = 0
        for scanner in self._scanners:
            findings = scanner.scan(text, 0, True).findings
            if findings:
                total += len(findings)
                text, _ = replaced(text, findings, 0, len(text))
        if not total:
            return None
        return Verdict(self.action, self._message if self.action == "block" else text, total)

    def stream(self, about: Checked) -> RuleStream:
        streams: list[RuleStream] = [SpanStream(scanner) for scanner in self._scanners]
        if len(streams) == 1:
            return streams[0]
        return ChainStream(streams)
