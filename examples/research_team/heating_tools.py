"""What the accountant calculates with."""

from __future__ import annotations


def total_cost(purchase: float, per_year: float, years: int) -> float:
    """What a heating costs altogether, in euros.

    Args:
        purchase: the price of the heating with its installation.
        per_year: the cost of one year.
        years: how many years.
    """
    return purchase + per_year * years
