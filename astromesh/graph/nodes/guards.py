"""Guards: checks of a node's final output. One contract for all of them.

A guard is a function of `(output)` or `(output, state)`, sync or async. It passes by returning True, None or
a passed `GuardVerdict`; it fails by returning False or a failed verdict, or by raising. Anything else that is
returned is a mistake of its author and fails too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astromesh.errors import OutputRefused
from astromesh.graph.keywords import check_whole
from astromesh.graph.signature import positional_arguments

GuardMode = Literal["block", "retry", "warn"]


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """What a guard says.

    Args:
        feedback: what is wrong and how to make it right; told to the model where the guard retries.
    """

    passed: bool
    feedback: str = ""


class Guard:
    """A check with its name and what happens when it fails.

    Args:
        check: function of `(output)` or `(output, state)`.
        mode: `block` fails the node, `retry` asks the model again with the feedback and then blocks, `warn`
            lets the output through and says so in `guards_failed`.
        name: instead of the function's own.
        max_retries: further model calls of mode `retry`.
    """

    def __init__(
        self, check: Callable[..., Any], mode: GuardMode = "block", *, name: str = "", max_retries: int = 2
    ) -> None:
        if mode not in ("block", "retry", "warn"):
            raise ValueError(f"A guard's mode is block, retry or warn, not {mode!r}.")
        self.check = check
        self.mode: GuardMode = mode
        self.name = name or getattr(check, "__name__", type(check).__name__)
        check_whole(f"Guard {self.name!r}", "max_retries", max_retries, least=0)
        self.max_retries = max_retries
        self._arity = positional_arguments(check, f"Guard {self.name!r}", most=2)

    async def verdict(self, output: Any, state: Any) -> GuardVerdict:
        """What the check says; what it raises is a failed verdict."""
        try:
            said = self.check(output) if self._arity == 1 else self.check(output, state)
            if inspect.isawaitable(said):
                said = await said
        except Exception as error:  # noqa: BLE001 (a guard may be anybody's code, and a guard that breaks must not pass)
            return GuardVerdict(False, str(error) or type(error).__name__)
        if isinstance(said, GuardVerdict):
            return said
        if said is None or said is True:
            return GuardVerdict(True)
        if said is False:
            return GuardVerdict(False)
        return GuardVerdict(False, f"The guard returned {said!r}, which is neither a bool nor a verdict.")

    def __repr__(self) -> str:
        return f"Guard({self.name!r}, {self.mode!r})"


@dataclass(frozen=True, slots=True)
class Checked:
    """What all guards of a node said about one output.

    Args:
        passed, failed: names, in the guards' order.
        refused: the failed ones that do not let the output through.
        feedback: theirs, one line each.
    """

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    refused: tuple[Guard, ...] = ()
    feedback: str = ""

    def may_retry(self, tries: int) -> bool:
        """Whether asking the model again can help: every guard that refused allows one more try."""
        return all(g.mode == "retry" and tries < g.max_retries for g in self.refused)

    @property
    def error(self) -> str:
        return (
            f"refused by {', '.join(g.name for g in self.refused)}: {self.feedback}" if self.refused else ""
        )

    def refusal(self, error: str) -> OutputRefused:
        """Why a node has failed, for whoever asks what raised."""
        return OutputRefused(self.refused[0].name, error)


NOTHING_CHECKED = Checked()


def as_guards(guards: Sequence[Any]) -> tuple[Guard, ...]:
    """Guards as they are; functions as guards that block."""
    return tuple(g if isinstance(g, Guard) else Guard(g) for g in guards)


async def check_all(guards: Sequence[Guard], output: Any, state: Any) -> Checked:
    """Asks every guard, in order; all are asked even after one failed, so that the feedback is complete."""
    passed: list[str] = []
    failed: list[tuple[Guard, str]] = []
    for guard in guards:
        verdict = await guard.verdict(output, state)
        if verdict.passed:
            passed.append(guard.name)
        else:
            failed.append((guard, verdict.feedback or f"{guard.name} is not met."))
    refused = [(g, text) for g, text in failed if g.mode != "warn"]
    return Checked(
        tuple(passed),
        tuple(g.name for g, _ in failed),
        tuple(g for g, _ in refused),
        "\n".join(text for _, text in refused),
    )
