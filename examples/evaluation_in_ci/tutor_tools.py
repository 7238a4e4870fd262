"""What the tutor calculates with."""

from __future__ import annotations

from typing import Literal


def calculate(a: float, operation: Literal["plus", "minus", "times", "divided by"], b: float) -> float:
    """Calculates with two numbers."""
    if operation == "plus":
        return a + b
    if operation == "minus":
        return a - b
    return a * b if operation == "times" else a / b
