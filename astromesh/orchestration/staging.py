"""pipeline: stages one after another, each output the next one's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from astromesh.graph.config import NodeConfig
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.briefing import Briefed, ToolLoop, asked
from astromesh.orchestration.graph_pattern import NOTES
from astromesh.types import JsonObject, Message


class Stage(NamedTuple):
    """One stage. `role` names the model, empty for the main one."""

    name: str
    prompt: str
    role: str = ""


@dataclass(slots=True)
class StageNotes:
    """The stages that are done, and what the last of them put out."""

    done: list[str] = field(default_factory=list)
    output: str = ""

    def metadata(self) -> JsonObject:
        return {"stages": list(self.done)}


class StageNode(Briefed):
    """Runs a stage on the question and the output of the stage before."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        if not result.error:
            notes: StageNotes = config[NOTES]
            notes.done.append(self.name)
            notes.output = str(result.output or "")
        return result


def stages_graph(stages: Sequence[Stage], max_iterations: int) -> PromptGraph:
    """The stages in their order; the last one speaks, one that fails ends the run.

    Args:
        stages: at least one, with different names.
        max_iterations: model calls of one stage.
    """
    last = stages[-1]
    nodes = [_node(stage, "" if stage is last else "worker", max_iterations) for stage in stages]
    return PromptGraph("pipeline", nodes=nodes).sequential(*(node.name for node in nodes))


def _node(stage: Stage, voice: str, max_iterations: int) -> StageNode:
    loop = ToolLoop(
        "act",
        role=voice,
        answers=not voice,
        max_rounds=max_iterations,
        instructions=stage.prompt,
        model_override=stage.role or None,
    )
    return StageNode(stage.name, loop, _brief, flags={NodeFlag.CRITICAL}, is_terminal=not voice)


def _brief(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: StageNotes = config[NOTES]
    before = notes.done[-1] if notes.done else ""
    return asked(state.messages, **{f"Result of {before}": notes.output})
