"""What `/mcp` offers beside tools: knowledge and runs as resources, the templates of agents as prompts.

A resource is the answer of a route of `/v1`, and needs the scope of that route: `rag:query` for knowledge,
`runs:read` for runs. A prompt shows of a manifest what `GET /v1/agents/{name}/manifest` shows, for
`agents:manifest`. So values of environment variables do not appear in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit

import orjson
from fastapi import Request
from pydantic import BaseModel, ValidationError

from astromesh.access.scopes import permits
from astromesh.api.auth import caller_or_local
from astromesh.api.dependencies import Cursor
from astromesh.api.requests import viewer_of_caller
from astromesh.api.routes.rag import DocumentsOut, PassagesOut, QueryIn, documents_of, passages_of
from astromesh.api.routes.runs import public_run
from astromesh.api.schemas import RunStateOut
from astromesh.config.parser import Document, parse_text
from astromesh.core.prompt_engine import PromptEngine, PromptTemplate
from astromesh.durable.base import RunQuery
from astromesh.errors import ConfigError, Forbidden, InvalidInput, NotFound
from astromesh.knowledge.base import DocumentsOf
from astromesh.runtime.configuration_faults import agent_manifest
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import CallerContext, JsonObject, MemoryContext

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
                _require(caller, _RUNS)
                run = public_run(await self._runtime.runs.get(run_id, viewer_of_caller(caller)))
                text = _json(RunStateOut, run)
            case "rag", [pipeline, "documents"], query:
                _require(caller, _KNOWLEDGE)
                text = _json(DocumentsOut, await self._documents(caller, pipeline, query))
            case "rag", [pipeline, "passages"], query:
                _require(caller, _KNOWLEDGE)
                asked = _query(query.get("query", ""))
                text = _json(PassagesOut, await passages_of(self._runtime, caller, pipeline, asked))
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
        _require(caller_or_local(request), _MANIFESTS)
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
        shown = agent_manifest(self._runtime, name)
        node = parse_text(shown.source, Document(Path(shown.file), shown.source), None).node
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


def _require(caller: CallerContext, scope: str) -> None:
    if not permits(caller.scopes, scope):
        raise Forbidden(f"This request needs the scope {scope!r}, which your key or token does not have.")


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
    shown = model.model_validate(answer).model_dump(mode="json", exclude_unset=True)
    return orjson.dumps(shown).decode()
