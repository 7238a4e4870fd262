"""Workflows in a line: `"s>b b>x b>y x>m y>m m>e"` with a role for each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from astromesh.config.workflow import (
    AgentsFile,
    MemoryFile,
    PolicyFile,
    SchedulerFile,
    ToolsFile,
    WorkflowFile,
)
from astromesh.config.workflow_folder import WorkflowFolder
from astromesh.workflow import Engine, Project, TaskResult, validation

OPS = "tests.unit.workflow.operations"
FOLDER = Path(__file__).parent
FILES: dict[str, Any] = {
    "agents.yaml": AgentsFile,
    "tools.yaml": ToolsFile,
    "memory.yaml": MemoryFile,
    "policy.yaml": PolicyFile,
    "scheduler.yaml": SchedulerFile,
}
#: first letter of a node's id → its role, unless it is told
ROLES = {"s": "start", "e": "exit", "d": "decision", "b": "branch", "p": "split", "m": "merge"}


def manifest(edges: str, nodes: dict[str, dict[str, Any]] | None = None, **task: Any) -> WorkflowFile:
    """A workflow from its edges (`a>b` or `a>b:label`); `nodes` says more about some of them.

    A node's role goes by its first letter: s(tart), e(xit), d(ecision), b(ranch), p (split), m(erge); all
    others are linear. `op: NAME` is a function of `operations`; merges with an op have strategy op, splits
    are of mode items.
    """
    told = nodes or {}
    pairs = [_edge(text) for text in edges.split()]
    ids = dict.fromkeys(stage.partition("#")[0] for edge in pairs for stage in (edge["from"], edge["to"]))
    for node in told.values():
        if target := node.get("on_failure"):
            ids.setdefault(target)
    first_start = next((one for one in ids if _role(one, told) == "start"), "")
    return WorkflowFile.model_validate_json(
        orjson.dumps(
            {
                "version": 1,
                "workflow": "sample",
                "nodes": [_node(one, told.get(one, {}), default=one == first_start) for one in ids],
                "edges": pairs,
                "task": task,
            }
        )
    )


def project(edges: str, nodes: dict[str, dict[str, Any]] | None = None, **more: Any) -> Project:
    """A sound project; `more` are files by their stems (also in `files`), schemas, and settings of `task`."""
    given = {**more.pop("files", {})}
    for key in ("agents", "tools", "policy", "scheduler", *(() if "memory" in given else ("memory",))):
        if key in more:
            given[key] = more.pop(key)
    files = {
        f"{key}.yaml": FILES[f"{key}.yaml"].model_validate_json(orjson.dumps(value))
        for key, value in given.items()
    }
    schemas = more.pop("schemas", {})
    workflow = manifest(edges, nodes, **more)
    assert validation.structure_faults(workflow) == []
    return Project(
        "sample", FOLDER, workflow, WorkflowFolder(FOLDER, {"workflow.yaml": workflow, **files}, {}, schemas)
    )


async def run(
    edges: str, nodes: dict[str, dict[str, Any]] | None = None, input: Any = "", **more: Any
) -> TaskResult:
    """What a workflow comes to."""
    options = {key: more.pop(key) for key in ("models", "log", "clock", "run_agent", "gate") if key in more}
    start = more.pop("start", None)
    engine = Engine(project(edges, nodes, **more), new_id=lambda: "T", **options)
    async with engine:
        return await engine.run(input, start)


def states(result: TaskResult) -> dict[str, str]:
    return {task["path"]: task["state"] for task in result.tasks}


def _edge(text: str) -> dict[str, Any]:
    way, _, label = text.partition(":")
    source, _, target = way.partition(">")
    return {"from": source, "to": target, **({"label": label} if label else {})}


def _role(node: str, told: dict[str, dict[str, Any]]) -> str:
    role: str = told.get(node, {}).get("role", ROLES.get(node[0], "linear"))
    return role


def _node(node: str, told: dict[str, Any], *, default: bool) -> dict[str, Any]:
    made = {
        "id": node,
        "kind": "deterministic",
        "role": ROLES.get(node[0], "linear"),
        "context": "none",
        **told,
    }
    if "op" in made and ":" not in made["op"]:
        made["op"] = f"{OPS}:{made['op']}"
    if made["role"] == "merge" and "op" in made:
        made["merge"] = {"strategy": "op", **made.get("merge", {})}
    if made["role"] == "decision" and made["kind"] == "deterministic":
        made.setdefault("op", f"{OPS}:select")
    if made["role"] == "split":
        made["split"] = {"mode": "items", **made.get("split", {})}
        made.setdefault("op", f"{OPS}:as_items")
    if default:
        made["default"] = True
    return made
