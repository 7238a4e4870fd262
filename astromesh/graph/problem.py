"""What is wrong with a graph: a sentence that knows where in the graph its matter stands."""

from __future__ import annotations

from typing import Any, Self

#: the way into a graph: keys and positions as in its plain form; nodes of a list by position or by name
At = tuple[str | int, ...]


class Problem(str):
    """A sentence. `at` is where its matter stands; `words` say it without that place."""

    __slots__ = ("at", "words")

    at: At
    words: str

    def __new__(cls, text: str, at: At = (), words: str = "") -> Self:
        made = super().__new__(cls, text)
        made.at, made.words = at, words or text
        return made

    def within(self, prefix: str, *at: str | int) -> Problem:
        """The same seen from outside."""
        return Problem(f"{prefix}: {self}", (*at, *self.at), self.words)


def within(problem: str, prefix: str, *at: str | int) -> Problem:
    """A problem of a part, as one of the whole; a plain sentence stands at the part itself."""
    made = problem if isinstance(problem, Problem) else Problem(problem)
    return made.within(prefix, *at)


def steps_in(data: Any, at: At, lists: frozenset[str]) -> At:
    """Where a problem stands in the plain form of a graph; what leads nowhere there is left out.

    Args:
        data: the plain form.
        lists: keys whose values are nodes: of those a node may be named without the key.
    """
    steps: list[str | int] = []
    for step in at:
        found = _step(data, step, lists)
        for key in found:
            data = data[key]
        steps += found
    return tuple(steps)


def _step(data: Any, step: str | int, lists: frozenset[str]) -> At:
    if isinstance(data, dict):
        if step in data:
            return (step,)
        for key in lists & data.keys():
            if isinstance(data[key], dict) and data[key].get("name") == step:
                return (key,)
            if isinstance(data[key], list) and (below := _step(data[key], step, lists)):
                return (key, *below)
    elif isinstance(data, list):
        if isinstance(step, int):
            return (step,) if step < len(data) else ()
        for index, item in enumerate(data):
            if isinstance(item, dict) and item.get("name") == step:
                return (index,)
    return ()
