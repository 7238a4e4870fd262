"""Operations in worker processes: both sides of the call. What agents need for it is in `engine`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from astromesh.graph.call_record import to_lenient_json
from astromesh.graph.scope import Journal
from astromesh.tools.process_pool import Port, call_in_process
from astromesh.types import JsonObject, ToolResult
from astromesh.workflow.base import StageFault, canonical
from astromesh.workflow.memory import OperationContext, item_from_json
from astromesh.workflow.operations import load_operation
from astromesh.workflow.questions import Ask
from astromesh.workflow.tools import StageTools

#: runs the agent of a stage in a process that opens the workflow anew; returns what `engine` does.
#: Takes the request, the journal of the Task, and what asks people. The request is `{start, stage, manifests,
#: place, task_id, task, input, context, caller, trace_id, sampled, can_wait}`. Raises ProcessDied.
AgentProcess: TypeAlias = Callable[[JsonObject, Journal | None, Ask], Awaitable[JsonObject]]

# -- in this process -----------------------------------------------------------------------------------------


async def call_operation(
    function: tuple[Path, str],
    value: Any,
    context: OperationContext,
    tools: StageTools,
    *,
    max_memory_mb: int = 0,
    alone: bool = False,
) -> Any:
    """Returns the result of an operation that runs in a worker process, as JSON.

    Args:
        function: folder of the workflow, `module:function`.
        tools: answer the operation's calls, in this process.
        alone: whether its process serves nothing else.

    Raises:
        ForeignError: it raised an exception, or its result has no JSON form.
        ProcessDied: its process died.
    """

    async def answer(question: JsonObject) -> Any:
        try:
            result = await tools.call(question["tool"], **question["arguments"])
        except StageFault as fault:
            return {"fault": {"code": fault.code, "message": str(fault)}}
        return to_lenient_json(result)

    folder, name = function
    payload = {
        "folder": str(folder),
        "operation": name,
        "input": value,
        "context": {**asdict(context), "items": [item.to_json() for item in context.items]},
        "tools": list(tools.names),
    }
    handler = f"{__name__}:{run_operation.__name__}"
    return await call_in_process(handler, payload, answer=answer, max_memory_mb=max_memory_mb, alone=alone)


# -- in the worker process -----------------------------------------------------------------------------------


class _ToolsOfParent:
    """The tools of an operation: its parent makes the calls. See `StageTools`."""

    def __init__(self, names: Sequence[str], port: Port) -> None:
        self.names, self._port = tuple(names), port

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        answer = await self._port.ask({"tool": name, "arguments": arguments})
        if "fault" in answer:
            raise StageFault(**answer["fault"])
        return ToolResult(**answer)


async def run_operation(payload: JsonObject, port: Port) -> Any:
    """Runs an operation; see `tools.process_pool`."""
    function = load_operation(Path(payload["folder"]), payload["operation"])
    context = payload["context"]
    context = OperationContext(**{**context, "items": tuple(map(item_from_json, context["items"]))})
    result = function(payload["input"], context, _ToolsOfParent(payload["tools"], port))
    return canonical(await result if inspect.isawaitable(result) else result)
