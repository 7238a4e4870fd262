"""A stage as one call of the node runner: its body inside policy, schemas, context and routing.

Chosen when a plan is compiled: a stage without a schema or a context has no wrapper for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from astromesh.abc.run import RunAgent
from astromesh.abc.tool import Tool
from astromesh.config.workflow.memory import ContextProfile
from astromesh.config.workflow.nodes import MergeSpec
from astromesh.core.structured import AnswerSchema
from astromesh.graph.output_schema import OutputSchema
from astromesh.node.runner import Call, Wrapper, bounded, unit, wrapped
from astromesh.node.scope import Scope
from astromesh.node.toolbox import ToolBox
from astromesh.workflow.agents import AgentQuestion, RuntimeAgent, StageAgent
from astromesh.workflow.context import GLOBAL, Package
from astromesh.workflow.faults import StageFault, stage_error
from astromesh.workflow.flow import Flow, Outcome
from astromesh.workflow.joining import STRATEGIES, as_asked
from astromesh.workflow.memory import RunMemory
from astromesh.workflow.plan import FORKS, Stage
from astromesh.workflow.policy import PolicyQuestion, denial
from astromesh.workflow.project import Project
from astromesh.workflow.references import GLOBAL_CONTEXT, NO_CONTEXT, load_operation
from astromesh.workflow.result import Entry
from astromesh.workflow.routing import decide, shape
from astromesh.workflow.seams import Gate
from astromesh.workflow.task import Task
from astromesh.workflow.tools import StagePort, StageTools, called
from astromesh.workflow.values import canonical, private

_MERGE = MergeSpec()
StageCall = Call["Job", Package | None, Outcome]
_Wrapper = Wrapper["Job", Package | None, Outcome]


class Job:
    """One execution of a stage: what the wrappers and the body work on."""

    __slots__ = ("entry", "flow", "memory", "port", "scope", "task")

    def __init__(self, task: Task, entry: Entry, flow: Flow, memory: RunMemory, scope: Scope) -> None:
        self.task, self.entry, self.flow, self.memory, self.scope = task, entry, flow, memory, scope
        self.port: StagePort | None = None


@dataclass(frozen=True, slots=True)
class Kit:
    """What stages are compiled from.

    Args:
        agents: of agents.yaml, opened; other names are the runtime's.
    """

    project: Project
    tools: Mapping[str, Tool]
    agents: Mapping[str, StageAgent]
    run_agent: RunAgent | None = None
    gate: Gate | None = None


def compile_stage(stage: Stage, kit: Kit) -> StageCall:
    """The stage as a call that never raises: its outcome, or why it failed."""
    body, plain = _body(stage, kit)
    if not plain:
        body = bounded(body, stage.node.timeout_s, stage.id)
    call: StageCall = unit(body, _succeeded, _failed)
    return wrapped(call, list(_wrappers(stage, kit, plain)))


def _succeeded(value: Any, job: Job, package: Package | None, ms: float) -> Outcome:
    return Outcome(value)


def _failed(error: BaseException, job: Job, package: Package | None, ms: float) -> Outcome:
    return Outcome(error=stage_error(error))


# -- wrappers, the first outermost -------------------------------------------------------------------------


def _wrappers(stage: Stage, kit: Kit, plain: bool) -> list[_Wrapper]:
    wrappers: list[_Wrapper] = []
    node, project = stage.node, kit.project
    if project.policies:
        wrappers.append(_permitted(stage, kit))
    if schema := project.schema(node.schema_in):
        wrappers.append(_checked_input(OutputSchema(schema), _name(node.schema_in)))
    if node.context != NO_CONTEXT:
        wrappers.append(_given_context(_profile(stage, kit), stage))
    if kit.gate is not None:
        wrappers.append(_gated(stage, kit.gate))
    if stage.role in (*FORKS, "decision"):
        wrappers.append(_routed(stage))
    if schema := project.schema(_schema_out(stage, kit)):
        wrappers.append(_checked_output(OutputSchema(schema), _name(_schema_out(stage, kit))))
    return wrappers


def _profile(stage: Stage, kit: Kit) -> ContextProfile:
    named = stage.node.context
    return GLOBAL if named == GLOBAL_CONTEXT else kit.project.profiles[named]


def _schema_out(stage: Stage, kit: Kit) -> Any:
    own = kit.project.agents.get(stage.node.agent or "")
    return stage.node.schema_out or (own.schema_out if own else None)


def _name(reference: Any) -> str:
    return reference if isinstance(reference, str) else "inline"


def _permitted(stage: Stage, kit: Kit) -> _Wrapper:
    """E57: a denial is a failure of the stage and an event; no run changes what is denied."""
    node = stage.node
    asks = [PolicyQuestion("node", node.id, node.id)]
    if node.agent:
        asks.append(PolicyQuestion("agent", node.agent, node.id))
    if node.context != NO_CONTEXT:
        asks.append(PolicyQuestion("context", node.context, node.id))
        profile = _profile(stage, kit)
        asks += [PolicyQuestion("store", source.store, node.id) for source in profile.sources]
    why = next((said for ask in asks if (said := denial(kit.project.policies, ask))), "")

    def wrap(call: StageCall) -> StageCall:
        if not why:
            return call

        async def denied(job: Job, package: Package | None) -> Outcome:
            job.scope.events.emit("policy.denied", task=job.task.id, stage=stage.id, detail=why)
            return Outcome(error={"code": "policy_denied", "message": why})

        return denied

    return wrap


def _checked_input(schema: OutputSchema, name: str) -> _Wrapper:
    def wrap(call: StageCall) -> StageCall:
        async def checked(job: Job, package: Package | None) -> Outcome:
            job.entry.schema_in = name
            try:
                schema.validate(job.entry.input)
            except ValueError as error:
                return Outcome(error={"code": "invalid_input", "message": f"schema_in {name}: {error}"})
            return await call(job, package)

        return checked

    return wrap


def _checked_output(schema: OutputSchema, name: str) -> _Wrapper:
    """E47."""

    def wrap(call: StageCall) -> StageCall:
        async def checked(job: Job, package: Package | None) -> Outcome:
            job.entry.schema_out = name
            outcome = await call(job, package)
            if outcome.error is None:
                try:
                    schema.validate(outcome.output)
                except ValueError as error:
                    return Outcome(error={"code": "invalid_output", "message": f"schema_out {name}: {error}"})
            return outcome

        return checked

    return wrap


def _question(stage: Stage, value: Any) -> Any:
    """What a stage asks models and memory: the same in every run that came to the same outputs."""
    return as_asked(value) if stage.role == "merge" else value


def _given_context(profile: ContextProfile, stage: Stage) -> _Wrapper:
    def wrap(call: StageCall) -> StageCall:
        async def given(job: Job, package: Package | None) -> Outcome:
            value = _question(stage, job.entry.input)
            query = value if isinstance(value, str) else orjson.dumps(value).decode()
            try:
                package = await job.memory.package(job.task, profile, query)
            except Exception as error:  # noqa: BLE001 (the border of a stage)
                return Outcome(error=stage_error(error))
            job.entry.context_hash, job.entry.context_items = package.hash, package.ids
            return await call(job, package)

        return given

    return wrap


def _gated(stage: Stage, gate: Gate) -> _Wrapper:
    def wrap(call: StageCall) -> StageCall:
        async def gated(job: Job, package: Package | None) -> Outcome:
            given = package.to_json() if package else None
            try:
                await gate(job.task.id, stage.id, private(job.entry.input), given)
            except StageFault as fault:
                return Outcome(error=stage_error(fault))
            return await call(job, package)

        return gated

    return wrap


def _routed(stage: Stage) -> _Wrapper:
    """The output of a decision or fork says where to go; what it cannot say is a failure of the stage."""

    def wrap(call: StageCall) -> StageCall:
        async def routed(job: Job, package: Package | None) -> Outcome:
            outcome = await call(job, package)
            return outcome if outcome.error is not None else route(stage, outcome.output, job)

        return routed

    return wrap


def route(stage: Stage, output: Any, job: Job | None = None) -> Outcome:
    """The outcome of a stage whose output is this; also for outputs that were recorded (`job` is None)."""
    try:
        if stage.role == "decision":
            edge, current = decide(stage, output)
            return Outcome(current, edge=edge)
        if stage.role in FORKS:
            parts = shape(stage, output)
            error = job.flow.limit(job.task, len(parts)) if job else None
            return Outcome(output, error, parts=parts)
    except Exception as error:  # noqa: BLE001 (the border of a stage)
        return Outcome(output, stage_error(error))
    return Outcome(output)


# -- bodies --------------------------------------------------------------------------------------------------

_Body = Callable[[Job, Package | None], Awaitable[Any]]


def _body(stage: Stage, kit: Kit) -> tuple[_Body, bool]:
    """What the stage does, and whether that is so little that it needs no time limit."""
    node = stage.node
    if node.kind == "agent":
        return _agent(stage, kit), False
    if node.op:
        return _operation(stage, kit), False
    if stage.role == "merge":
        combine = STRATEGIES[(node.merge or _MERGE).strategy]

        async def merged(job: Job, package: Package | None) -> Any:
            return combine([one["output"] for one in job.entry.input["inputs"]])

        return merged, True

    async def identity(job: Job, package: Package | None) -> Any:
        return job.entry.input

    return identity, True


def _box(names: Sequence[str], kit: Kit) -> ToolBox:
    timeouts = {tool.id: tool.timeout_s for tool in kit.project.tools.tools}
    return ToolBox([kit.tools[name] for name in names], timeouts=timeouts)


def _operation(stage: Stage, kit: Kit) -> _Body:
    """`op(input, context, tools)`: it gets a copy of the input, so that what it changes is its own."""
    node = stage.node
    function = load_operation(kit.project.folder, node.op or "")
    box = _box(node.tools, kit)
    quick = inspect.iscoroutinefunction(function)
    policies, on_error = kit.project.policies, node.tool_on_error

    async def operation(job: Job, package: Package | None) -> Any:
        port = job.port = StagePort(box, node.id, policies, on_error)
        tools = StageTools(port, job.scope)
        value = private(job.entry.input)
        if quick:
            result = await function(value, package, tools)
        else:
            result = await called(function, value, package, tools)
        if port.fault is not None:
            raise port.fault
        return canonical(result)

    return operation


def _agent(stage: Stage, kit: Kit) -> _Body:
    node, name = stage.node, stage.node.agent or ""
    own = kit.project.agents.get(name)
    # a node's tools are those of the node that its agent also has
    box = _box([tool for tool in node.tools if own is None or tool in own.tools], kit)
    schema = kit.project.schema(_schema_out(stage, kit))
    answer_schema = AnswerSchema(schema) if schema else None
    policies, on_error = kit.project.policies, node.tool_on_error

    async def asked(job: Job, package: Package | None) -> Any:
        agent = kit.agents.get(name)
        if agent is None:
            if kit.run_agent is None:
                raise StageFault("agent_not_found", f"Nothing here runs the runtime's agent {name!r}.")
            agent = RuntimeAgent(name, kit.run_agent)
        port = job.port = StagePort(box, node.id, policies, on_error)
        scope = job.scope.child(f"{job.task.path}@{stage.id}".lstrip("/"))
        answer = await agent.ask(
            AgentQuestion(_question(stage, job.entry.input), package, answer_schema, port, scope, stage.id)
        )
        job.entry.usage = {**answer.usage, "repaired": True} if answer.repaired else answer.usage
        return canonical(answer.output)

    return asked


def complete(job: Job, outcome: Outcome, now: float, output: Any) -> None:
    """Writes into the entry of an execution what it came to."""
    entry = job.entry
    entry.finished_at = now
    if outcome.error is not None:
        entry.status, entry.error = "failure", outcome.error
    entry.output = output
    if outcome.edge is not None:
        entry.edge = outcome.edge.label
    if job.port is not None and job.port.calls:
        entry.tool_calls = tuple(job.port.calls)
