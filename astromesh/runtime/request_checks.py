"""Checks of a request: what it may change of its agent (`spec.overridable`), and the agent's input rules.

The input rules check the query, the messages, the context and the metadata. A plain run checks its request in
step 3. A durable run is checked when it is accepted, before its row is written, so that what a rule removes
never reaches a disk. Step 3 then takes the result from the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from astromesh.access.scopes import PRIORITY, permits
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.errors import (
    ConfigError,
    Forbidden,
    GuardrailBlocked,
    InvalidInput,
    NotOverridable,
    is_failure,
)
from astromesh.graph.model_output import AnswerSchema
from astromesh.runtime.agent import Agent
from astromesh.runtime.client_tools import require_client_tools
from astromesh.runtime.records import RunRequest, Screening
from astromesh.types import CallerContext, JsonObject, Message

#: keys of `spec.overridable` that are open if an agent does not have it
OPEN = frozenset({"temperature", "max_tokens"})
_MAX_TOKENS = "max_tokens"


def require_allowed(agent: Agent, request: RunRequest) -> None:
    """Checks what a request asks of its agent.

    Raises:
        NotOverridable: the agent does not open it.
        InvalidInput: it is not possible: no schema, a model or tool that the agent does not have.
        ToolNameTaken: as of `require_client_tools`.
    """
    require_client_tools(agent, request.client_tools)
    for key, name in _changes(request):
        _require_open(agent, key, name)
    if request.model:
        _require_known("model", (request.model,), agent.model_names)
    if request.tools:
        _require_known("tools", request.tools, [spec.name for spec in agent.tools.specs()])
    if request.output_schema is not None:
        _schema_of(request)


def priority_of(agent: Agent, request: RunRequest) -> int:
    """Returns the priority of a run; a lower one comes first."""
    return agent.manifest.spec.queue.priority if request.priority is None else request.priority


def require_priority(agent: Agent, request: RunRequest, caller: CallerContext | None) -> None:
    """Raises: Forbidden: the run would begin before others of its agent, which needs a scope."""
    usual = agent.manifest.spec.queue.priority
    if request.priority is None or request.priority >= usual or caller is None:
        return
    if not permits(caller.scopes, PRIORITY):
        raise Forbidden(
            f"priority: {request.priority} is before the {usual} of the agent, which needs the scope "
            f"{PRIORITY!r}."
        )


def is_open(agent: Agent, key: str) -> bool:
    """Whether requests may change what a key of `spec.overridable` stands for."""
    return key in _opened(agent)


def _opened(agent: Agent) -> frozenset[str]:
    written = agent.manifest.spec.overridable
    return OPEN if written is None else frozenset(written)


def _require_open(agent: Agent, key: str, name: str) -> None:
    if not is_open(agent, key):
        listed = ", ".join(sorted({*_opened(agent), key}))
        raise NotOverridable(
            f"Remove {name}: the agent {agent.name!r} does not open it. "
            f"`spec.overridable: [{listed}]` in its YAML does.",
            param=name,
        )


def _require_known(param: str, names: Sequence[str], known: Sequence[str]) -> None:
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise InvalidInput(
            f"{param}: the agent has no {missing!r}. It has: {', '.join(known) or 'none'}.", param=param
        )


def _changes(request: RunRequest) -> Iterator[tuple[str, str]]:
    """Yields the keys that must be open, each with the name of the parameter that needs it."""
    if request.model:
        yield "model", "model"
    if request.tools is not None:
        yield "tools", "tools"
    for name in request.parameters:
        yield (_MAX_TOKENS if name == _MAX_TOKENS else "temperature"), name


def changed_agent(agent: Agent, request: RunRequest) -> Agent:
    """Returns the agent as a request changes it."""
    if request.output_schema is not None:
        agent = dataclasses.replace(agent, output_schema=_schema_of(request), stream="final")
    if request.model:
        agent = dataclasses.replace(agent, router=agent.router.only(request.model))
    return agent


def raises_limit(agent: Agent) -> bool:
    """Whether a request may raise the limit of an answer: `max_tokens` is open by name."""
    return _MAX_TOKENS in (agent.manifest.spec.overridable or ())


def _schema_of(request: RunRequest) -> AnswerSchema:
    try:
        return AnswerSchema(request.output_schema)
    except (ConfigError, ValueError) as error:
        detail = f"The output schema is not a JSON Schema: {error}"
        raise InvalidInput(detail, param="output_schema") from error


_USER_ROLE = frozenset({"user"})
_ANY_ROLE = frozenset({"system", "user", "assistant", "tool"})


class CheckedRequest(Struct, frozen=True):
    """A request as the rules return it, with their actions as in `CheckedText`."""

    request: RunRequest
    actions: tuple[JsonObject, ...] = ()


def check_request(rules: GuardrailsEngine, request: RunRequest) -> CheckedRequest:
    """Returns a request with the texts that the input rules let through.

    Raises:
        GuardrailBlocked: a rule refuses a part; `actions` of the error lists the actions of the rules.
    """
    if not rules.input_rules:
        return CheckedRequest(request)
    parts = check_parts(rules, request)
    query = rules.check_input(request.query)
    history = request.history
    if history is not None:  # of an outer pattern: the user's messages; of a client: every message
        roles = _ANY_ROLE if request.terms.history is None else _USER_ROLE
        history = _checked_messages(rules, history, roles)
    preface = _checked_messages(rules, request.preface, _USER_ROLE)
    continuation = _checked_messages(rules, request.continuation, _ANY_ROLE)
    checked = replace(
        parts.request, query=query.text, history=history, preface=preface, continuation=continuation
    )
    return CheckedRequest(checked, (*query.actions, *parts.actions))


def check_parts(rules: GuardrailsEngine, request: RunRequest) -> CheckedRequest:
    """Returns a request with the context, metadata and tags that the input rules let through.

    Raises:
        GuardrailBlocked: as of `check_request`.
    """
    if not rules.input_rules or not (request.context or request.metadata or request.tags):
        return CheckedRequest(request)
    context = rules.check_part(request.context, "context")
    metadata = rules.check_part(request.metadata, "metadata")
    tags = rules.check_part({"tags": list(request.tags)}, "metadata")
    checked = replace(request, context=context.value, metadata=metadata.value, tags=tuple(tags.value["tags"]))
    return CheckedRequest(checked, (*context.actions, *metadata.actions, *tags.actions))


def screen(rules: GuardrailsEngine, request: RunRequest) -> RunRequest:
    """Returns a request as a durable run stores it: nothing is left of what the input rules remove or refuse.

    A rule that raises leaves the request as it came. It raises again in step 3, and fails the run.
    """
    if not rules.input_rules:
        return request
    try:
        checked = check_request(rules, request)
    except GuardrailBlocked as blocked:
        refused = Screening(tuple(map(dict, blocked.actions)), blocked.guardrail, str(blocked))
        history = None if request.history is None else ()
        metadata = rules.visible_metadata(request.metadata)
        tags = request.tags and rules.visible_tags(request.tags)
        return replace(
            request, query="", context={}, metadata=metadata, tags=tags, history=history, preface=(),
            continuation=(), screening=refused,
        )  # fmt: skip
    except BaseException as error:  # foreign code: a rule may raise anything
        if not is_failure(error):
            raise
        return request
    return replace(checked.request, screening=Screening(checked.actions))


def _checked_messages(
    rules: GuardrailsEngine, messages: tuple[Message, ...], roles: frozenset[str]
) -> tuple[Message, ...]:
    """Applies the rules to the messages that come with a query: they are user text, too."""
    return tuple(
        replace(m, content=rules.check_input(m.content).text) if m.role in roles and m.content else m
        for m in messages
    )
