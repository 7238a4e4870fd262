"""Agents of suspected stages run in processes of their own, with everything that they call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.workflows import agent_process, open_workflow
from astromesh.types import CompletionRequest, JsonObject, ToolCall
from astromesh.workflow.base import TaskResult
from astromesh.workflow.journal import Recorder
from astromesh.workflow.questions import Question
from tests.integration.workflow.folders import runtime_with, small

OPS = """
import os

def double(input, context, tools):
    return input

async def pid():
    return {"pid": os.getpid()}
"""
FILES = {
    "tools": "tools: [{id: pid, type: python, entrypoint: 'ops:pid', description: p, approval: required}]\n",
    "agents": "agents: [{id: own, model: m, tools: [pid], system_prompt: Help.}]\n",
    "providers": "providers: [{id: m, kind: llm, adapter: openai_compat, model: m}]\n",
}


async def script(request: CompletionRequest) -> Any:
    """A model that calls the tool, and answers with its result and its own process."""
    last = request.messages[-1]
    return ToolCall("c1", "pid", "{}") if last.role == "user" else f"{last.content} {os.getpid()}"


def reopened(folders: tuple[str, str]) -> AgentRuntime:
    """The runtime as the process of an agent opens it."""
    return runtime_with(Path(folders[0]), script, data_dir=folders[1])


class Approves:
    """A person who approves everything."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, str]] = []

    def can_wait(self, task: str) -> bool:
        return True

    async def ask(self, task: str, stage: str, ticket: str, question: Question) -> JsonObject:
        self.asked.append((os.getpid(), stage, question.name))
        return {"decision": "approve"}


async def suspected(config: Path, people: Approves) -> TaskResult:
    """The Task `s → x → e`, whose stage x is an agent that ran when its process died."""
    small(config, **FILES)
    folder = config / "workflows" / "small"
    (folder / "ops.py").write_text(OPS)
    node = "kind: agent, role: linear, context: none, agent: own, tools: [pid]"
    file = folder / "workflow.yaml"
    operation = "kind: deterministic, role: linear, context: none, op: 'ops:double'"
    file.write_text(file.read_text().replace(operation, node))
    records = [
        {"type": "begin", "task_id": "T", "start": "s", "input": "Where?"},
        {"type": "start", "task": "", "stage": "x"},
    ]
    async with reopened((str(config), str(config.parent / "data"))) as runtime:
        runtime.state.factory = f"{__name__}:{reopened.__name__}"
        process = agent_process(runtime.state, "small")
        engine = await open_workflow(
            runtime.state, "small", people=people, journal=Recorder(), agent_process=process
        )
        try:
            return await engine.resume(records)
        finally:
            await engine.close()


async def test_an_agent_of_the_workflow_runs_with_its_tools_and_model_in_another_process(
    tmp_path: Path,
) -> None:
    """People are asked by the server; calls, usage and output are those of the process."""
    people = Approves()
    result = await suspected(tmp_path / "config", people)
    assert result.status == "success", result.error
    found, model = str(result.output).rsplit(" ", 1)
    assert f'{{"pid":{model}}}' == found.replace(" ", "")
    assert int(model) != os.getpid()
    assert people.asked == [(os.getpid(), "x", "pid")]
    [stage] = result.history["x"]
    assert [call["tool"] for call in stage.tool_calls] == ["pid"]
    assert (stage.usage or {})["input_tokens"] > 0
