"""Tools that the client of a run executes: what a request brings, what a run hands out, what comes back.

Encoders of protocols (chat completions and others) show the open calls of a waiting run in their own form. A
result names its call by an id that contains the run, so that no table of calls is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from astromesh.access.scopes import Viewer
from astromesh.core.guardrails import filter_data
from astromesh.core.tools import ToolRegistry
from astromesh.durable.approvals import open_questions, question_id
from astromesh.durable.base import JournalStep, RunRow
from astromesh.errors import ConfigError, InvalidInput, NotFound, NotOverridable, ToolNameTaken
from astromesh.runtime.agent import Agent
from astromesh.runtime.runs import Runs
from astromesh.tools.base import CLIENT_TOOL, ClientTool, ClientTools, DeclaredTool, ToolPolicy, ToolPort
from astromesh.tools.json_schema import argument_validator
from astromesh.types import JsonObject, ToolSpec

_CALL, _RUN = "call_", "run_"
#: the characters of a run's id behind `run_`, and those of a question's id that stand in the id of its call:
#: OpenAI's API allows 40 for all of it
_RUN_LENGTH, _QUESTION_LENGTH = 26, 8
#: a client's tool takes as long as the run waits for it
_NO_TIME_LIMIT = ToolPolicy(timeout_seconds=None)


def require_client_tools(agent: Agent, tools: ClientTools) -> None:
    """Checks the tools that a request brings for an agent.

    Raises:
        NotOverridable: the agent takes no tools of clients.
        ToolNameTaken: one has the name of a tool of the agent.
        InvalidInput: its models call no tools, two tools have one name, a schema is none, or the choice names
            no tool.
    """
    if not tools:
        return
    if agent.manifest.spec.client_tools == "deny":
        raise NotOverridable(
            f"The agent {agent.name!r} takes no tools of clients. `spec.client_tools: allow` opens them.",
            param="tools",
        )
    if not agent.can_call_tools:
        raise InvalidInput(f"Remove tools: the models of {agent.name!r} cannot call any.", param="tools")
    own, names = {spec.name for spec in agent.tools.specs()}, [spec.name for spec in tools.specs]
    for spec in tools.specs:
        if spec.name in own:
            raise ToolNameTaken(spec.name)
        if names.count(spec.name) > 1:
            raise InvalidInput(f"There are two tools named {spec.name!r}.", param="tools")
        try:
            argument_validator(spec)
        except ConfigError as error:
            raise InvalidInput(str(error), param="tools") from error
    if tools.choice not in ("auto", "required", *names):
        raise InvalidInput(f"tool_choice: there is no tool {tools.choice!r}.", param="tool_choice")


def client_tool_port(agent: Agent, specs: Sequence[ToolSpec]) -> ToolPort:
    """Returns the tools of a client behind the same checks as the agent's own tools."""
    released = partial(_released, agent)
    tools = [DeclaredTool(spec, ClientTool(spec, released), _NO_TIME_LIMIT) for spec in specs]
    return ToolRegistry().bind(agent.name, tools)


def _released(agent: Agent, arguments: JsonObject) -> JsonObject:
    rules = agent.guardrails
    return filter_data(rules, arguments, "tool_argument") if rules.output_rules else arguments


class ClientCall(NamedTuple):
    """An open call of a client's tool.

    Args:
        id: by which the client sends the result.
        arguments: JSON text.
    """

    id: str
    name: str
    arguments: str


def open_calls(waiting_for: Mapping[str, Any] | None) -> list[ClientCall]:
    """Returns the calls that a waiting run has handed to its client.

    Args:
        waiting_for: as in `ApprovalRequired`, and in the event `run.waiting`.
    """
    if waiting_for is None:
        return []
    questions = (waiting_for, *waiting_for.get("others", ()))
    return [_call(question) for question in questions if question["kind"] == CLIENT_TOOL]


def _call(question: Mapping[str, Any]) -> ClientCall:
    arguments = orjson.dumps(question["arguments"]).decode()
    return ClientCall(_call_id(question["run_id"], question["id"]), question["name"], arguments)


def _call_id(run_id: str, question: str) -> str:
    return f"{_CALL}{run_id.removeprefix(_RUN)}{question[:_QUESTION_LENGTH]}"


def results_of(run_id: str, steps: Sequence[JournalStep]) -> dict[str, Any]:
    """Returns what a run's client has answered, by the ids of the calls."""
    waits = (s for s in steps if s.kind == "wait" and s.output and "answer" in s.output)
    return {_call_id(run_id, question_id(s.path, s.n)): (s.output or {})["answer"] for s in waits}


async def find_waiting(
    runs: Runs, viewer: Viewer, agent: str, answers: Mapping[str, Any], now: float
) -> tuple[RunRow, dict[str, Any]] | None:
    """Returns the run that waits for results, and the results by the id of its question.

    Args:
        answers: results by the id of the call.
        now: in seconds since the epoch.

    Returns:
        None where no run of this agent waits for one of them: an id is foreign, or has expired.
    """
    for run_id in dict.fromkeys(map(_run_of, answers)):
        row = await _visible_row(runs, run_id, viewer) if run_id else None
        if row is None or row.agent != agent or row.status != "waiting":
            continue
        calls = (one for one in open_questions(row) if one["kind"] == CLIENT_TOOL)
        questions = [one for one in calls if one["expires_at"] > now]
        by_call = {_call_id(run_id, one["id"]): one["id"] for one in questions}
        if found := {by_call[call]: answer for call, answer in answers.items() if call in by_call}:
            return row, found
    return None


def _run_of(call: str) -> str:
    """Returns the run of a call, empty for an id of another service."""
    is_own = call.startswith(_CALL) and len(call) == len(_CALL) + _RUN_LENGTH + _QUESTION_LENGTH
    return f"{_RUN}{call[len(_CALL) : len(_CALL) + _RUN_LENGTH]}" if is_own else ""


async def _visible_row(runs: Runs, run_id: str, viewer: Viewer) -> RunRow | None:
    try:
        return await runs.row(run_id, viewer)
    except NotFound:
        return None


def screened_answer(agent: Agent, answer: Any) -> Any:
    """Returns a client's result as the input rules of the agent leave it.

    Raises:
        GuardrailBlocked: a rule refuses it. The run still waits.
    """
    if isinstance(answer, str):
        return agent.guardrails.check_input(answer).text if answer else answer
    return agent.guardrails.check_part({"answer": answer}, "context").value["answer"]
