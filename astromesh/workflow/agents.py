"""Agent nodes: agents of the folder's agents.yaml, with any pattern, and agents of the runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import orjson

from astromesh.abc.deps import Deps
from astromesh.abc.provider import ModelPort
from astromesh.abc.run import Pattern, PatternTask, RunAgent, Terms
from astromesh.config.workflow.agents import OwnAgent
from astromesh.core.structured import AnswerSchema, repair
from astromesh.errors import InvalidOutput
from astromesh.graph.extract import extract_values
from astromesh.node.ledger import RunLedger
from astromesh.node.scope import Scope
from astromesh.plugins import Plugins
from astromesh.types import BrokeOff, CompletionRequest, CompletionResult, Delta, JsonObject, Message
from astromesh.workflow.context import Package
from astromesh.workflow.faults import StageFault
from astromesh.workflow.tools import StagePort


class AgentQuestion(NamedTuple):
    """What an agent node asks.

    Args:
        schema: of the answer, or None.
        stage: id of the stage, for names of nested runs.
    """

    input: Any
    package: Package | None
    schema: AnswerSchema | None
    port: StagePort
    scope: Scope
    stage: str


class AgentAnswer(NamedTuple):
    """What it answered. `repaired`: its text was no bare JSON, but held some (E47)."""

    output: Any
    usage: JsonObject
    repaired: bool = False


class StageAgent(Protocol):
    """Answers for an agent node."""

    async def ask(self, asked: AgentQuestion) -> AgentAnswer: ...


@dataclass(frozen=True, slots=True)
class FolderAgent:
    """An agent of agents.yaml: its prompt, its model, its pattern."""

    spec: OwnAgent
    model: ModelPort
    pattern: Pattern

    async def ask(self, asked: AgentQuestion) -> AgentAnswer:
        ledger = RunLedger(parent=asked.scope.ledger)
        scope = asked.scope.charging(ledger)
        config = self.spec.config
        sent = {k: v for k, v in config.model_dump(exclude={"max_tool_rounds"}).items() if v is not None}
        schema = asked.schema.json_schema if asked.schema else None
        model = _Configured(self.model, sent, schema)
        messages: tuple[Message, ...] = (
            Message("system", self.spec.system_prompt),
            Message("user", question(asked)),
        )
        text = await self._run(messages, model, asked.port, scope)
        output, repaired, fault = read(text, asked.schema)
        if fault and not repaired:
            messages = (*messages, Message("assistant", text), repair(fault))
            text = await self._run(messages, model, asked.port, scope)
            output, repaired, fault = read(text, asked.schema)
        if fault:
            raise InvalidOutput(f"The agent's answer does not fit its schema: {fault}")
        return AgentAnswer(output, ledger.usage.to_json(), repaired)

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
    """An agent of the runtime: the body of the stage is one run of it, without its stored conversation."""

    name: str
    run_agent: RunAgent

    async def ask(self, asked: AgentQuestion) -> AgentAnswer:
        parent = asked.scope.tool_context(asked.scope.path.lstrip("@"), asked.stage)
        answer = await self.run_agent(self.name, question(asked), {}, parent, Terms(history=()))
        output, repaired, fault = read(str(answer["response"]), asked.schema)
        if fault:
            raise InvalidOutput(f"The answer of the agent {self.name!r} does not fit: {fault}")
        usage = answer.get("metadata", {}).get("usage", {})
        return AgentAnswer(output, usage if isinstance(usage, dict) else {}, repaired)


def place_of(path: str, stage: str) -> str:
    """Where a Task of this path in its run is at a stage; the runs of the stage's agents stand under it."""
    return f"{path}@{stage}".lstrip("/@")


def question(asked: AgentQuestion) -> str:
    """The user's message: the input, and what the context package holds."""
    value = asked.input
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    if asked.package is None or not asked.package.items:
        return text
    return f"{text}\n\nContext:\n{asked.package.text}"


def read(text: str, schema: AnswerSchema | None) -> tuple[Any, bool, str]:
    """The value of an answer, whether it had to be taken out of other text, and what is wrong with it."""
    try:
        bare = orjson.loads(text)
    except orjson.JSONDecodeError:
        bare = None
    if schema is None:
        if bare is not None:
            return bare, False, ""
        values = list(extract_values(text)) if "```" in text else []
        return (values[0], True, "") if values else (text, False, "")
    found = schema.read(text)
    return found.value, bare is None and not found.fault, found.fault


async def open_agents(
    specs: Mapping[str, OwnAgent], models: Mapping[str, ModelPort], plugins: Plugins, deps: Deps
) -> dict[str, StageAgent]:
    """Every agent of agents.yaml, by id."""
    opened: dict[str, StageAgent] = {}
    for name, spec in specs.items():
        pattern = await plugins.open("patterns", spec.pattern, spec.pattern_options, deps)
        opened[name] = FolderAgent(spec, models[spec.model], pattern)
    return opened


class _Configured:
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
    ) -> AsyncGenerator[Delta | BrokeOff | CompletionResult, None]:
        async with aclosing(self._model.stream(self._with(request))) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                yield piece
