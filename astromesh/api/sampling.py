"""Parameters of OpenAI's protocols: which a model call carries, which have no effect, which are refused.

An agent gives one answer. What a client asks for beyond that is
refused with the name of the parameter: ignoring it would mislead the client. A parameter at the protocol's
default is always accepted (https://platform.openai.com/docs/api-reference/chat/create).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import InvalidInput, NotOverridable
from astromesh.providers.base import Provider
from astromesh.runtime.agent import Agent
from astromesh.runtime.request_options import is_open

Penalty = Annotated[float, Field(ge=-2, le=2)]
_StopText = Annotated[str, Field(min_length=1, max_length=256)]
#: parameters without an effect on the answer
_NO_EFFECT = frozenset({
    "store", "user", "stream_options",
    "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "prediction",
})  # fmt: skip
_CONFIGURED = "it is configured with the agent's model"
_OWN_TOOLS = "an agent has its own tools"
#: the values that are accepted of parameters that an agent cannot follow, and why it cannot
_DEFAULTS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "an agent gives one answer"),
    "functions": (([],), _OWN_TOOLS),
    "function_call": (("auto", "none"), _OWN_TOOLS),
    "modalities": ((["text"],), "an agent answers with text"),
    "audio": ((), "an agent answers with text"),
    "logprobs": ((False,), "agents return no log probabilities"),
    "top_logprobs": ((0,), "agents return no log probabilities"),
    "logit_bias": (({},), "not every model has it"),
    "reasoning_effort": (("medium",), _CONFIGURED),
    "verbosity": (("medium",), _CONFIGURED),
    "max_tool_calls": ((), "the agent's budgets limit its calls"),
    "conversation": ((), "previous_response_id continues a conversation"),
    "prompt": ((), "an agent has its own prompt"),
    "web_search_options": ((), _OWN_TOOLS),
}


class Sampling(BaseModel):
    """What the model calls of a run carry."""

    model_config = ConfigDict(extra="allow")

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None

    def parameters(self) -> dict[str, Any]:
        """Returns what differs from the protocol's defaults, by the names that providers know."""
        found = {
            "temperature": self.temperature,
            "top_p": None if self.top_p == 1 else self.top_p,
            "presence_penalty": self.presence_penalty or None,
            "frequency_penalty": self.frequency_penalty or None,
        }
        return {name: value for name, value in found.items() if value is not None}


class ChatSampling(Sampling):
    """What chat completions have beyond that."""

    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most tokens of the answer; it never raises the limit of the agent's model."
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="As `max_tokens`.")
    stop: _StopText | Annotated[list[_StopText], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    def parameters(self) -> dict[str, Any]:
        limits = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        found = {
            "max_tokens": min(limits, default=None),
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or None,
            "seed": self.seed,
        }
        return {**super().parameters(), **{name: value for name, value in found.items() if value is not None}}


def reject_unsupported(body: BaseModel, protocol: str = "chat completions") -> None:
    """Checks the parameters that have no field.

    Raises:
        NotOverridable: the agent's model has its own.
        InvalidInput: an agent cannot follow one, or the protocol does not have it.
    """
    for name, value in (body.model_extra or {}).items():
        if value is None or name in _NO_EFFECT:
            continue
        if name not in _DEFAULTS:
            raise InvalidInput(f"Remove {name}: {protocol} have no such parameter.", param=name)
        accepted, reason = _DEFAULTS[name]
        if any(value == one for one in accepted):
            continue
        raise (
            not_open(name) if reason is _CONFIGURED else InvalidInput(f"Remove {name}: {reason}.", param=name)
        )


def not_open(name: str) -> NotOverridable:
    """Returns the error of a parameter that an agent has, and that no key of `spec.overridable` opens."""
    return NotOverridable(
        f"Remove {name}: {_CONFIGURED} (`spec.model.primary.parameters` in its YAML).", param=name
    )


def asked_parameters(body: Sampling, agent: Agent) -> dict[str, Any]:
    """Returns the parameters of the model calls: the default temperature only where an agent opens it.

    Raises: InvalidInput: one of the models of the agent has no such parameter.
    """
    found = body.parameters()
    models = agent.router.providers
    known = all("temperature" in one.capabilities.parameters for one in models)
    if found.get("temperature") == 1 and not (known and is_open(agent, "temperature")):
        del found["temperature"]
    reject_unknown_to(models, found)
    return found


def reject_unknown_to(providers: Iterable[Provider], parameters: Mapping[str, Any]) -> None:
    """Raises: InvalidInput: one of the models of an agent has no such parameter."""
    for provider in providers:
        for name in parameters.keys() - provider.capabilities.parameters:
            raise InvalidInput(f"Remove {name}: the model {provider.name} does not have it.", param=name)
