"""The runtime over MCP at `/mcp` and over stdio: agents as tools, knowledge and runs as resources, prompts.

A resource is the answer of a route of `/v1`, and needs the scope of that route: `rag:query` for knowledge,
`runs:read` for runs. A prompt shows of a manifest what `GET /v1/agents/{name}/manifest` shows, for
`agents:manifest`. So values of environment variables do not appear in it.

The first request loads the SDK, in a thread. Without a request, the server does not load it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit
from uuid import uuid4

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from astromesh.access.scopes import RUN, Viewer, permits, principal_of, require_scope
from astromesh.api.auth import caller_or_local
from astromesh.api.dependencies import Cursor, scope
from astromesh.api.errors import MCP_METADATA, issuer_of
from astromesh.api.event_streams import DelegatedResponse
from astromesh.api.requests import RunBody, cancel_on_disconnect, runtime_of, viewer_of_caller
from astromesh.api.routes.rag import DocumentsOut, PassagesOut, QueryIn, documents_of, passages_of
from astromesh.api.routes.runs import decide, may_decide, public_run, require_decide
from astromesh.api.schemas import RunStateOut
from astromesh.config.parser import Document, parse_text
from astromesh.core.prompt_engine import PromptEngine, PromptTemplate
from astromesh.durable.approvals import open_questions, questions_in
from astromesh.durable.base import RunQuery
from astromesh.errors import (
    AgentNotFoundError,
    ApprovalRequired,
    ConfigError,
    Conflict,
    Interrupted,
    InvalidInput,
    MissingExtra,
    NotFound,
)
from astromesh.knowledge.base import DocumentsOf
from astromesh.plugins import Deps
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.monitoring import agent_manifest
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import CallerContext, Event, JsonObject, MemoryContext, ToolSpec

# -- resources and prompts -----------------------------------------------------------------------------------

#: answers one method of MCP: the request, absent over stdio, and the parameters
Answer = Callable[[Request | None, JsonObject], Awaitable[JsonObject]]

_KNOWLEDGE, _RUNS, _MANIFESTS = "rag:query", "runs:read", "agents:manifest"
#: runs and documents of one page
_PAGE = 50
_JSON = "application/json"
_DOCUMENTS = "astromesh://rag/{pipeline}/documents{?of,after}"
_TEMPLATES = (
    (_KNOWLEDGE, "documents", _DOCUMENTS, "Documents of a pipeline; `next` of a page is `after`."),
    (_KNOWLEDGE, "passages", "astromesh://rag/{pipeline}/passages{?query}", "The best passages for a query."),
    (_RUNS, "run", "astromesh://runs/{run_id}", "The state and outcome of a run."),
)  # fmt: skip


class AgentContent:
    """Knowledge, runs and templates of a runtime, for what a caller may read."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    def answers(self) -> Mapping[str, Answer]:
        """Returns what answers each method."""
        return {
            "resources/list": self.resources,
            "resources/templates/list": self.templates,
            "resources/read": self.read,
            "prompts/list": self.prompts,
            "prompts/get": self.prompt,
        }

    # -- resources -----------------------------------------------------------------------------------------

    async def resources(self, request: Request | None, params: JsonObject) -> JsonObject:
        """Lists pipelines, then runs, the newest first. The cursor is of the last run of a page.

        Raises: InvalidCursor: this list has not given it.
        """
        caller, cursor = caller_or_local(request), _cursor("resources", params)
        after = cursor.after
        listed: list[JsonObject] = []
        if not after and permits(caller.scopes, _KNOWLEDGE):
            listed += map(_pipeline_resource, sorted(self._runtime.state.knowledge))
        if not permits(caller.scopes, _RUNS):
            return {"resources": listed}
        page = await self._runtime.runs.list(RunQuery(*viewer_of_caller(caller), limit=_PAGE, after=after))
        listed += map(_run_resource, page.runs)
        more = cursor.next(page.next)
        return {"resources": listed, **({"nextCursor": more} if more else {})}

    async def templates(self, request: Request | None, params: JsonObject) -> JsonObject:
        """Lists the forms of addresses that the caller may read.

        Raises: InvalidCursor: the list has one page.
        """
        _cursor("templates", params)
        scopes = caller_or_local(request).scopes
        found = [
            {"name": name, "uriTemplate": template, "description": description, "mimeType": _JSON}
            for scope, name, template, description in _TEMPLATES
            if permits(scopes, scope)
        ]
        return {"resourceTemplates": found}

    async def read(self, request: Request | None, params: JsonObject) -> JsonObject:
        """Raises: Forbidden, NotFound, InvalidInput, and what the routes raise."""
        uri, caller = params["uri"], caller_or_local(request)
        match _parts(uri):
            case "runs", [run_id], _:
                require_scope(caller.scopes, _RUNS)
                run = public_run(await self._runtime.runs.get(run_id, viewer_of_caller(caller)))
                text = _json(RunStateOut, run)
            case "rag", [pipeline, "documents"], query:
                require_scope(caller.scopes, _KNOWLEDGE)
                text = _json(DocumentsOut, await self._documents(caller, pipeline, query))
            case "rag", [pipeline, "passages"], query:
                require_scope(caller.scopes, _KNOWLEDGE)
                body = _query(query.get("query", ""))
                text = _json(PassagesOut, await passages_of(self._runtime, caller, pipeline, body))
            case _:
                raise NotFound(f"There is no resource {uri[:200]!r}. resources/templates/list has the forms.")
        return {"contents": [{"uri": uri, "mimeType": _JSON, "text": text}]}

    async def _documents(self, caller: CallerContext, pipeline: str, query: Mapping[str, str]) -> JsonObject:
        of = query.get("of", "tenant")
        if of not in get_args(DocumentsOf):
            raise InvalidInput(f"of: use one of {', '.join(get_args(DocumentsOf))}.", param="of")
        cursor = Cursor.of(f"rag/{pipeline}/{of}", query.get("after", ""))
        page = await documents_of(self._runtime, caller, pipeline, cast(DocumentsOf, of), after=cursor.after)
        return {**page, "next": cursor.next(page["next"])}

    # -- prompts -------------------------------------------------------------------------------------------

    async def prompts(self, request: Request | None, params: JsonObject) -> JsonObject:
        """Lists the agents with a template; its arguments are the names that a request's `context` gives.

        Raises: InvalidCursor: the list has one page.
        """
        _cursor("prompts", params)
        if not permits(caller_or_local(request).scopes, _MANIFESTS):
            return {"prompts": []}
        found = []
        for name, agent in self._runtime.agents.items():
            if (template := self._template(name)) is not None:
                arguments = [{"name": one, "required": False} for one in sorted(template.free_names)]
                description = f"The system prompt of {name}. {agent.manifest.spec.identity.description}"
                found.append({"name": name, "description": description.strip(), "arguments": arguments})
        return {"prompts": found}

    async def prompt(self, request: Request | None, params: JsonObject) -> JsonObject:
        """Renders a template with arguments as the `context` of a request, without memory.

        Raises:
            Forbidden, NotFound, TemplateFailed
        """
        require_scope(caller_or_local(request).scopes, _MANIFESTS)
        name, arguments = params["name"], params.get("arguments", {})
        if name not in self._runtime.agents or (template := self._template(name)) is None:
            raise NotFound(f"There is no prompt {name[:64]!r}. prompts/list names them.")
        if unknown := sorted(arguments.keys() - set(template.free_names)):
            raise InvalidInput(f"Unknown argument {unknown[0][:64]!r}. prompts/list has those of {name!r}.")
        text = template.render(MemoryContext(), arguments, self._runtime.clock.now())
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    def _template(self, name: str) -> PromptTemplate | None:
        """Returns the template as the manifest of an agent writes it, None where it has none.

        The loaded one has the values of environment variables, which may be secrets.
        """
        manifest = agent_manifest(self._runtime, name)
        node = parse_text(manifest.source, Document(Path(manifest.file), manifest.source), None).node
        spec = node.value.get("spec", {}) if node is not None and isinstance(node.value, dict) else {}
        prompts = spec.get("prompts") or {}
        if not prompts.get("system"):
            return None
        try:
            return PromptEngine().register(
                name, prompts["system"], variables=prompts.get("variables"),
                description=(spec.get("identity") or {}).get("description", ""),
            )  # fmt: skip
        except ConfigError:  # it is a template only with the values of the environment
            return None


def _pipeline_resource(name: str) -> JsonObject:
    uri = f"astromesh://rag/{quote(name, safe='')}/documents"
    return {"uri": uri, "name": name, "description": f"Documents of the pipeline {name}.", "mimeType": _JSON}


def _run_resource(run: JsonObject) -> JsonObject:
    description = f"A run of {run['agent']}: {run['status']}."
    uri = f"astromesh://runs/{run['run_id']}"
    return {"uri": uri, "name": run["run_id"], "description": description, "mimeType": _JSON}


def _parts(uri: str) -> tuple[str, list[str], dict[str, str]]:
    """Returns what a URI is of, the segments after it, and its query; empty for a URI of another kind."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "", [], {}
    if parts.scheme != "astromesh":
        return "", [], {}
    segments = [unquote(segment) for segment in parts.path.split("/")[1:]]
    return parts.netloc, segments, {name: values[-1] for name, values in parse_qs(parts.query).items()}


def _query(text: str) -> QueryIn:
    """Raises: InvalidInput: it is empty or too long."""
    try:
        return QueryIn(query=text)
    except ValidationError as error:
        raise InvalidInput(f"query: {error.errors(include_url=False)[0]['msg']}.") from error


def _cursor(method: str, params: JsonObject) -> Cursor:
    return Cursor.of(method, params.get("cursor", ""), "cursor")


def _json(model: type[BaseModel], answer: Any) -> str:
    """Returns an answer as its route writes it."""
    body = model.model_validate(answer).model_dump(mode="json", exclude_unset=True)
    return orjson.dumps(body).decode()


# -- routes --------------------------------------------------------------------------------------------------

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
        questions = questions_in(waiting.waiting_for)
        if not may_decide(caller_or_local(request)) or not all(map(_is_askable, questions)):
            return {}
        return {one["id"]: (_question_text(one), _form(one)) for one in questions}

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
        questions = {one["id"]: one for one in open_questions(row)}
        decisions = {which: _decision(questions.get(which, {}), answer) for which, answer in answers.items()}
        if not decisions:
            raise ApprovalRequired("The run waits for a person's decision.", run_id, row.waiting_for)
        last = await runtime.runs.last_event(run_id)
        log = request.app.state.audit if request is not None else None
        decided = await decide(runtime, row, decisions, caller, log)
        return await _answer(request, agent, runtime.runner.wait(decided, last, (_ProgressSink(report),)))

    def _agent(self, request: Request | None, name: str) -> Agent:
        """Raises: Forbidden, AgentNotFoundError: the caller may not run it, or it does not exist."""
        runtime = self._runtime
        require_scope(caller_or_local(request).scopes, RUN, name)
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
