"""A workflow compiled for one start: its stages, where their output leads, and its diagram. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from astromesh.config.workflow import SELECTION_KEY, NodeSpec, SplitSpec, TaskSpec, WorkflowFile
from astromesh.types import JsonObject
from astromesh.workflow.base import StageFault

Successors = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The part of a workflow that one start reaches: reachability and dominators. Pure.

    Several starts may share stages. Sets are integers, one bit per stage in topological order, so that the
    analysis of thousands of stages takes milliseconds.

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


FORKS = ("branch", "split")
#: roles that may continue after a failure; a decision continues only by its default edge
CONTINUING = ("start", "linear", "branch", "merge")


class Edge(NamedTuple):
    """An edge: `position` among all edges as declared; `label` is the target where the manifest has none."""

    position: int
    source: str
    target: str
    label: str


@dataclass(frozen=True, slots=True)
class Stage:
    """An occurrence of a node in the graph.

    Args:
        out: its edges, as declared.
        open: merges that a token here may still reach and whose anchor it has passed.
        anchor: immediate dominator of a merge.
        closing: whether every path from the anchor of a merge leads through it.
        recombined: whether any merge may recombine the children of a fork.
        collector: closing merge of a split, which fires without input if there are no items.
        continues: whether the Task continues with the previous output after a failure.
    """

    id: str
    node: NodeSpec
    out: tuple[Edge, ...]
    open: tuple[str, ...] = ()
    anchor: str = ""
    closing: bool = False
    recombined: bool = False
    collector: str = ""
    continues: bool = False

    @property
    def role(self) -> str:
        return self.node.role

    @property
    def passes_on(self) -> bool:
        """Whether its output is its input."""
        return not (self.node.op or self.node.agent or self.node.human or self.role == "merge")


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages that one start reaches.

    Args:
        stages: by id.
        inbound: merge → the positions of its inbound edges, by source and label.
    """

    start: str
    stages: Mapping[str, Stage]
    inbound: Mapping[str, Mapping[tuple[str, str], int]]
    task: TaskSpec

    def first_edge(self, merge: str) -> int:
        """Returns the position of the first inbound edge of a merge."""
        return min(self.inbound[merge].values())

    @property
    def is_timing_dependent(self) -> bool:
        """Whether timing can decide: the first clone to end, or the first subtask to fail."""
        return any(
            (stage.role == "branch" and not stage.recombined)
            or (stage.node.split is not None and stage.node.split.on_failure == "fail_fast")
            for stage in self.stages.values()
        )


def edges_of(workflow: WorkflowFile) -> tuple[Edge, ...]:
    return tuple(Edge(i, e.from_, e.to, e.label or e.to) for i, e in enumerate(workflow.edges))


def successors_of(workflow: WorkflowFile) -> dict[str, list[str]]:
    """Returns the stages that follow each stage, for every stage of an edge and every node without one."""
    successors: dict[str, list[str]] = {}
    for edge in workflow.edges:
        successors.setdefault(edge.from_, []).append(edge.to)
        successors.setdefault(edge.to, [])
    used = {stage.partition("#")[0] for stage in successors}
    for node in workflow.nodes:
        if node.id not in used:
            successors.setdefault(node.id, [])
    return successors


def compile_plan(workflow: WorkflowFile, start: str) -> Plan:
    """Compiles what one start reaches.

    Args:
        workflow: a valid one.
        start: id of a start node.
    """
    nodes = {node.id: node for node in workflow.nodes}
    successors = successors_of(workflow)
    found = analyze(successors, start)
    errors = {n.on_failure for n in workflow.nodes if n.on_failure}
    edges = edges_of(workflow)
    out: dict[str, list[Edge]] = {}
    for edge in edges:
        out.setdefault(edge.source, []).append(edge)
    merges = tuple(s for s in found.order if nodes[s.partition("#")[0]].role == "merge" and s in found.idom)
    stages = {
        s: _compile_stage(s, nodes[s.partition("#")[0]], tuple(out.get(s, ())), found, merges, workflow.task)
        for s in found.order
    }
    for exit_ in errors - stages.keys():  # reached by failures alone
        stages[exit_] = Stage(exit_, nodes[exit_.partition("#")[0]], ())
    here = reachable(successors, [start])
    inbound: dict[str, dict[tuple[str, str], int]] = {m: {} for m in merges}
    for edge in edges:
        if edge.target in inbound and edge.source in here:
            inbound[edge.target][edge.source, edge.label] = edge.position
    return Plan(start, stages, inbound, workflow.task)


def _compile_stage(
    id: str,
    node: NodeSpec,
    out: tuple[Edge, ...],
    found: Analysis,
    merges: tuple[str, ...],
    task: TaskSpec,
) -> Stage:
    merge = id in merges
    fork = node.role in FORKS
    recombiners = found.recombiners(id, merges) if fork else frozenset()
    return Stage(
        id,
        node,
        out,
        open=found.open_at(id, merges),
        anchor=found.idom[id] if merge else "",
        closing=merge and found.is_closing(id),
        recombined=bool(recombiners),
        collector=next((m for m in merges if m in recombiners and m in found.pdom[id]), ""),
        continues=_continues_on_failure(node, task),
    )


def _continues_on_failure(node: NodeSpec, task: TaskSpec) -> bool:
    if node.role == "decision":
        return bool(node.continue_on_failure and node.default_edge)
    continues = task.failure == "continue" if node.continue_on_failure is None else node.continue_on_failure
    return continues and node.role in CONTINUING


# -- diagram -------------------------------------------------------------------------------------------------

#: role → brackets around its label
_MERMAID_SHAPES: Mapping[str, tuple[str, str]] = {
    "start": ("([", "])"),
    "linear": ("[", "]"),
    "decision": ("{", "}"),
    "branch": ("[/", "\\]"),
    "split": ("[[", "]]"),
    "merge": ("[\\", "/]"),
    "exit": ("((", "))"),
}


def to_mermaid(workflow: WorkflowFile) -> str:
    """Returns a Mermaid flowchart: one shape per role, error edges dotted, ids as quoted labels."""
    stages = list(successors_of(workflow))
    nodes = {node.id: node for node in workflow.nodes}
    for node in workflow.nodes:
        if node.on_failure and node.on_failure not in stages:
            stages.append(node.on_failure)
    ids = {stage: f"n{i}" for i, stage in enumerate(stages)}
    lines = ["flowchart TD", *(f"    {ids[s]}{_mermaid_node(s, nodes[s.partition('#')[0]])}" for s in stages)]
    for edge in workflow.edges:
        label = f'|"{edge.label}"|' if edge.label else ""
        lines.append(f"    {ids[edge.from_]} -->{label} {ids[edge.to]}")
    for stage in stages:
        if target := nodes[stage.partition("#")[0]].on_failure:
            lines.append(f'    {ids[stage]} -.->|"on_failure"| {ids[target]}')
    return "\n".join(lines)


def _mermaid_node(stage: str, node: NodeSpec) -> str:
    opening, closing = _MERMAID_SHAPES[node.role]
    kind = f"<br/>agent: {node.agent}" if node.kind == "agent" else ""
    return f'{opening}"{stage}{kind}"{closing}'


# -- routing -------------------------------------------------------------------------------------------------

_DEFAULT_SPLIT = SplitSpec()


class ForkChild(NamedTuple):
    """A child of a fork: its edge, its position, and its input, which is its current output too."""

    edge: Edge
    position: int
    value: Any


def decide(stage: Stage, output: Any) -> tuple[Edge, Any]:
    """Returns the selected edge and the current output of a decision.

    Raises:
        StageFault: `invalid_decision`.
    """
    key = stage.node.selection_key or SELECTION_KEY
    if not isinstance(output, dict) or not isinstance(output.get(key), str):
        raise StageFault("invalid_decision", f"The output must be an object with the text {key!r}.")
    label = output[key]
    for edge in stage.out:
        if label == edge.label:
            return edge, output.get("output", output)
    known = ", ".join(repr(edge.label) for edge in stage.out)
    raise StageFault("invalid_decision", f"There is no edge {label!r}. Known edges: {known}.")


def fork_children(stage: Stage, output: Any) -> list[ForkChild]:
    """Returns the children of a branch or split.

    Raises:
        StageFault: `malformed_split`, `empty_split` or `limit_exceeded`.
    """
    if stage.role == "branch":
        return [ForkChild(edge, 0, output) for edge in stage.out]
    split = stage.node.split or _DEFAULT_SPLIT
    if split.mode == "per_edge":
        found: JsonObject = output if isinstance(output, dict) else {}
        parts = [ForkChild(edge, i, found.get(edge.label, output)) for i, edge in enumerate(stage.out)]
    else:
        items = _split_items(output, split.items_key)
        if not items and split.on_empty == "fail":
            raise StageFault("empty_split", f"The list {split.items_key!r} is empty (split.on_empty: fail).")
        edges = len(stage.out)
        parts = [ForkChild(stage.out[i % edges], i, item) for i, item in enumerate(items)]
    if len(parts) > split.max_subtasks:
        message = (
            f"{len(parts)} subtasks of the stage {stage.id!r} exceed the limit of {split.max_subtasks} "
            "(split.max_subtasks)."
        )
        raise StageFault("limit_exceeded", message)
    return parts


def _split_items(output: Any, key: str) -> list[Any]:
    items = output.get(key) if isinstance(output, dict) else None
    if not isinstance(items, list):
        raise StageFault("malformed_split", f"The output must be an object with the list {key!r}.")
    return items
