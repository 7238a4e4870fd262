"""A workflow as a Mermaid flowchart: a shape for each role, error edges dotted."""

from __future__ import annotations

from collections.abc import Mapping

from astromesh.config.workflow.nodes import NodeSpec, WorkflowFile
from astromesh.workflow.plan import ways_of

#: role → what stands around its label
SHAPES: Mapping[str, tuple[str, str]] = {
    "start": ("([", "])"),
    "linear": ("[", "]"),
    "decision": ("{", "}"),
    "branch": ("[/", "\\]"),
    "split": ("[[", "]]"),
    "merge": ("[\\", "/]"),
    "exit": ("((", "))"),
}


def mermaid(workflow: WorkflowFile) -> str:
    """The diagram; ids are quoted labels, so that any id can be drawn."""
    stages = list(ways_of(workflow))
    nodes = {node.id: node for node in workflow.nodes}
    for node in workflow.nodes:
        if node.on_failure and node.on_failure not in stages:
            stages.append(node.on_failure)
    ids = {stage: f"n{i}" for i, stage in enumerate(stages)}
    lines = ["flowchart TD", *(f"    {ids[s]}{_box(s, nodes[s.partition('#')[0]])}" for s in stages)]
    for edge in workflow.edges:
        label = f'|"{edge.label}"|' if edge.label else ""
        lines.append(f"    {ids[edge.from_]} -->{label} {ids[edge.to]}")
    for stage in stages:
        if target := nodes[stage.partition("#")[0]].on_failure:
            lines.append(f'    {ids[stage]} -.->|"on_failure"| {ids[target]}')
    return "\n".join(lines)


def _box(stage: str, node: NodeSpec) -> str:
    opening, closing = SHAPES[node.role]
    kind = f"<br/>agent: {node.agent}" if node.kind == "agent" else ""
    return f'{opening}"{stage}{kind}"{closing}'
