"""The runtime over MCP: agents as tools, and what `mcp_content` has beside them. At `/mcp`, and over stdio.

The first request loads the SDK, in a thread. Without a request, the server does not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from astromesh.access.scopes import RUN, Viewer, permits, principal_of
from astromesh.api.auth import caller_or_local
from astromesh.api.decisions import decide, may_decide, require_decide
from astromesh.api.dependencies import scope
from astromesh.api.errors import MCP_METADATA, issuer_of
from astromesh.api.mcp_content import AgentContent
from astromesh.api.requests import RunBody, cancel_on_disconnect, runtime_of
from astromesh.api.responses import DelegatedResponse
from astromesh.durable.approvals import open_questions, questions_in
from astromesh.errors import (
    AgentNotFoundError,
    ApprovalRequired,
    Conflict,
    Forbidden,
    Interrupted,
    InvalidInput,
    MissingExtra,
    NotFound,
)
from astromesh.plugins import Deps
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import Event, JsonObject, ToolSpec

router = APIRouter(tags=["mcp"])

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "minLength": 1,
            "description": "The question with all its context.",
        },
        "session_id": {
            "type": "string",
            "minLength": 1,
            "description": "Names a conversation to continue; without it, each call is a new one.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}


@router.post(
    "/mcp",
    summary="The agents over MCP",
    include_in_schema=False,
    dependencies=[scope(RUN, any_resource=True)],
)
async def mcp(request: Request) -> Response:
    """Serves MCP over streamable HTTP. POST is the only method: there are no sessions and no streams."""
    return DelegatedResponse(await _mcp_server(runtime_of(request)))


@router.get(MCP_METADATA, summary="Who issues tokens for /mcp", include_in_schema=False)
async def metadata(request: Request) -> JsonObject:
    """Describes `/mcp` as a protected resource (RFC 9728), if its tokens have an issuer."""
    issuer = issuer_of(request.app.state)
    if not issuer:
        raise NotFound("No issuer of tokens is configured (auth.jwt.issuer).")
    return {
        "resource": str(request.url.replace(path=request.scope.get("root_path", "") + "/mcp", query="")),
        "authorization_servers": [issuer],
        "bearer_methods_supported": ["header"],
        "scopes_supported": [RUN],
    }


async def serve_stdio(runtime: AgentRuntime) -> None:
    """Serves the agents to the program at stdin and stdout, until it closes stdin.

    Raises:
        NotFound: the extra `mcp` is missing.
    """
    await (await _mcp_server(runtime)).serve_stdio()


async def _mcp_server(runtime: AgentRuntime) -> Any:
    return await runtime.state.resources.shared(_McpServer, lambda: _McpServer(runtime))


class _McpServer:
    """The MCP server of a runtime, opened once."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    async def __aenter__(self) -> Any:
        try:
            plugin = await asyncio.to_thread(self._runtime.plugins.load, "publishers", "mcp")
        except MissingExtra as error:
            raise NotFound(f"This server publishes no MCP tools: {error}") from error
        tools = AgentTools(self._runtime)
        content = AgentContent(self._runtime).answers()
        options = plugin.Options(
            tools=tools.offered, call=tools.call, content=content, questions=tools.questions,
            proceed=tools.proceed,
        )  # fmt: skip
        deps = Deps(resources=self._runtime.state.resources, data_dir=self._runtime.data_dir)
        return await plugin.open(options, deps)

    async def __aexit__(self, *_: object) -> None:
        """Does nothing: the server is one of the runtime's resources and closes with them."""


class AgentTools:
    """The agents of a runtime as tools. Without a request, the caller is the user of this machine."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    def offered(self, request: Request | None) -> Iterator[ToolSpec]:
        """Returns the agents that this caller may run."""
        caller = caller_or_local(request)
        for name, agent in self._runtime.agents.items():
            if permits(caller.scopes, RUN, name):
                description = agent.manifest.spec.identity.description or f"Asks the agent {name}."
                schema = agent.manifest.spec.output_schema
                if schema is not None and schema.get("type") != "object":
                    schema = None  # MCP describes objects only
                yield ToolSpec(name, description, _PARAMETERS, "external", output_schema=schema)

    async def call(
        self, request: Request | None, name: str, arguments: JsonObject, report: Callable[[str], None]
    ) -> str | JsonObject:
        """Runs an agent and returns its answer, as an object where the schema of the agent says so.

        A client that disconnects cancels the run.

        Args:
            report: receives what the run does.

        Raises:
            Forbidden, AgentNotFoundError, InvalidInput, and what a run raises.
        """
        caller, agent = caller_or_local(request), self._agent(request, name)
        run_request, sinks = _run_request(arguments, request), (_ProgressSink(report),)
        run = self._runtime.runner.start(agent, run_request, caller=caller, sinks=sinks)
        return await _answer(request, agent, run)

    def questions(
        self, request: Request | None, waiting: ApprovalRequired
    ) -> dict[str, tuple[str, JsonObject]]:
        """Returns what a run asks, as text and form by the id of the question.

        Empty for a caller without `runs:decide`, and where the run waits for anything but a person.
        """
        asked = questions_in(waiting.waiting_for)
        if not may_decide(caller_or_local(request)) or not all(map(_is_askable, asked)):
            return {}
        return {one["id"]: (_question_text(one), _form(one)) for one in asked}

    async def proceed(
        self,
        request: Request | None,
        name: str,
        run_id: str,
        answers: Mapping[str, JsonObject],
        report: Callable[[str], None],
    ) -> str | JsonObject:
        """Continues the caller's own run with the answers of the client's user, and returns as `call`.

        Raises:
            Forbidden, NotFound, NotWaiting, ApprovalNotFound, InvalidInput, and what a run raises.
        """
        caller, agent, runtime = caller_or_local(request), self._agent(request, name), self._runtime
        row = await runtime.runs.row(run_id, Viewer(*principal_of(caller)))
        if row.agent != name:
            raise NotFound(f"The run {run_id!r} is not one of {name!r}.")
        require_decide(caller)
        if any(one.get("action") == "cancel" for one in answers.values()):
            raise Conflict(
                f"The run {run_id} still waits for a decision: POST /v1/runs/{run_id}/resume makes it."
            )
        asked = {one["id"]: one for one in open_questions(row)}
        decisions = {which: _decision(asked.get(which, {}), answer) for which, answer in answers.items()}
        if not decisions:
            raise ApprovalRequired("The run waits for a person's decision.", run_id, row.waiting_for)
        last = await runtime.runs.last_event(run_id)
        log = request.app.state.audit if request is not None else None
        decided = await decide(runtime, row, decisions, caller, log)
        return await _answer(request, agent, runtime.runner.wait(decided, last, (_ProgressSink(report),)))

    def _agent(self, request: Request | None, name: str) -> Agent:
        """Raises: Forbidden, AgentNotFoundError: the caller may not run it, or it does not exist."""
        runtime = self._runtime
        if not permits(caller_or_local(request).scopes, RUN, name):
            raise Forbidden(f"This call needs the scope '{RUN}:{name}'.")
        if name not in runtime.agents and name not in runtime.broken:
            raise AgentNotFoundError(name, "tools/list names those that you may run.")
        return runtime.agent(name)


async def _answer(request: Request | None, agent: Agent, run: Awaitable[RunAnswer]) -> str | JsonObject:
    if request is None or agent.continues_on_disconnect:
        return _result(await run)
    try:
        return _result(await cancel_on_disconnect(request, run))
    except ClientDisconnect as error:  # nobody reads the result
        raise Interrupted("The client has disconnected.") from error


# -- questions for the user of a client ----------------------------------------------------------------------

_APPROVALS, _ANSWERS = frozenset({"approval", "unknown_outcome"}), frozenset({"human", "interrupt"})


def _is_askable(question: Mapping[str, Any]) -> bool:
    return question["kind"] in _APPROVALS | _ANSWERS


def _question_text(question: Mapping[str, Any]) -> str:
    """Returns a question with all arguments of the call: nobody is to approve what they do not see."""
    about = orjson.dumps(question["arguments"], default=str).decode()
    if question["kind"] == "unknown_outcome":
        return f"It is unknown whether {question['name']} has run with {about}. Run it again?"
    if question["kind"] == "approval":
        return f"May {question['name']} run with {about}?"
    return str(question.get("question") or f"{question['name']} asks: {about}")


def _form(question: Mapping[str, Any]) -> JsonObject:
    """Returns a JSON Schema in the form that MCP allows."""
    if question["kind"] in _APPROVALS:
        key, value = "approved", {"type": "boolean", "title": "Approve"}
    else:
        key, value = "answer", {"type": "string", "title": "Answer"}
    return {"type": "object", "properties": {key: value}, "required": [key]}


def _decision(question: Mapping[str, Any], answer: JsonObject) -> JsonObject:
    """Returns a user's answer as a decision. Raises: InvalidInput: it does not fit the form."""
    if answer.get("action") != "accept":
        return {"decision": "deny"}
    content = answer.get("content") or {}
    if question.get("kind") in _ANSWERS:
        if isinstance(text := content.get("answer"), str):
            return {"decision": "answer", "answer": text}
        raise InvalidInput("answer: it must be a text.")
    if not isinstance(content.get("approved"), bool):
        raise InvalidInput("approved: it must be true or false.")
    return {"decision": "approve" if content["approved"] else "deny"}


def _result(answer: RunAnswer) -> str | JsonObject:
    return answer.output if isinstance(answer.output, dict) else answer.response


class _ProgressSink:
    """Reports the steps of a run: tool calls, and model calls after the first one."""

    wants_deltas = False

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def send(self, event: Event) -> None:
        if event.type == "tool.started":
            self._report(f"Calls {event.data['name']}.")
        elif event.type == "model.started" and event.data["step"] > 1:
            self._report(f"Asks the model, step {event.data['step']}.")


def _run_request(arguments: JsonObject, request: Request | None) -> RunRequest:
    """Raises: InvalidInput: an argument is unknown or wrong."""
    try:
        body = RunBody.model_validate({"session_id": f"mcp-{uuid4().hex}", **_run_arguments(arguments)})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInput(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}.") from error
    caused_by = read_traceparent(request.headers.get("traceparent") if request is not None else None)
    return RunRequest(body.query, body.session_id, caused_by=caused_by)


def _run_arguments(arguments: JsonObject) -> JsonObject:
    """Returns the arguments that have a value. Raises: InvalidInput: one is unknown."""
    if unknown := sorted(arguments.keys() - _PARAMETERS["properties"].keys()):
        raise InvalidInput(f"Unknown argument {unknown[0][:64]!r}: an agent takes query and session_id.")
    return {key: value for key, value in arguments.items() if value not in (None, "")}
