"""Checks a workflow's folder: the structure of its graph, and names that one file takes from another.

Each structural rule is a function of the manifest that yields its findings; `STRUCTURE_RULES` lists them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from astromesh.config.base import Steps
from astromesh.config.records import JsonMap, marked_fields
from astromesh.config.validation import suggest_name
from astromesh.config.workflow import (
    METRICS,
    METRICS_FILE,
    AgentsFile,
    CredentialsFile,
    MemoryFile,
    MetricsFile,
    NodeSpec,
    ObserversFile,
    ObserverSpec,
    PolicyFile,
    ProfilesFile,
    ProvidersFile,
    RefersTo,
    ToolsFile,
    WorkflowFile,
)
from astromesh.config.workflow_folder import SCHEMAS, WORKFLOW, WorkflowFolder
from astromesh.errors import InvalidManifest
from astromesh.tools.json_schema import schema_validator
from astromesh.workflow.operations import load_operation
from astromesh.workflow.plan import analyze, components, find_cycle, reachable, successors_of

NO_CONTEXT, GLOBAL_CONTEXT = "none", "global"


class KnownNames(NamedTuple):
    """Names outside the folder that its files may refer to. None: unknown, so that every name is accepted.

    Args:
        agents: of the runtime, in addition to those of agents.yaml.
        models: of Python or the runtime, in addition to those of providers.yaml.
        adapters, patterns: what is installed.
    """

    agents: Collection[str] | None = None
    models: Collection[str] | None = ()
    adapters: Collection[str] | None = None
    patterns: Collection[str] | None = None


class Reference(NamedTuple):
    """A name that a file refers to, or an inline schema in place of the name: its kind and its place."""

    kind: str
    value: str | JsonMap
    file: str
    steps: Steps


def reference_faults(folder: WorkflowFolder, known: KnownNames) -> Iterator[InvalidManifest]:
    """Yields a fault for each unknown name, duplicate id and invalid schema."""
    for name, schema in folder.schemas.items():
        yield from _schema_fault(folder, schema, f"{SCHEMAS}/{name}.json", ())
    yield from _duplicate_ids(folder)
    spaces = _namespaces(folder, known)
    for kind, value, file, steps in _references(folder):
        if isinstance(value, dict):
            yield from _schema_fault(folder, value, file, steps)
        elif kind == "op":
            try:
                function = load_operation(folder.folder, value)
            except LookupError as error:
                yield folder.fault(file, "unknown_op", str(error.args[0]), steps)
            else:
                if file == WORKFLOW and not _takes_three(function):
                    message = f"`{value}` cannot be called with (input, context, tools)"
                    yield folder.fault(file, "wrong_arguments", message, steps, "Give it three arguments.")
        elif (space := spaces[kind]) is not None and value not in space:
            hint = suggest_name(value, space)
            yield folder.fault(file, f"unknown_{kind}", f"unknown {kind} `{value}`", steps, hint)
    yield from _unenforceable_flags(folder)


def _takes_three(function: Callable[..., Any]) -> bool:
    """Returns whether an operation can be called as `op(input, context, tools)`, or does not say."""
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _namespaces(folder: WorkflowFolder, known: KnownNames) -> Mapping[str, Collection[str] | None]:
    own = {agent.id for agent in folder.file(AgentsFile).agents}
    models = {model.id for model in folder.file(ProvidersFile).providers}
    profiles = {p.id for p in folder.file(MemoryFile).memory.context_profiles}
    credentials = folder.file(CredentialsFile).provider_credentials
    workflow = folder.workflow
    return {
        "agent": None if known.agents is None else own | set(known.agents),
        "model": None if known.models is None else models | set(known.models),
        "tool": {tool.id for tool in folder.file(ToolsFile).tools},
        "schema": set(folder.schemas),
        "context": profiles | {NO_CONTEXT, GLOBAL_CONTEXT},
        "credential": {credential.id for credential in credentials},
        "node": {node.id for node in workflow.nodes} if workflow else None,
        "stage": _stage_names(folder),
        "store": ("task", "project", "global"),
        "adapter": known.adapters,
        "pattern": known.patterns,
    }


def _stage_names(folder: WorkflowFolder) -> set[str]:
    workflow = folder.workflow
    return {stage for edge in workflow.edges for stage in (edge.from_, edge.to)} if workflow else set()


def _references(folder: WorkflowFolder) -> Iterator[Reference]:
    """Yields every reference from one file to another."""
    for name, record in folder.files.items():
        for steps, mark, value in marked_fields(record, RefersTo):
            values = enumerate(value) if isinstance(value, tuple) else ((None, value),)
            for i, one in values:
                if one:
                    yield Reference(mark.kind, one, name, steps if i is None else (*steps, i))
    for i, policy in enumerate(folder.file(PolicyFile).policies):
        for k, rule in enumerate(policy.rules):
            if rule.target_id != "*":
                at: Steps = ("policies", i, "rules", k, "target_id")
                yield Reference(rule.target, rule.target_id, "policy.yaml", at)


#: file → its list whose ids must be unique
_ID_LISTS: Mapping[str, tuple[type[Any], str]] = {
    "agents.yaml": (AgentsFile, "agents"),
    "tools.yaml": (ToolsFile, "tools"),
    "providers.yaml": (ProvidersFile, "providers"),
    "provider_credentials.yaml": (CredentialsFile, "provider_credentials"),
    "plugins.yaml": (ObserversFile, "plugins"),
    "cli_profiles.yaml": (ProfilesFile, "profiles"),
}


def _duplicate_ids(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    for file, (kind, key) in _ID_LISTS.items():
        seen: set[str] = set()
        for i, one in enumerate(getattr(folder.file(kind), key)):
            if one.id in seen:
                yield folder.fault(
                    file, "duplicate_id", f"duplicate id `{one.id}`", (key, i, "id"), "Rename it."
                )
            seen.add(one.id)


def _schema_fault(
    folder: WorkflowFolder, schema: JsonMap, file: str, steps: Steps
) -> Iterator[InvalidManifest]:
    if message := schema_fault(schema):
        yield folder.fault(file, "invalid_schema", f"is not a valid JSON Schema: {message}", steps)


def schema_fault(schema: Mapping[str, Any]) -> str:
    """Returns why a schema is not a valid JSON Schema, or an empty text."""
    try:
        schema_validator(schema)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""


def _unenforceable_flags(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    """Yields a fault for each restriction of a Python function that cannot be enforced."""
    root = folder.roots.get("tools.yaml")
    for i, node in root.children("tools") if root else ():
        if node.text("type") in ("", "python"):
            for key in ("root", "allow_network", "allow_shell"):
                if key in node.entries:
                    message = f"{key} cannot be enforced for type: python"
                    yield folder.fault("tools.yaml", "unkeepable", message, ("tools", i, key), "Remove it.")
            if "max_memory_mb" in node.entries and "isolation" not in node.entries:
                yield folder.fault("tools.yaml", "unkeepable", "max_memory_mb needs isolation: process",
                                   ("tools", i, "max_memory_mb"), "Add isolation: process.")  # fmt: skip


# -- observers and metrics -----------------------------------------------------------------------------------

_OBSERVERS_FILE = "plugins.yaml"


def observer_faults(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    """Yields a fault for each observer whose class does not exist."""
    for i, spec in enumerate(folder.file(ObserversFile).plugins):
        try:
            if spec.enabled and not inspect.isclass(observer_class(folder, spec)):
                yield folder.fault(
                    _OBSERVERS_FILE, "unknown_plugin", "is not a class", ("plugins", i, "module")
                )
        except LookupError as error:
            yield folder.fault(
                _OBSERVERS_FILE, "unknown_plugin", str(error.args[0]), ("plugins", i, "module")
            )


def enabled_observers(folder: WorkflowFolder) -> Iterator[ObserverSpec]:
    """Returns the enabled observers."""
    return (spec for spec in folder.file(ObserversFile).plugins if spec.enabled)


def observer_class(folder: WorkflowFolder, spec: ObserverSpec) -> Any:
    """Returns an observer's class. Raises LookupError where it does not exist."""
    module, _, name = spec.module.rpartition(".")
    return load_operation(folder.folder, f"{module}:{name}")


def metric_faults(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    """Yields a fault for each unknown metric or wrong type in metrics.yaml."""
    for i, profile in enumerate(folder.file(MetricsFile).profiles):
        for k, metric in enumerate(profile.metrics):
            at = ("profiles", i, "metrics", k)
            if metric.name not in METRICS:
                hint = suggest_name(metric.name, METRICS)
                message = f"unknown metric `{metric.name}`"
                yield folder.fault(METRICS_FILE, "unknown_metric", message, (*at, "name"), hint)
            elif metric.type != METRICS[metric.name][0]:
                message = f"{metric.name} is a {METRICS[metric.name][0]}, not a {metric.type}"
                hint = f"Write type: {METRICS[metric.name][0]}."
                yield folder.fault(METRICS_FILE, "wrong_metric_type", message, (*at, "type"), hint)


# -- structure: each rule checks the valid part of workflow.yaml ---------------------------------------------


class Finding(NamedTuple):
    """A fault in workflow.yaml."""

    rule: str
    message: str
    steps: Steps
    hint: str = ""


class Degrees(NamedTuple):
    """Minimum and maximum of inbound and outbound edges; None: no maximum."""

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
#: key of a node → roles that may have it, and its value when absent
ONLY_ON: Mapping[str, tuple[tuple[str, ...], object]] = {
    "default": (("start",), False),
    "always_fail": (("exit",), False),
    "merge": (("merge",), None),
    "branch": (("branch",), None),
    "split": (("split",), None),
    "default_edge": (("decision",), None),
    "selection_key": (("decision",), None),
    "human": (("linear", "decision"), None),
    "on_failure": (("start", "linear", "decision", "branch", "split", "merge"), None),
}
#: roles without a model
DETERMINISTIC = ("start", "exit")
#: roles that cannot continue after a failure, and why
NEVER_CONTINUES = {
    "exit": "no stage follows an exit",
    "split": "its output defines the subtasks",
}
Rule = Callable[[WorkflowFile], Iterator[Finding]]


def _nodes_with_steps(workflow: WorkflowFile) -> Iterator[tuple[NodeSpec, Steps]]:
    for i, node in enumerate(workflow.nodes):
        yield node, ("nodes", i)


def unique_ids(workflow: WorkflowFile) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for node, at in _nodes_with_steps(workflow):
        if first.setdefault(node.id, int(at[1])) != at[1]:
            yield Finding("duplicate_id", f"duplicate node `{node.id}`", (*at, "id"),
                          f"Write `{node.id}#2` for another occurrence in the edges.")  # fmt: skip


def known_stages(workflow: WorkflowFile) -> Iterator[Finding]:
    known = {node.id for node in workflow.nodes}
    for i, edge in enumerate(workflow.edges):
        for key, stage in (("from", edge.from_), ("to", edge.to)):
            if stage.partition("#")[0] not in known:
                node = stage.partition("#")[0]
                hint = suggest_name(node, known)
                yield Finding("unknown_node", f"unknown node `{node}`", ("edges", i, key), hint)


def starts(workflow: WorkflowFile) -> Iterator[Finding]:
    """There is exactly one default start, and at least one exit."""
    found = [(node, at) for node, at in _nodes_with_steps(workflow) if node.role == "start"]
    defaults = [(node, at) for node, at in found if node.default]
    if not found:
        yield Finding("no_start", "no node has role: start", ("nodes",), "Add one with default: true.")
    elif not defaults:
        yield Finding("no_default_start", "no start has default: true", (*found[0][1], "id"),
                      f"Set default: true on `{found[0][0].id}`.")  # fmt: skip
    for _, at in defaults[1:]:
        message = f"`{defaults[0][0].id}` is already the default start"
        yield Finding("two_default_starts", message, (*at, "default"), "Keep default: true on one of them.")
    if not any(node.role == "exit" for node in workflow.nodes):
        yield Finding("no_exit", "no node has role: exit", ("nodes",), "Add one, and an edge to it.")


def keys_of_roles(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes_with_steps(workflow):
        for key, (roles, absent) in ONLY_ON.items():
            if node.role not in roles and getattr(node, key) != absent:
                message = f"{key} is for role: {' or '.join(roles)}, not {node.role}"
                yield Finding("wrong_role", message, (*at, key), "Remove it.")


def kinds(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes_with_steps(workflow):
        if node.kind == "agent":
            if node.role in DETERMINISTIC:
                yield Finding("must_be_deterministic", f"a {node.role} node must be kind: deterministic",
                              (*at, "kind"), "Put a linear node with the agent beside it.")  # fmt: skip
            if not node.agent:
                yield Finding("missing_agent", "kind: agent needs the key `agent`", (*at, "id"),
                              "Name an agent of agents.yaml or of the runtime.")  # fmt: skip
            if node.op:
                yield Finding("wrong_kind", "op is for kind: deterministic", (*at, "op"), "Remove it.")
        elif node.agent:
            yield Finding("wrong_kind", "agent is for kind: agent", (*at, "agent"), "Write kind: agent.")
        if node.isolation and not node.op:
            yield Finding("wrong_kind", "isolation is for nodes with an op", (*at, "isolation"), "Remove it.")
        if node.max_memory_mb and not node.isolation:
            yield Finding("unkeepable", "max_memory_mb needs isolation: process", (*at, "max_memory_mb"),
                          "Add isolation: process.")  # fmt: skip
        yield from _human_faults(node, at)
        if node.role == "exit" and node.tools:
            yield Finding("exit_with_tools", "an exit cannot have tools", (*at, "tools"), "Remove them.")


def _human_faults(node: NodeSpec, at: Steps) -> Iterator[Finding]:
    """A person is the whole body of a stage."""
    if node.human is None:
        return
    for key, wrong in (("kind", node.kind == "agent"), ("op", node.op), ("tools", node.tools)):
        if wrong:
            message = f"human and {key} cannot stand together"
            yield Finding("human_and_more", message, (*at, key), "Put a node of its own before this one.")
    if node.role == "decision" and node.human.on_expiry == "continue" and not node.default_edge:
        message = "on_expiry: continue of a decision needs a default_edge"
        yield Finding("cannot_continue", message, (*at, "human", "on_expiry"), "Add default_edge.")


def merges(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes_with_steps(workflow):
        if node.role != "merge":
            continue
        strategy = node.merge.strategy if node.merge else "list"
        strategy_key = "agent" if node.kind == "agent" else "op" if node.op else ""
        if strategy_key and strategy != strategy_key:
            yield Finding("merge_strategy", f"strategy: {strategy} does not use the node's {strategy_key}",
                          (*at, "merge", "strategy"), f"Write strategy: {strategy_key}.")  # fmt: skip
        elif not strategy_key and strategy in ("op", "agent"):
            yield Finding("merge_strategy", f"strategy: {strategy} needs the key `{strategy}`",
                          (*at, "merge", "strategy"), "Add it, or use another strategy.")  # fmt: skip


def continuing(workflow: WorkflowFile) -> Iterator[Finding]:
    for node, at in _nodes_with_steps(workflow):
        if not node.continue_on_failure:
            continue
        if why := NEVER_CONTINUES.get(node.role):
            yield Finding("cannot_continue", f"a {node.role} cannot continue_on_failure: {why}",
                          (*at, "continue_on_failure"), "Remove it.")  # fmt: skip
        elif node.role == "decision" and not node.default_edge:
            yield Finding("cannot_continue", "a decision can continue_on_failure only with a default_edge",
                          (*at, "continue_on_failure"), "Add default_edge.")  # fmt: skip


def error_exits(workflow: WorkflowFile) -> Iterator[Finding]:
    """`on_failure` names an exit that always fails."""
    by_id = {node.id: node for node in workflow.nodes}
    for node, at in _nodes_with_steps(workflow):
        if node.on_failure is None:
            continue
        target = by_id.get(node.on_failure.partition("#")[0])
        if target is None:
            hint = suggest_name(node.on_failure, by_id)
            yield Finding("unknown_node", f"unknown node `{node.on_failure}`", (*at, "on_failure"), hint)
        elif target.role != "exit" or not target.always_fail:
            message = f"`{node.on_failure}` is not an exit with always_fail: true"
            yield Finding("no_error_exit", message, (*at, "on_failure"), "Name such an exit.")


def decisions(workflow: WorkflowFile) -> Iterator[Finding]:
    """The labels of a decision are unique; `default_edge` is one of them."""
    by_id = {node.id: node for node in workflow.nodes}
    seen: dict[tuple[str, str], int] = {}
    for i, edge in enumerate(workflow.edges):
        node = by_id.get(edge.from_.partition("#")[0])
        if node is not None and node.role == "decision":
            label = edge.label or edge.to
            if seen.setdefault((edge.from_, label), i) != i:
                message = f"duplicate label `{label}` on the edges of `{edge.from_}`"
                yield Finding("duplicate_label", message, ("edges", i, "label"), "Give each its own label.")
    for node, at in _nodes_with_steps(workflow):
        labels = {e.label or e.to for e in workflow.edges if e.from_.partition("#")[0] == node.id}
        if node.role == "decision" and node.default_edge and node.default_edge not in labels:
            hint = suggest_name(node.default_edge, labels)
            yield Finding("unknown_edge", f"unknown edge `{node.default_edge}`", (*at, "default_edge"), hint)


def parallel_edges(workflow: WorkflowFile) -> Iterator[Finding]:
    """Only a decision may have two edges to the same merge or exit; their labels differ."""
    roles = {node.id: node.role for node in workflow.nodes}
    seen: set[tuple[str, str]] = set()
    for i, edge in enumerate(workflow.edges):
        pair = (edge.from_, edge.to)
        ends = roles.get(edge.from_.partition("#")[0]), roles.get(edge.to.partition("#")[0])
        if pair in seen and not (ends[0] == "decision" and ends[1] in ("merge", "exit")):
            message = f"duplicate edge from `{edge.from_}` to `{edge.to}`"
            yield Finding(
                "parallel_edge", message, ("edges", i), f"Lead to another occurrence: `{edge.to}#2`."
            )
        seen.add(pair)


def degrees(workflow: WorkflowFile) -> Iterator[Finding]:
    """Every occurrence has as many edges as its role needs; an exit may be reached by `on_failure` alone."""
    into, out = Counter(e.to for e in workflow.edges), Counter(e.from_ for e in workflow.edges)
    failing = {node.on_failure for node in workflow.nodes}
    where = {node.id: (node, at) for node, at in _nodes_with_steps(workflow)}
    for stage in {**successors_of(workflow), **dict.fromkeys(s for s in failing if s)}:
        found = where.get(stage.partition("#")[0])
        if found is None:
            continue
        node, at = found
        least_in, most_in, least_out, most_out = DEGREES[node.role]
        if stage in failing and node.role == "exit":
            least_in = 0
        for count, minimum, maximum, what in (
            (into[stage], least_in, most_in, "inbound"),
            (out[stage], least_out, most_out, "outbound"),
        ):
            if count < minimum or (maximum is not None and count > maximum):
                allowed = str(minimum) if maximum == minimum else f"{minimum} or more"
                hint = (
                    f"Use `{node.id}#2` for another occurrence."
                    if maximum is not None and count > maximum > 0
                    else ""
                )
                message = f"the {node.role} `{stage}` has {count} {what} edges; it needs {allowed}"
                yield Finding(f"{what}_degree", message, (*at, "id"), hint)


def acyclic(workflow: WorkflowFile) -> Iterator[Finding]:
    """The edges form no cycle."""
    cycle = find_cycle(successors_of(workflow))
    if cycle:
        i = next(i for i, e in enumerate(workflow.edges) if (e.from_, e.to) == (cycle[0], cycle[1]))
        message = f"the edges form a cycle: {' → '.join(cycle)}"
        yield Finding("cycle", message, ("edges", i), "Put loops into a stage: an agent's pattern may loop.")


def connected(workflow: WorkflowFile) -> Iterator[Finding]:
    """Every component has a start and an exit; every stage is reached; every start reaches an exit."""
    successors = successors_of(workflow)
    roles = {node.id: node.role for node in workflow.nodes}
    where = {node.id: at for node, at in _nodes_with_steps(workflow)}
    for node in workflow.nodes:
        if node.on_failure:
            successors.setdefault(node.on_failure, [])
            for stage in [s for s in successors if s.partition("#")[0] == node.id]:
                successors[stage] = [*successors[stage], node.on_failure]
    if any(stage.partition("#")[0] not in roles for stage in successors):
        return
    begin = [stage for stage in successors if roles[stage.partition("#")[0]] == "start"]
    for part in components(successors, successors):
        has = {roles[stage.partition("#")[0]] for stage in part}
        if missing := [role for role in ("start", "exit") if role not in has]:
            stage = min(part)
            message = f"the part with {', '.join(sorted(part)[:5])} has no {' and no '.join(missing)}"
            yield Finding(
                "component",
                message,
                (*where[stage.partition("#")[0]], "id"),
                "Add what is missing, or connect it.",
            )
    for stage in sorted(successors.keys() - reachable(successors, begin)):
        at = (*where[stage.partition("#")[0]], "id")
        yield Finding("unreachable", f"no start leads to `{stage}`", at, "Add an edge to it, or remove it.")
    for start in begin:
        if not any(roles[s.partition("#")[0]] == "exit" for s in reachable(successors, [start])):
            at = (*where[start.partition("#")[0]], "id")
            yield Finding("no_way_out", f"`{start}` reaches no exit", at, "Add edges that lead to an exit.")


STRUCTURE_RULES: tuple[Rule, ...] = (
    unique_ids, known_stages, starts, keys_of_roles, kinds, merges, continuing, error_exits, decisions,
    parallel_edges, degrees, acyclic, connected,
)  # fmt: skip


def structure_faults(workflow: WorkflowFile) -> list[Finding]:
    """Returns every fault of the structure."""
    return [finding for rule in STRUCTURE_RULES for finding in rule(workflow)]


def structure_warnings(workflow: WorkflowFile) -> list[Finding]:
    """Returns warnings for a workflow without faults."""
    nodes = {node.id: (node, at) for node, at in _nodes_with_steps(workflow)}
    successors = successors_of(workflow)
    found: dict[str, Finding] = {}
    for start in [node.id for node in workflow.nodes if node.role == "start"]:
        analysis = analyze(successors, start)
        for stage in analysis.order:
            node, at = nodes[stage.partition("#")[0]]
            if node.role != "merge" or stage not in analysis.idom:
                continue
            anchor = nodes[analysis.idom[stage].partition("#")[0]][0]
            strategy = node.merge.strategy if node.merge else "list"
            if anchor.role == "decision" and strategy == "list":
                message = (
                    f"`{stage}` merges the arms of the decision `{anchor.id}`, so that its list has one entry"
                )
                found[stage] = Finding(
                    "xor_join", message, (*at, "id"), "strategy: first passes it on unchanged."
                )
            elif anchor.role in ("branch", "split") and not analysis.is_closing(stage):
                message = f"an arm of `{anchor.id}` bypasses the merge `{stage}`"
                hint = "A Task that exits there counts only if no merge succeeds."
                found[stage] = Finding("bypassed_merge", message, (*at, "id"), hint)
    return list(found.values())
