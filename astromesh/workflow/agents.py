"""Agent nodes: agents of agents.yaml with their models of providers.yaml, and agents of the runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson
from msgspec.structs import replace

from astromesh.config.workflow import ADAPTER_PLUGINS, CredentialSpec, OwnAgent, ProviderSpec
from astromesh.core.model_router import Health, ModelRouter
from astromesh.errors import AgentNotFoundError, InvalidOutput, MissingKey
from astromesh.graph.ledger import RunLedger
from astromesh.graph.model_output import AnswerSchema, extract_values, repair_message
from astromesh.graph.scope import Journal, Scope
from astromesh.orchestration.base import Pattern, PatternTask
from astromesh.plugins import Deps, Plugins
from astromesh.providers.base import ModelPort
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, RunAgent, ToolContext
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, Message, StreamBroken
from astromesh.workflow.base import StageFault
from astromesh.workflow.credentials import read_secret
from astromesh.workflow.memory import ContextPackage
from astromesh.workflow.project import Project
from astromesh.workflow.tools import StagePort


class AgentRequest(NamedTuple):
    """The request of an agent node.

    Args:
        schema: of the answer, or None.
        stage: id of the stage, for names of nested runs.
        journal: records the runs of agents. In a Task that can be resumed, a run continues behind its last
            finished call.
    """

    input: Any
    package: ContextPackage | None
    schema: AnswerSchema | None
    port: StagePort
    scope: Scope
    stage: str
    journal: Journal | None = None


class AgentResponse(NamedTuple):
    """The response to an agent node. `repaired`: the JSON was extracted from other text."""

    output: Any
    usage: JsonObject
    repaired: bool = False


class StageAgent(Protocol):
    """An agent behind an agent node."""

    async def ask(self, request: AgentRequest) -> AgentResponse: ...


@dataclass(frozen=True, slots=True)
class FolderAgent:
    """An agent of agents.yaml: its prompt, its model, its pattern."""

    spec: OwnAgent
    model: ModelPort
    pattern: Pattern

    async def ask(self, request: AgentRequest) -> AgentResponse:
        ledger = RunLedger(parent=request.scope.ledger)
        scope = request.scope.child(ledger=ledger)
        config = self.spec.config
        sent = {k: v for k, v in config.model_dump(exclude={"max_tool_rounds"}).items() if v is not None}
        schema = request.schema.json_schema if request.schema else None
        model = _ConfiguredModel(self.model, sent, schema)
        messages: tuple[Message, ...] = (
            Message("system", self.spec.system_prompt),
            Message("user", prompt_of(request)),
        )
        text = await self._run(messages, model, request.port, scope)
        output, repaired, fault = parse_answer(text, request.schema)
        if fault and not repaired:
            messages = (*messages, Message("assistant", text), repair_message(fault))
            text = await self._run(messages, model, request.port, scope)
            output, repaired, fault = parse_answer(text, request.schema)
        if fault:
            raise InvalidOutput(f"The agent's answer does not match its schema: {fault}")
        return AgentResponse(output, ledger.usage.to_json(), repaired)

    async def _run(
        self, messages: tuple[Message, ...], model: ModelPort, port: StagePort, scope: Scope
    ) -> str:
        task = PatternTask(messages, port.specs(), self.spec.config.max_tool_rounds)
        outcome = await self.pattern.run(task, model, port, scope)
        if port.fault is not None:
            raise port.fault
        if outcome.error:
            raise StageFault("agent_failed", outcome.error)
        return outcome.text


@dataclass(frozen=True, slots=True)
class RuntimeAgent:
    """An agent of the runtime: the stage is one run of it, without its stored conversation."""

    name: str
    run_agent: RunAgent

    async def ask(self, request: AgentRequest) -> AgentResponse:
        scope = request.scope if request.journal is None else request.scope.under(request.journal)
        parent = scope.tool_context(scope.path.lstrip("@"), request.stage)
        terms = NestedRunOptions(history=())
        try:
            answer = await self.run_agent(self.name, prompt_of(request), {}, parent, terms)
        except AgentNotFoundError as error:
            if error.agent != self.name:
                raise
            raise StageFault("missing", f"The agent {self.name!r} does not exist any more.") from error
        output, repaired, fault = parse_answer(str(answer["response"]), request.schema)
        if fault:
            raise InvalidOutput(f"The answer of the agent {self.name!r} does not match its schema: {fault}")
        usage = answer.get("metadata", {}).get("usage", {})
        return AgentResponse(output, usage if isinstance(usage, dict) else {}, repaired)


def running_with_model(run_agent: RunAgent, model: str) -> RunAgent:
    """Returns a function that runs agents of the runtime with this model in place of their primary one."""

    async def run(
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        return await run_agent(agent, query, context, parent, replace(terms, model=model))

    return run


def prompt_of(request: AgentRequest) -> str:
    """Returns the user message: the input and the items of the context package."""
    value = request.input
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    if request.package is None or not request.package.items:
        return text
    return f"{text}\n\nContext:\n{request.package.text}"


def parse_answer(text: str, schema: AnswerSchema | None) -> tuple[Any, bool, str]:
    """Returns the value of an answer, whether it was extracted from other text, and what is wrong with it."""
    try:
        bare = orjson.loads(text)
    except orjson.JSONDecodeError:
        bare = None
    if schema is None:
        if bare is not None:
            return bare, False, ""
        values = list(extract_values(text)) if "```" in text else []
        return (values[0], True, "") if values else (text, False, "")
    found = schema.parse(text)
    return found.value, bare is None and not found.fault, found.fault


async def open_agents(
    specs: Mapping[str, OwnAgent], models: Mapping[str, ModelPort], plugins: Plugins, deps: Deps
) -> dict[str, StageAgent]:
    """Opens every agent of agents.yaml, by id."""
    opened: dict[str, StageAgent] = {}
    for name, spec in specs.items():
        pattern = await plugins.open("patterns", spec.pattern, spec.pattern_options, deps)
        opened[name] = FolderAgent(spec, models[spec.model], pattern)
    return opened


class _ConfiguredModel:
    """A model whose calls carry the agent's parameters and schema."""

    def __init__(self, model: ModelPort, parameters: Mapping[str, Any], schema: Any) -> None:
        self._model, self._parameters, self._schema = model, parameters, schema

    def _with(self, request: CompletionRequest) -> CompletionRequest:
        schema = request.output_schema if request.output_schema is not None or request.role else self._schema
        return replace(request, parameters={**self._parameters, **request.parameters}, output_schema=schema)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        return await self._model.complete(self._with(request))

    async def stream(
        self, request: CompletionRequest
    ) -> AsyncGenerator[Delta | StreamBroken | CompletionResult, None]:
        async with aclosing(self._model.stream(self._with(request))) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece


# -- models --------------------------------------------------------------------------------------------------


class WorkflowModels:
    """The models of providers.yaml with their fallbacks; `ports` holds them by id once they are open."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._specs = {spec.id: spec for spec in project.providers.providers}
        self._opened: dict[str, Any] = {}
        self._missing: dict[str, MissingKey] = {}
        self._health = Health()
        self.ports: dict[str, ModelPort] = {}

    async def open(self, plugins: Plugins, deps: Deps, env: Mapping[str, str]) -> None:
        """Opens every model.

        Raises:
            ConfigError: a plugin is not installed, or its options are wrong.
        """
        credentials = {c.id: c for c in self._project.credentials.provider_credentials}
        self._opened, self._missing, self._health = {}, {}, Health(clock=deps.clock)
        for name, spec in self._specs.items():
            try:
                credential = credentials.get(spec.credential or "")
                folder = self._project.folder
                self._opened[name] = await _open_provider(spec, credential, plugins, deps, folder, env)
            except MissingKey as error:
                self._missing[name] = error
        self.ports = {name: self._port(name, spec) for name, spec in self._specs.items()}

    def _port(self, name: str, spec: ProviderSpec) -> ModelPort:
        usable = [self._opened[one] for one in (name, *spec.fallback) if one in self._opened]
        return (
            ModelRouter(usable, health=self._health)
            if usable
            else MissingCredentialModel(self._missing[name])
        )

    def describe(self) -> list[JsonObject]:
        """Returns `{id, adapter, model, version, credential, health}` of each model (document 004, 8.6).

        `health` is None before the first run.
        """
        return [self._description(name, spec) for name, spec in self._specs.items()]

    def _description(self, name: str, spec: ProviderSpec) -> JsonObject:
        provider = self._opened.get(name)
        now = self._health.clock.monotonic()
        return {
            "id": name,
            "adapter": self._project.adapters.get(f"providers/{adapter_plugin(spec)}", spec.adapter),
            "model": spec.model,
            "version": spec.version,
            "credential": "missing" if name in self._missing else spec.credential,
            "health": self._health.of(provider).to_json(now) if provider is not None else None,
        }


def adapter_plugin(spec: ProviderSpec) -> str:
    """Returns the name of the provider plugin of an adapter."""
    return ADAPTER_PLUGINS.get(spec.adapter, spec.adapter)


def adapter_origins(project: Project, plugins: Plugins) -> dict[str, str]:
    """Returns the origin of a workflow's adapters, as `{group/name: module:Class distribution==version}`."""
    named = {("providers", adapter_plugin(spec)) for spec in project.providers.providers}
    named |= {("tools", tool.type) for tool in project.tools.tools if tool.type != "python"}
    named |= {("patterns", agent.pattern) for agent in project.agents.values()}
    return {f"{group}/{name}": plugins.origin(group, name) for group, name in sorted(named)}


class MissingCredentialModel:
    """A model whose credential is missing: every call raises."""

    def __init__(self, error: MissingKey) -> None:
        self._error = error

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        raise MissingKey(str(self._error))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        yield await self.complete(request)


async def _open_provider(
    spec: ProviderSpec,
    credential: CredentialSpec | None,
    plugins: Plugins,
    deps: Deps,
    folder: Path,
    env: Mapping[str, str],
) -> Any:
    # a model without a network has neither of the two
    known = plugins.options("providers", adapter_plugin(spec)).model_fields
    usual = {"model": spec.model, "timeout": spec.timeout_s}
    options: dict[str, Any] = {**{k: v for k, v in usual.items() if k in known}, **spec.options}
    if spec.base_url:
        options["endpoint"] = spec.base_url
    if credential is not None:
        options["api_key"] = read_secret(credential.auth, folder, env)
    provider = await plugins.open("providers", adapter_plugin(spec), options, deps)
    if not getattr(provider, "name", ""):
        provider.provider, provider.name = spec.id, f"{spec.id}/{spec.model}"
    deps.resources.on_close(provider.close)
    return provider
