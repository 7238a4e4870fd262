"""Whom a task fits best, by words: what decides where a model does not."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORD = re.compile(r"[^\W_]{3,}")
#: words that say nothing about what anybody is for
_IDLE = frozenset(
    _WORD.findall(
        "about agent all and any answer answers anything are ask asks can could did does for from get has "
        "have her him his how its may more not our out question questions she should that the their them "
        "they this use user was were what when where which who why will with would you your"
    )
)


def best_fit(task: str, candidates: Mapping[str, str]) -> str:
    """The candidate whose name and description share most words with a task; ties go to the first.

    Args:
        task: what is to be done.
        candidates: description by name, at least one.
    """
    wanted = _stems(task)
    return max(candidates, key=lambda name: len(wanted & _stems(f"{name} {candidates[name]}")))


def _stems(text: str) -> set[str]:
    """Words by their beginnings, so that `plans` and `plan`, `billed` and `billing` meet."""
    return {word.rstrip("s")[:4] for word in _WORD.findall(text.casefold()) if word not in _IDLE}
