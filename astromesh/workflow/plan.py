"""A workflow compiled for one start: everything that the rules look up while Tasks run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from astromesh.config.workflow.nodes import NodeSpec, TaskSpec, WorkflowFile
from astromesh.workflow.analysis import Analysis, analyse, reachable

FORKS = ("branch", "split")
#: roles that may go on after a failure (E42); a decision only by its default edge (E40)
CONTINUING = ("start", "linear", "branch", "merge")


class Edge(NamedTuple):
    """An edge: `position` among all edges as declared; `label` the target where there is none."""

    position: int
    source: str
    target: str
    label: str


@dataclass(frozen=True, slots=True)
class Stage:
    """An occurrence of a node.

    Args:
        out: its edges, as declared.
        open: merges that a token here may still reach with their anchor behind it (R3).
        anchor: of a merge: its immediate dominator.
        closing: of a merge: whether it post-dominates its anchor (R5).
        recombined: of a fork: whether any merge may recombine its children (R6).
        collector: of a split: the closing merge that fires with no input where there are no items (E25).
        continues: whether a failed stage goes on with the previous output.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What one start reaches.

    Args:
        stages: by id.
        inbound: merge → the positions of its inbound edges, by source and label.
    """

    start: str
    stages: Mapping[str, Stage]
    inbound: Mapping[str, Mapping[tuple[str, str], int]]
    task: TaskSpec


def edges_of(workflow: WorkflowFile) -> tuple[Edge, ...]:
    return tuple(Edge(i, e.from_, e.to, e.label or e.to) for i, e in enumerate(workflow.edges))


def ways_of(workflow: WorkflowFile) -> dict[str, list[str]]:
    """Stage → the stages that follow; every stage that stands in an edge, and nodes that stand in none."""
    ways: dict[str, list[str]] = {}
    for edge in workflow.edges:
        ways.setdefault(edge.from_, []).append(edge.to)
        ways.setdefault(edge.to, [])
    used = {stage.partition("#")[0] for stage in ways}
    for node in workflow.nodes:
        if node.id not in used:
            ways.setdefault(node.id, [])
    return ways


def compile_plan(workflow: WorkflowFile, start: str) -> Plan:
    """Compiles what one start reaches.

    Args:
        workflow: a sound one.
        start: id of a start node.
    """
    nodes = {node.id: node for node in workflow.nodes}
    ways = ways_of(workflow)
    found = analyse(ways, start)
    errors = {n.on_failure for n in workflow.nodes if n.on_failure}
    edges = edges_of(workflow)
    out: dict[str, list[Edge]] = {}
    for edge in edges:
        out.setdefault(edge.source, []).append(edge)
    merges = tuple(s for s in found.order if nodes[s.partition("#")[0]].role == "merge" and s in found.idom)
    stages = {
        s: _stage(s, nodes[s.partition("#")[0]], tuple(out.get(s, ())), found, merges, workflow.task)
        for s in found.order
    }
    for exit_ in errors - stages.keys():  # reached by failures alone
        stages[exit_] = Stage(exit_, nodes[exit_.partition("#")[0]], ())
    here = reachable(ways, [start])
    inbound: dict[str, dict[tuple[str, str], int]] = {m: {} for m in merges}
    for edge in edges:
        if edge.target in inbound and edge.source in here:
            inbound[edge.target][edge.source, edge.label] = edge.position
    return Plan(start, stages, inbound, workflow.task)


def _stage(
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
        continues=_continues(node, task),
    )


def _continues(node: NodeSpec, task: TaskSpec) -> bool:
    if node.role == "decision":
        return bool(node.continue_on_failure and node.default_edge)
    wanted = task.failure == "continue" if node.continue_on_failure is None else node.continue_on_failure
    return wanted and node.role in CONTINUING
