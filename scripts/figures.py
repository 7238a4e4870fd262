"""How every benchmark tells its figures: a line each, in the same columns; a record each for `make bench`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

#: names the file to which `show` appends a line of JSON for each figure
RECORDS = "ASTROMESH_BENCH_FIGURES"


class Figure(NamedTuple):
    """A measured value beside what bounds it.

    Args:
        part: what was measured, one word.
        name: the row; no other row of the part has it.
        limit: the same measure of the least that could be done, or None; taken in the same run.
        goal: what is aimed at, in words, or empty.
        detail: whether it is left out of the page.
    """

    part: str
    name: str
    value: float
    unit: str
    limit: float | None = None
    goal: str = ""
    detail: bool = False

    @property
    def ratio(self) -> float | None:
        """The measured value by the limit's."""
        return self.value / self.limit if self.limit else None


class Row(NamedTuple):
    """A figure over all its rounds.

    Args:
        values, limits, ratios: one of each round.
    """

    part: str
    name: str
    unit: str
    goal: str
    values: list[float]
    limits: list[float]
    ratios: list[float]
    detail: bool = False

    @classmethod
    def of(cls, figures: list[Figure]) -> Row:
        """Args: figures: those of one name, one of each round."""
        last = figures[-1]
        return cls(
            last.part,
            last.name,
            last.unit,
            last.goal,
            [one.value for one in figures],
            [one.limit for one in figures if one.limit is not None],
            [one.ratio for one in figures if one.ratio is not None],
            last.detail,
        )

    def record(self) -> dict[str, Any]:
        """As it stands in docs/benchmarks.json."""
        lists = {name: [places(n) for n in getattr(self, name)] for name in ("values", "limits", "ratios")}
        return {name: value for name, value in {**self._asdict(), **lists}.items() if value}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Row:
        return cls(**{"goal": "", "limits": [], "ratios": [], **record})

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def limit(self) -> float | None:
        return median(self.limits) if self.limits else None

    @property
    def ratio(self) -> float | None:
        """Of each round, then the median: a machine's speed changes between rounds."""
        return median(self.ratios) if self.ratios else None


_COLUMNS = "| {:<9} | {:<72} | {:>12} | {:<10} | {:>12} | {:>7} | {:<16} |"
HEAD = (
    _COLUMNS.format("part", "what", "measured", "unit", "limit", "ratio", "goal")
    + "\n|"
    + "|".join(
        "-" * n + ("-" if left else ":")
        for n, left in zip(
            (10, 73, 13, 11, 13, 8, 17), (True, True, False, True, False, False, True), strict=True
        )
    )
    + "|"
)


def show(figure: Figure) -> None:
    """Prints the figure's line, and appends its record to the file that `make bench` reads."""
    limit = "" if figure.limit is None else number(figure.limit)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    columns = (figure.part, figure.name, number(figure.value), figure.unit, limit, ratio, figure.goal)
    print(_COLUMNS.format(*columns), flush=True)
    if file := os.environ.get(RECORDS):
        with Path(file).open("a") as records:
            print(json.dumps(figure._asdict()), file=records)


def number(value: float) -> str:
    """With as many places as are worth reading."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def places(value: float) -> float:
    """With four significant digits."""
    return float(f"{value:.4g}")
