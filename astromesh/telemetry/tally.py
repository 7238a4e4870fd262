"""What a process counts of its runs: plain numbers, a tenth of a microsecond each, that can be added up.

Several workers of one server write theirs to files, and whoever is scraped adds them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Self

from astromesh.types import JsonObject

#: upper bounds in seconds
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BOUNDS = (*(str(b) for b in BUCKETS), "+Inf")
#: parts the labels of a key in JSON; no label holds it
_SEPARATOR = "\x1f"


class Durations:
    """A histogram of seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the exposition format wants them."""
        seen, found = 0, []
        for bound, count in zip(_BOUNDS, self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found

    def add(self, counts: list[int], total: float) -> None:
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.total += total


#: labels, in the order in which a metric names them
Labels = tuple[str, ...]
#: what is not there yet begins at nothing; half the cost of `Counter`, whose `+=` goes through Python
Counts = defaultdict[Labels, float]
Histogram = defaultdict[Labels, Durations]


class Tally:
    """Counters and histograms by name and labels."""

    __slots__ = ("counts", "durations")

    def __init__(self) -> None:
        self.counts: dict[str, Counts] = {}
        self.durations: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counts:
        """The counter of a name; keep it, so that counting costs one addition."""
        return self.counts.setdefault(name, Counts(int))

    def histogram(self, name: str) -> Histogram:
        return self.durations.setdefault(name, Histogram(Durations))

    def to_json(self) -> JsonObject:
        return {
            "counts": {
                name: {_SEPARATOR.join(labels): n for labels, n in counter.items()}
                for name, counter in self.counts.items()
            },
            "durations": {
                name: {_SEPARATOR.join(labels): [d.counts, d.total] for labels, d in found.items()}
                for name, found in self.durations.items()
            },
        }

    def add(self, told: JsonObject) -> Self:
        """Adds what `to_json` of another one has told."""
        for name, counts in told["counts"].items():
            counter = self.counter(name)
            for key, count in counts.items():
                counter[_labels(key)] += count
        for name, durations in told["durations"].items():
            histogram = self.histogram(name)
            for key, (counts, total) in durations.items():
                histogram[_labels(key)].add(counts, total)
        return self


def _labels(key: str) -> Labels:
    return tuple(key.split(_SEPARATOR))
