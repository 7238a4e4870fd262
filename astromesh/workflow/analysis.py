"""Static analysis of a workflow: reachability, dominators and cycles. Pure.

Covers the stages that one start reaches, because several starts may share stages. Sets are integers, one bit
per stage in topological order, so that the analysis of thousands of stages takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Successors = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The part of a workflow that one start reaches.

    Args:
        order: the stages in topological order, the start first.
        reach: stage → the stages that it reaches, without itself.
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
        """Returns whether every path from the merge's anchor leads through it."""
        return merge in self.pdom[self.idom[merge]]

    def recombiners(self, fork: str, merges: Iterable[str]) -> frozenset[str]:
        """Returns the merges that a fork reaches and whose anchor is the fork or dominates it."""
        return frozenset(m for m in merges if m in self.reach[fork] and self.idom[m] in self.dom[fork])

    def open_at(self, stage: str, merges: Iterable[str]) -> tuple[str, ...]:
        """Returns the merges that a token here may still reach and whose anchor it has passed."""
        behind = self.dom[stage] - {stage}
        return tuple(m for m in merges if m in self.reach[stage] and self.idom[m] in behind)


def find_cycle(successors: Successors) -> tuple[str, ...]:
    """Returns a cycle as its stages, the first one repeated at the end; empty where there is none."""
    done: set[str] = set()
    for root in successors:
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
                stack.extend((after, False) for after in reversed(successors.get(stage, ())))
    return ()


def reachable(successors: Successors, starts: Iterable[str]) -> set[str]:
    """Returns every stage that any of these reaches, themselves included."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        stage = waiting.pop()
        if stage not in seen:
            seen.add(stage)
            waiting.extend(successors.get(stage, ()))
    return seen


def components(stages: Iterable[str], successors: Successors) -> list[set[str]]:
    """Returns the weakly connected components, in the order of their first stage."""
    both: dict[str, list[str]] = {stage: [] for stage in stages}
    for stage, after in successors.items():
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


def analyze(successors: Successors, start: str) -> Analysis:
    """Analyzes the part of a workflow that one start reaches.

    Args:
        successors: stage → the stages that its edges lead to; without a cycle.
        start: one of them.
    """
    order = _topological(successors, start)
    bit = {stage: 1 << i for i, stage in enumerate(order)}
    before: dict[str, list[str]] = {stage: [] for stage in order}
    for stage in order:
        for after in successors.get(stage, ()):
            before[after].append(stage)
    reach = _reach(order, successors, bit)
    dom = _dominators(order, before, bit)
    pdom = _dominators(tuple(reversed(order)), {s: list(successors.get(s, ())) for s in order}, bit)
    return Analysis(
        order,
        {s: _stages_of_bits(reach[s], order) for s in order},
        {s: _stages_of_bits(dom[s], order) for s in order},
        # the dominators of a stage form a chain in topological order
        {s: order[(dom[s] & ~bit[s]).bit_length() - 1] for s in order if dom[s] != bit[s]},
        {s: _stages_of_bits(pdom[s], order) for s in order},
    )


def _topological(successors: Successors, start: str) -> tuple[str, ...]:
    seen = {start}
    done: list[str] = []
    stack: list[tuple[str, int]] = [(start, 0)]
    while stack:
        stage, position = stack.pop()
        after = successors.get(stage, ())
        if position == len(after):
            done.append(stage)
            continue
        stack.append((stage, position + 1))
        if after[position] not in seen:
            seen.add(after[position])
            stack.append((after[position], 0))
    return tuple(reversed(done))


def _reach(order: Sequence[str], successors: Successors, bit: Mapping[str, int]) -> dict[str, int]:
    reach: dict[str, int] = {}
    for stage in reversed(order):
        reach[stage] = 0
        for after in successors.get(stage, ()):
            reach[stage] |= reach[after] | bit[after]
    return reach


def _dominators(order: Sequence[str], before: Successors, bit: Mapping[str, int]) -> dict[str, int]:
    """Returns the stages on every path to each stage: itself, and those that all its predecessors share."""
    found: dict[str, int] = {}
    for stage in order:
        common = -1 if before[stage] else 0
        for other in before[stage]:
            common &= found[other]
        found[stage] = common | bit[stage]
    return found


def _stages_of_bits(bits: int, order: Sequence[str]) -> frozenset[str]:
    names = []
    while bits:
        low = bits & -bits
        names.append(order[low.bit_length() - 1])
        bits ^= low
    return frozenset(names)
