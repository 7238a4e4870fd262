"""What can be known of a workflow before it runs (workflow.md section 3, static). Pure.

Computed on the stages reachable from one start, because several starts may share stages (E12). Sets are
integers, one bit per stage in topological order, so that workflows of thousands of stages cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Ways = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Analysis:
    """One start's part of a workflow.

    Args:
        order: the stages in topological order, the start first.
        reach: stage → those behind it, without itself.
        dom: stage → its dominators, itself included.
        idom: stage → its immediate dominator; the start has none.
        pdom: stage → its post-dominators, itself included.
    """

    order: tuple[str, ...]
    reach: Mapping[str, frozenset[str]] = field(repr=False)
    dom: Mapping[str, frozenset[str]] = field(repr=False)
    idom: Mapping[str, str] = field(repr=False)
    pdom: Mapping[str, frozenset[str]] = field(repr=False)

    def is_closing(self, merge: str) -> bool:
        """Whether every way from the merge's anchor leads through it."""
        return merge in self.pdom[self.idom[merge]]

    def recombiners(self, fork: str, merges: Iterable[str]) -> frozenset[str]:
        """Merges reachable from a fork whose anchor is the fork or dominates it."""
        return frozenset(m for m in merges if m in self.reach[fork] and self.idom[m] in self.dom[fork])

    def open_at(self, stage: str, merges: Iterable[str]) -> tuple[str, ...]:
        """Merges that a token at this stage can still reach, and whose anchor it has behind it (R3)."""
        behind = self.dom[stage] - {stage}
        return tuple(m for m in merges if m in self.reach[stage] and self.idom[m] in behind)


def find_cycle(ways: Ways) -> tuple[str, ...]:
    """A cycle as the stages along it, the first one again at the end; empty where there is none."""
    done: set[str] = set()
    for root in ways:
        if root in done:
            continue
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            stage, leaving = stack.pop()
            if leaving:
                path.pop()
                on_path.discard(stage)
                done.add(stage)
            elif stage in on_path:
                return (*path[path.index(stage) :], stage)
            elif stage not in done:
                path.append(stage)
                on_path.add(stage)
                stack.append((stage, True))
                stack.extend((after, False) for after in reversed(ways.get(stage, ())))
    return ()


def reachable(ways: Ways, starts: Iterable[str]) -> set[str]:
    """Everything that can be reached from any of these, themselves included."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        stage = waiting.pop()
        if stage not in seen:
            seen.add(stage)
            waiting.extend(ways.get(stage, ()))
    return seen


def components(stages: Iterable[str], ways: Ways) -> list[set[str]]:
    """Weakly connected components, in the order of their first stage."""
    both: dict[str, list[str]] = {stage: [] for stage in stages}
    for stage, after in ways.items():
        for other in after:
            both[stage].append(other)
            both[other].append(stage)
    found: list[set[str]] = []
    seen: set[str] = set()
    for stage in both:
        if stage not in seen:
            found.append(reachable(both, [stage]))
            seen |= found[-1]
    return found


def analyse(ways: Ways, start: str) -> Analysis:
    """Analyses what one start reaches.

    Args:
        ways: stage → the stages that its edges lead to; without a cycle.
        start: one of them.
    """
    order = _topological(ways, start)
    bit = {stage: 1 << i for i, stage in enumerate(order)}
    before: dict[str, list[str]] = {stage: [] for stage in order}
    for stage in order:
        for after in ways.get(stage, ()):
            before[after].append(stage)
    reach = _reach(order, ways, bit)
    dom = _meet(order, before, bit)
    pdom = _meet(tuple(reversed(order)), {s: list(ways.get(s, ())) for s in order}, bit)
    return Analysis(
        order,
        {s: _names(reach[s], order) for s in order},
        {s: _names(dom[s], order) for s in order},
        # dominators of a stage form a chain, and the topological order is theirs too
        {s: order[(dom[s] & ~bit[s]).bit_length() - 1] for s in order if dom[s] != bit[s]},
        {s: _names(pdom[s], order) for s in order},
    )


def _topological(ways: Ways, start: str) -> tuple[str, ...]:
    seen = {start}
    done: list[str] = []
    stack: list[tuple[str, int]] = [(start, 0)]
    while stack:
        stage, position = stack.pop()
        after = ways.get(stage, ())
        if position == len(after):
            done.append(stage)
            continue
        stack.append((stage, position + 1))
        if after[position] not in seen:
            seen.add(after[position])
            stack.append((after[position], 0))
    return tuple(reversed(done))


def _reach(order: Sequence[str], ways: Ways, bit: Mapping[str, int]) -> dict[str, int]:
    reach: dict[str, int] = {}
    for stage in reversed(order):
        reach[stage] = 0
        for after in ways.get(stage, ()):
            reach[stage] |= reach[after] | bit[after]
    return reach


def _meet(order: Sequence[str], before: Ways, bit: Mapping[str, int]) -> dict[str, int]:
    """What stands on every way here: itself, and what all that lead here have in common."""
    found: dict[str, int] = {}
    for stage in order:
        common = -1 if before[stage] else 0
        for other in before[stage]:
            common &= found[other]
        found[stage] = common | bit[stage]
    return found


def _names(bits: int, order: Sequence[str]) -> frozenset[str]:
    names = []
    while bits:
        low = bits & -bits
        names.append(order[low.bit_length() - 1])
        bits ^= low
    return frozenset(names)
