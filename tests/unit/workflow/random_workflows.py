"""Random workflows whose nodes have the degrees of their roles, and a machine that runs the rules alone."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from astromesh.config.workflow import WorkflowFile
from astromesh.workflow.base import StageFault, Task
from astromesh.workflow.plan import Stage, compile_plan, fork_children
from astromesh.workflow.state_machine import EmitEvent, Outcome, StartStage, StateMachine
from astromesh.workflow.validation import structure_faults
from tests.unit.workflow.samples import manifest

Ends = list[tuple[str, str]]


@st.composite
def workflows(draw: st.DrawFn) -> WorkflowFile:
    """Six to forty nodes of all roles; ends of edges are led on, split up, merged and closed at random."""
    size = draw(st.integers(6, 40))
    edges: list[str] = []
    nodes: dict[str, dict[str, Any]] = {}
    ends: Ends = [("s", "")]
    for number in range(size):
        role = draw(st.sampled_from(["linear", "decision", "branch", "split", "merge", "merge", "exit"]))
        if role == "exit" and len(ends) == 1:
            role = "branch"
        if role == "merge" and len({source for source, _ in ends}) < 2:
            role = "branch"
        name = {"linear": "x", "decision": "d", "branch": "b", "split": "p", "merge": "m", "exit": "e"}[role]
        node = f"{name}{number}"
        taken = _taken(draw, ends, 2 if role == "merge" else 1)
        edges += [_edge(source, label, node) for source, label in taken]
        nodes[node] = _told(draw, role)
        if role != "exit":
            most = {"linear": (1, 1), "merge": (1, 1), "split": (1, 3)}.get(role, (2, 3))
            count = draw(st.integers(*most))
            ends += [(node, f"l{i}" if role == "decision" else "") for i in range(count)]
    for i, (source, label) in enumerate(ends):
        edges.append(_edge(source, label, f"e_last{i}"))
    made = manifest(" ".join(edges), nodes)
    assert structure_faults(made) == []
    return made


def _taken(draw: st.DrawFn, ends: Ends, least: int) -> Ends:
    """Some open ends of different sources."""
    most = draw(st.integers(least, 3)) if least > 1 else 1
    taken: Ends = []
    while len(taken) < most:
        left = [end for end in ends if end[0] not in {source for source, _ in taken}]
        if not left:
            break
        end = draw(st.sampled_from(left))
        ends.remove(end)
        taken.append(end)
    return taken


def _told(draw: st.DrawFn, role: str) -> dict[str, Any]:
    if role == "merge":
        rules = {
            "min_success": draw(st.sampled_from([1, 1, 0, 2])),
            "on_failure": draw(st.sampled_from(["continue", "continue", "halt"])),
        }
        return {"merge": rules}
    if role == "split":
        return {"split": {"on_empty": draw(st.sampled_from(["fail", "continue"]))}}
    if role == "branch":
        return {"branch": {"on_exit": draw(st.sampled_from(["cancel_siblings", "wait_all"]))}}
    if role == "linear" and draw(st.booleans()):
        return {"continue_on_failure": True}
    return {}


def _edge(source: str, label: str, target: str) -> str:
    return f"{source}>{target}:{label}" if label else f"{source}>{target}"


@dataclass
class Trial:
    """What came of one run of the rules."""

    flow: StateMachine
    executed: list[tuple[str, str]] = field(default_factory=list)
    fired: list[tuple[str, str]] = field(default_factory=list)

    @property
    def outcome(self) -> Any:
        root = self.flow.root
        return root.status, root.output, root.error

    @property
    def by_lineage(self) -> dict[str, Any]:
        return {p: (t.state, t.status, t.output, t.merged_from) for p, t in self.flow.tasks.items()}


def trial(
    workflow: WorkflowFile, world: int, timing: int, look: Callable[[StateMachine], None] = lambda flow: None
) -> Trial:
    """Runs the rules with made-up stages.

    Args:
        world: decides what each stage comes to, by its lineage: failures, arms, numbers of items.
        timing: decides which of the stages under way ends next.
        look: is shown the state after each event.
    """
    flow = StateMachine(compile_plan(workflow, "s"), "T")
    done = Trial(flow)
    chance = random.Random(timing)
    under_way: list[StartStage] = []

    def take(commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, StartStage):
                under_way.append(command)
            elif isinstance(command, EmitEvent) and command.type == "merge.fired":
                done.fired.append((command.data["task"], command.data["stage"]))

    take(flow.begin("input"))
    while under_way:
        command = under_way.pop(chance.randrange(len(under_way)))
        task = command.task
        if task.state != "running":
            continue
        done.executed.append((task.path, task.stage))
        stage = flow.plan.stages[task.stage]
        refused = command.error
        take(flow.finish_stage(task, Outcome(error=refused) if refused else _outcome(stage, task, world)))
        look(flow)
    return done


def _outcome(stage: Stage, task: Task, world: int) -> Outcome:
    luck = zlib.crc32(f"{world}|{task.path}|{stage.id}".encode())
    if stage.role not in ("exit", "start") and luck % 7 == 0:
        return Outcome(error={"code": "bad_luck", "message": "as the world wants it"})
    text = f"{zlib.crc32(repr((stage.id, task.input)).encode()):x}"
    if stage.role == "decision":
        return Outcome(text, edge=stage.out[(luck >> 4) % len(stage.out)])
    if stage.role in ("branch", "split"):
        output = {"subtask_inputs": [f"{text}.{i}" for i in range((luck >> 4) % 5)]}
        try:
            return Outcome(output, parts=fork_children(stage, output))
        except StageFault as fault:
            return Outcome(error={"code": fault.code, "message": str(fault)})
    return Outcome(text)
