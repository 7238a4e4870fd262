"""What a request may change of its agent: the form of the answer, and what `spec.overridable` opens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from astromesh.access.scopes import PRIORITY, permits
from astromesh.core.answer_schema import AnswerSchema
from astromesh.errors import ConfigError, Forbidden, InvalidInput, NotOverridable
from astromesh.runtime.agent import Agent
from astromesh.runtime.client_tools import require_client_tools
from astromesh.runtime.records import RunRequest
from astromesh.types import CallerContext

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


def _require_known(param: str, asked: Sequence[str], known: Sequence[str]) -> None:
    missing = next((name for name in asked if name not in known), None)
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
