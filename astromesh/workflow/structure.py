"""What makes nodes and edges a workflow: the rules of roles and edges (workflow.md sections 1 and 4).

Each rule is a function of the manifest that answers what is wrong with it; `STRUCTURE` lists them. All of
them run on what is sound of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from astromesh.config.nodes import Steps
from astromesh.config.workflow.nodes import NodeSpec, WorkflowFile
from astromesh.workflow.analysis import analyse, components, find_cycle, reachable
from astromesh.workflow.plan import ways_of


class Finding(NamedTuple):
    """Something wrong in workflow.yaml."""

    rule: str
    message: str
    steps: Steps
    hint: str = ""


class Degrees(NamedTuple):
    """Least and most edges in and out; None: any number."""

    least_in: int
    most_in: int | None
    least_out: int
    most_out: int | None


DEGREES: Mapping[str, Degrees] = {
    "start": Degrees(0, 0, 1, 1),
    "linear": Degrees(1, 1, 1, 1),
    "decision": Degrees(1, 1, 2, None),
    "branch": Degrees(1, 1, 2, None),
    "split": Degrees(1, 1, 1, None),
    "merge": Degrees(2, None, 1, 1),
    "exit": Degrees(1, None, 0, 0),
}

#: key of a node → the roles that may have it, and the value that means it is absent
ONLY_ON: Mapping[str, tuple[tuple[str, ...], object]] = {
    "default": (("start",), False),
    "always_fail": (("exit",), False),
    "merge": (("merge",), None),
    "branch": (("branch",), None),
    "split": (("split",), None),
    "default_edge": (("decision",), None),
    "selection_key": (("decision",), None),
    "on_failure": (("start", "linear", "decision", "branch", "split", "merge"), None),
}
#: roles that no model may be asked in
DETERMINISTIC = ("start", "exit")
#: roles that cannot go on after a failure, and why
NEVER_CONTINUES = {
    "exit": "there is nothing behind an exit",
    "split": "without its output there are no subtasks",
}

Rule = Callable[[WorkflowFile], Iterator[Finding]]


def _nodes(workflow: WorkflowFile) -> Iterator[tuple[NodeSpec, Steps]]:
    for i, node in enumerate(workflow.nodes):
        yield node, ("nodes", i)


def unique_ids(workflow: WorkflowFile) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for node, at in _nodes(workflow):
        if first.setdefault(node.id, int(at[1])) != at[1]:
            yield Finding("duplicate_id", f"the node {node.id!r} is defined twice", (*at, "id"),
                          f"another occurrence in the edges is written {node.id}#2")  # fmt: skip


def known_stages(workflow: WorkflowFile) -> Iterator[Finding]:
    known = {node.id for node in workflow.nodes}
    for i, edge in enumerate(workflow.edges):
        for key, stage in (("from", edge.from_), ("to", edge.to)):
            if stage.partition("#")[0] not in known:
                message = f"there is no node {stage.partition('#')[0]!r}"
                yield Finding("unknown_node", message, ("edges", i, key))


def starts(workflow: WorkflowFile) -> Iterator[Finding]:
    """E11, E14: exactly one default start, at least one exit."""
    found = [(node, at) for node, at in _nodes(workflow) if node.role == "start"]
    defaults = [(node, at) for node, at in found if node.default]
    if not found:
        yield Finding("no_start", "there is no node with role: start", ("nodes",))
    elif not defaults:
        yield Finding("no_default_start", "no start has default: true", (*found[0][1], "id"),
                      f"write default: true at {found[0][0].id!r}")  # fmt: skip
    for _, at in defaults[1:]:
        message = f"{defaults[0][0].id!r} is the default start already"
        yield Finding("two_default_starts", message, (*at, "default"), "leave default: true at one of them")
    if not any(node.role == "exit" for node in workflow.nodes):
        yield Finding("no_exit", "there is no node with role: exit", ("nodes",))


def keys_of_roles(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes(workflow):
        for key, (roles, absent) in ONLY_ON.items():
            if node.role not in roles and getattr(node, key) != absent:
                message = f"{key} is for role: {' or '.join(roles)}, not {node.role}"
                yield Finding("wrong_role", message, (*at, key))


def kinds(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes(workflow):
        if node.kind == "agent":
            if node.role in DETERMINISTIC:
                yield Finding("must_be_deterministic", f"a {node.role} node must be kind: deterministic",
                              (*at, "kind"))  # fmt: skip
            if not node.agent:
                yield Finding("missing_agent", "kind: agent needs the key 'agent'", (*at, "id"))
            if node.op:
                yield Finding("wrong_kind", "op is for kind: deterministic", (*at, "op"))
        elif node.agent:
            yield Finding("wrong_kind", "agent is for kind: agent", (*at, "agent"))
        if node.role == "exit" and node.tools:
            yield Finding("exit_with_tools", "an exit only formats: it has no tools", (*at, "tools"))


def merges(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes(workflow):
        if node.role != "merge":
            continue
        strategy = node.merge.strategy if node.merge else "list"
        wanted = "agent" if node.kind == "agent" else "op" if node.op else ""
        if wanted and strategy != wanted:
            yield Finding("merge_strategy", f"strategy: {strategy} does not use the node's {wanted}",
                          (*at, "merge", "strategy"), f"write strategy: {wanted}")  # fmt: skip
        elif not wanted and strategy in ("op", "agent"):
            yield Finding("merge_strategy", f"strategy: {strategy} needs the key {strategy!r}",
                          (*at, "merge", "strategy"))  # fmt: skip


def continuing(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes(workflow):
        if not node.continue_on_failure:
            continue
        if why := NEVER_CONTINUES.get(node.role):
            yield Finding("cannot_continue", f"a {node.role} cannot continue_on_failure: {why}",
                          (*at, "continue_on_failure"))  # fmt: skip
        elif node.role == "decision" and not node.default_edge:
            yield Finding("cannot_continue", "a decision can continue_on_failure only with a default_edge",
                          (*at, "continue_on_failure"))  # fmt: skip


def error_exits(workflow: WorkflowFile) -> Iterator[Finding]:
    """E43: `on_failure` names an exit that always fails."""
    by_id = {node.id: node for node in workflow.nodes}
    for node, at in _nodes(workflow):
        if node.on_failure is None:
            continue
        target = by_id.get(node.on_failure.partition("#")[0])
        if target is None:
            yield Finding("unknown_node", f"there is no node {node.on_failure!r}", (*at, "on_failure"))
        elif target.role != "exit" or not target.always_fail:
            message = f"{node.on_failure!r} is no exit with always_fail: true"
            yield Finding("no_error_exit", message, (*at, "on_failure"))


def decisions(workflow: WorkflowFile) -> Iterator[Finding]:
    """E9: labels are unique; `default_edge` is one of them."""
    by_id = {node.id: node for node in workflow.nodes}
    seen: dict[tuple[str, str], int] = {}
    for i, edge in enumerate(workflow.edges):
        node = by_id.get(edge.from_.partition("#")[0])
        if node is not None and node.role == "decision":
            label = edge.label or edge.to
            if seen.setdefault((edge.from_, label), i) != i:
                message = f"another edge of {edge.from_!r} is selected by {label!r}, too"
                yield Finding("duplicate_label", message, ("edges", i, "label"))
    for node, at in _nodes(workflow):
        labels = {e.label or e.to for e in workflow.edges if e.from_.partition("#")[0] == node.id}
        if node.role == "decision" and node.default_edge and node.default_edge not in labels:
            message = f"there is no edge {node.default_edge!r}; there are {', '.join(sorted(labels))}"
            yield Finding("unknown_edge", message, (*at, "default_edge"))


def parallel_edges(workflow: WorkflowFile) -> Iterator[Finding]:
    """E8: two edges between the same pair only from a decision to a merge or exit, with different labels."""
    roles = {node.id: node.role for node in workflow.nodes}
    seen: set[tuple[str, str]] = set()
    for i, edge in enumerate(workflow.edges):
        pair = (edge.from_, edge.to)
        ends = roles.get(edge.from_.partition("#")[0]), roles.get(edge.to.partition("#")[0])
        if pair in seen and not (ends[0] == "decision" and ends[1] in ("merge", "exit")):
            message = f"there is an edge from {edge.from_!r} to {edge.to!r} already"
            yield Finding("parallel_edge", message, ("edges", i), f"lead to another occurrence: {edge.to}#2")
        seen.add(pair)


def degrees(workflow: WorkflowFile) -> Iterator[Finding]:
    """Per occurrence (E31); an exit may be reached by `on_failure` alone."""
    into, out = Counter(e.to for e in workflow.edges), Counter(e.from_ for e in workflow.edges)
    failing = {node.on_failure for node in workflow.nodes}
    where = {node.id: (node, at) for node, at in _nodes(workflow)}
    for stage in {**ways_of(workflow), **dict.fromkeys(s for s in failing if s)}:
        found = where.get(stage.partition("#")[0])
        if found is None:
            continue
        node, at = found
        least_in, most_in, least_out, most_out = DEGREES[node.role]
        if stage in failing and node.role == "exit":
            least_in = 0
        for count, least, most, what in (
            (into[stage], least_in, most_in, "inbound"),
            (out[stage], least_out, most_out, "outbound"),
        ):
            if count < least or (most is not None and count > most):
                allowed = str(least) if most == least else f"{least} or more"
                hint = (
                    f"use {node.id}#2 for another occurrence" if most is not None and count > most > 0 else ""
                )
                message = f"the {node.role} {stage!r} has {count} {what} edges; it needs {allowed}"
                yield Finding(f"{what}_degree", message, (*at, "id"), hint)


def acyclic(workflow: WorkflowFile) -> Iterator[Finding]:
    """E13."""
    cycle = find_cycle(ways_of(workflow))
    if cycle:
        i = next(i for i, e in enumerate(workflow.edges) if (e.from_, e.to) == (cycle[0], cycle[1]))
        message = f"the edges form a cycle: {' → '.join(cycle)}"
        yield Finding(
            "cycle", message, ("edges", i), "loops belong into a stage: an agent's pattern may have them"
        )


def connected(workflow: WorkflowFile) -> Iterator[Finding]:
    """E10: every component has a start and an exit; every stage is reached; every start reaches an exit."""
    ways = ways_of(workflow)
    roles = {node.id: node.role for node in workflow.nodes}
    where = {node.id: at for node, at in _nodes(workflow)}
    for node in workflow.nodes:
        if node.on_failure:
            ways.setdefault(node.on_failure, [])
            for stage in [s for s in ways if s.partition("#")[0] == node.id]:
                ways[stage] = [*ways[stage], node.on_failure]
    if any(stage.partition("#")[0] not in roles for stage in ways):
        return
    begin = [stage for stage in ways if roles[stage.partition("#")[0]] == "start"]
    for part in components(ways, ways):
        has = {roles[stage.partition("#")[0]] for stage in part}
        if missing := [role for role in ("start", "exit") if role not in has]:
            stage = min(part)
            message = f"the part with {', '.join(sorted(part)[:5])} has no {' and no '.join(missing)}"
            yield Finding("component", message, (*where[stage.partition("#")[0]], "id"))
    for stage in sorted(ways.keys() - reachable(ways, begin)):
        yield Finding("unreachable", f"no start leads to {stage!r}", (*where[stage.partition("#")[0]], "id"))
    for start in begin:
        if not any(roles[s.partition("#")[0]] == "exit" for s in reachable(ways, [start])):
            yield Finding("no_way_out", f"{start!r} reaches no exit", (*where[start.partition("#")[0]], "id"))


STRUCTURE: tuple[Rule, ...] = (
    unique_ids, known_stages, starts, keys_of_roles, kinds, merges, continuing, error_exits, decisions,
    parallel_edges, degrees, acyclic, connected,
)  # fmt: skip


def faults(workflow: WorkflowFile) -> list[Finding]:
    """Everything that is wrong with the structure."""
    return [finding for rule in STRUCTURE for finding in rule(workflow)]


def warnings(workflow: WorkflowFile) -> list[Finding]:
    """What runs, but deserves a look, in a workflow that has no faults (E5, E7)."""
    nodes = {node.id: (node, at) for node, at in _nodes(workflow)}
    ways = ways_of(workflow)
    found: dict[str, Finding] = {}
    for start in [node.id for node in workflow.nodes if node.role == "start"]:
        analysis = analyse(ways, start)
        for stage in analysis.order:
            node, at = nodes[stage.partition("#")[0]]
            if node.role != "merge" or stage not in analysis.idom:
                continue
            anchor = nodes[analysis.idom[stage].partition("#")[0]][0]
            strategy = node.merge.strategy if node.merge else "list"
            if anchor.role == "decision" and strategy == "list":
                message = f"{stage!r} joins the arms of the decision {anchor.id!r}: its list has one entry"
                found[stage] = Finding(
                    "xor_join", message, (*at, "id"), "strategy: first passes it on as it is"
                )
            elif anchor.role in ("branch", "split") and not analysis.is_closing(stage):
                message = f"an arm of {anchor.id!r} bypasses the merge {stage!r}"
                hint = "a Task that exits there counts only if nothing merged succeeds"
                found[stage] = Finding("bypassed_merge", message, (*at, "id"), hint)
    return list(found.values())
