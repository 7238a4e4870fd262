"""Makes cases of recorded runs and Tasks: input, proposed checks, recording; text as the rules left it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from astromesh import errors
from astromesh.access.scopes import Viewer
from astromesh.durable.base import ENDED_STATUSES, JournalStep, RunRow
from astromesh.durable.recording import requests_of
from astromesh.durable.step_view import listed, name_of, output_of, without_sealed
from astromesh.errors import AstromeshError, Conflict
from astromesh.evaluation.base import CalledTool
from astromesh.evaluation.dataset import FOLDER, ProposedCase
from astromesh.graph.call_record import (
    RecordedAnswer,
    RecordedToolCall,
    arguments_of,
    completion_of,
    recording_json,
)
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import CompletionRequest, JsonObject, ToolCall

#: longer answers are expected to contain their beginning
_MAX_ANSWER, _BEGINNING = 200, 80
#: ids of Tasks begin with it
TASK = "task_"


async def propose_case(runtime: AgentRuntime, run_id: str, viewer: Viewer, case_id: str = "") -> ProposedCase:
    """Returns a case of a run that has ended, or of a Task. Writes nothing.

    Args:
        run_id: of a run or a Task.
        case_id: its id in the dataset; empty: that of the run.

    Raises:
        RunNotFound, TaskNotFound: it does not exist, e.g. because the data of its principal was erased.
        NotRecorded: the run has no record.
        Conflict: it has not ended.
    """
    if run_id.startswith(TASK):
        return await _case_of_task(runtime, run_id, viewer, case_id)
    row, steps = await runtime.time_travel.recorded(run_id, viewer)
    if row.status not in ENDED_STATUSES:
        raise Conflict(f"The run {run_id!r} has not ended. Make a case of it when it has.")
    own = [step for step in listed(steps) if _NESTED not in step.path]
    requests = _requests(steps, own, _output_schema(runtime, row))
    case = {"id": case_id or run_id, **_input(row, own), "assertions": _checks(row, own, requests)}
    folder = runtime.config_dir / FOLDER
    if row.status != "completed":
        return ProposedCase(folder, row.agent, case, note=f"The run is {row.status}, so it has no recording.")
    return ProposedCase(folder, row.agent, case, _recording(own, requests))


#: in the path of a step, before the place of a nested run
_NESTED = "/run:"
#: requests of model calls by path and number of their steps
Requests = Mapping[tuple[str, int], CompletionRequest]


def _requests(
    steps: Sequence[JournalStep], own: Iterable[JournalStep], schema: JsonObject | None
) -> Requests:
    """Returns the requests as a model receives them. Args: schema: of the answer of the agent."""
    found = requests_of(steps)
    keys = [(step.path, step.n) for step in own if step.kind == "model"]
    read = {key: convert(found[key], CompletionRequest) for key in keys if key in found}
    return {key: _with_schema(request, schema) for key, request in read.items()}


def _with_schema(request: CompletionRequest, schema: JsonObject | None) -> CompletionRequest:
    may_answer = request.answers and not request.role
    if schema is None or not may_answer or request.output_schema is not None:
        return request
    return replace(request, output_schema=schema)


def _output_schema(runtime: AgentRuntime, row: RunRow) -> JsonObject | None:
    if (schema := row.request.get("output_schema")) is not None:
        return dict(schema)
    agent = row.agent
    found = runtime.agent(agent).output_schema if agent in runtime.agents else None
    return None if found is None else found.json_schema


def _input(row: RunRow, steps: Iterable[JournalStep]) -> JsonObject:
    """Returns the keys of a case that say what the agent received."""
    outputs = {step.path: output_of(step) or {} for step in steps if step.kind == "value"}
    admitted = outputs.get("input", {})
    history = admitted.get("history") or outputs.get("memory", {}).get("history") or ()
    messages = [{"role": one["role"], "content": one["content"]} for one in history if one.get("content")]
    keys = {"input": admitted.get("query", ""), "context": row.request.get("context"), "history": messages}
    return {key: value for key, value in keys.items() if value or key == "input"}


def _checks(row: RunRow, steps: Sequence[JournalStep], requests: Requests) -> list[JsonObject]:
    """Returns checks that the outcome of a run passes. A run that failed is expected to complete."""
    checks: list[JsonObject] = [{"type": "status", "expected": "completed"}]
    if row.status != "completed":
        return checks
    result = row.result or {}
    checks[0]["expected"] = result.get("metadata", {}).get("stop_reason", "completed")
    calls = [CalledTool(call.name, arguments_of(ToolCall("", call.name, call.arguments)))
             for call in _tool_calls(steps)]  # fmt: skip
    may_call = any(request.tools for request in requests.values())
    return [
        *checks,
        *_call_checks(calls, may_call),
        *_answer_checks(result.get("output", result["response"])),
    ]


def _call_checks(calls: Iterable[CalledTool], may_call: bool) -> list[JsonObject]:
    """Args: may_call: whether there were tools to call."""
    checks: list[JsonObject] = []
    for call in calls:
        check: JsonObject = {"type": "tool_called", "tool": call.name}
        if isinstance(call.arguments, dict) and call.arguments:
            check["arguments"] = call.arguments
        if check not in checks:
            checks.append(check)
    return checks or ([{"type": "no_tool_called"}] if may_call else [])


def _answer_checks(answer: Any) -> list[JsonObject]:
    if answer is None or answer == "":
        return []
    if isinstance(answer, str) and len(answer) > _MAX_ANSWER:
        beginning = answer.lstrip()[:_BEGINNING].partition("\n")[0]
        return [{"type": "contains", "expected": beginning}]
    return [{"type": "equals", "expected": answer}]


# -- the recording of a run ----------------------------------------------------------------------------------


def _recording(steps: Sequence[JournalStep], requests: Requests) -> JsonObject:
    answers = [
        _answer(request, step.output)
        for step in steps
        if step.output and (request := requests.get((step.path, step.n))) is not None
    ]
    tools = {tool.name: tool for request in requests.values() for tool in request.tools}
    return recording_json(answers, tools.values(), _tool_calls(steps))


def _answer(request: CompletionRequest, output: JsonObject) -> RecordedAnswer:
    if "failure" in output:
        failure = output["failure"]
        kind = getattr(errors, failure["type"], AstromeshError)
        return RecordedAnswer(request, None, {"code": kind.code, "message": failure["message"]})
    return RecordedAnswer(request, completion_of(without_sealed(output["result"])))


def _tool_calls(steps: Iterable[JournalStep]) -> list[RecordedToolCall]:
    found = []
    for step in steps:
        if step.kind == "tool" and (output := step.output) is not None:
            about = step.about or {}
            arguments = about.get("in") or "{}"
            found.append(RecordedToolCall(name_of(step), arguments, output["content"], output["ok"]))
    return found


# -- Tasks ---------------------------------------------------------------------------------------------------


async def _case_of_task(runtime: AgentRuntime, task_id: str, viewer: Viewer, case_id: str) -> ProposedCase:
    await runtime.load_workflows()
    tasks = runtime.workflows.tasks
    recording = await tasks.recording(task_id, viewer)
    trace = await tasks.trace(task_id, viewer)
    folder = runtime.workflows.loaded.require_engine(recording.workflow).project.folder / FOLDER
    calls = [
        CalledTool(call["tool"], arguments_of(ToolCall("", call["tool"], call["arguments"])))
        for entry in trace["trace"]
        for call in entry["tool_calls"]
    ]
    checks: list[JsonObject] = [
        {"type": "status", "expected": trace["status"]},
        {"type": "path", "expected": [entry["stage_id"] for entry in trace["trace"]]},
        *_call_checks(calls, may_call=False),
        *_answer_checks(trace["output"]),
    ]
    case = {"id": case_id or task_id, "input": recording.input, "start": recording.start}
    case["assertions"] = checks
    recorded = recording.to_json()
    for stage in recorded["stages"]:
        stage["calls"] = [_without_sealed_in(call) for call in stage["calls"]]
    return ProposedCase(folder, recording.workflow, case, recorded)


def _without_sealed_in(call: JsonObject) -> JsonObject:
    """Returns a call of a stage without what only the provider of its model may read."""
    if call["kind"] != "model":
        return call
    request, answer = call["request"], call.get("answer")
    if "messages" in request:
        request = {**request, "messages": without_sealed(request["messages"])}
    return {**call, "request": request, **({} if answer is None else {"answer": without_sealed(answer)})}
