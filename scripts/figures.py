"""How every benchmark prints its figures: a line each, in the same columns, so that they make one table."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """A measured value beside what bounds it.

    Args:
        part: what was measured, one word.
        name: the row.
        limit: the same measure of the least that could be done, or None; taken in the same run.
        goal: what was aimed at, in words, or empty.
    """

    part: str
    name: str
    value: float
    unit: str
    limit: float | None = None
    goal: str = ""


_COLUMNS = "| {:<9} | {:<52} | {:>12} | {:<10} | {:>12} | {:>7} | {:<16} |"
HEAD = (
    _COLUMNS.format("part", "what", "measured", "unit", "limit", "ratio", "goal")
    + "\n|"
    + "|".join(
        "-" * n + ("-" if left else ":")
        for n, left in zip(
            (10 + 0, 53, 13, 11, 13, 8, 17), (True, True, False, True, False, False, True), strict=True
        )
    )
    + "|"
)


def show(figure: Figure) -> None:
    """Prints the figure's line; the ratio is the measured value by the limit's."""
    limit = "" if figure.limit is None else number(figure.limit)
    ratio = f"{figure.value / figure.limit:.2f}" if figure.limit else ""
    columns = (figure.part, figure.name, number(figure.value), figure.unit, limit, ratio, figure.goal)
    print(_COLUMNS.format(*columns), flush=True)


def number(value: float) -> str:
    """With as many places as are worth reading."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
