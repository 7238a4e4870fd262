"""A stage as one call of the node runner: its body inside policy, schemas, context and routing.

Chosen when a plan is compiled: a stage without a schema or a context has no wrapper for it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from msgspec import to_builtins

from astromesh.config.workflow import ContextProfile, HumanSpec, MergeSpec
from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    DeadlineExceeded,
    ForeignError,
    InvalidOutput,
    OutcomeUnknown,
    ProcessDied,
    ProviderError,
    TemplateFailed,
    UnreadableModule,
    is_failure,
)
from astromesh.graph.model_output import AnswerSchema, OutputSchema
from astromesh.graph.runner import Call, bounded, unit
from astromesh.graph.scope import Journal, Scope
from astromesh.logs import get_logger
from astromesh.telemetry.clock import standing_still
from astromesh.tools.base import HumanQuestion, RunAgent, Tool
from astromesh.tools.process_pool import ISOLATED
from astromesh.tools.results import describe
from astromesh.tools.toolbox import ToolBox
from astromesh.types import JsonObject
from astromesh.workflow.agents import AgentRequest, RuntimeAgent, StageAgent
from astromesh.workflow.base import (
    DEATH,
    START,
    Entry,
    Gate,
    NotJson,
    StageAttempts,
    StageFault,
    Task,
    canonical,
    private_copy,
    stage_path,
)
from astromesh.workflow.credentials import mask_secrets
from astromesh.workflow.isolation import AgentProcess, call_operation
from astromesh.workflow.journal import StageCalls, StageJournal, begin_stage, recorded_question
from astromesh.workflow.memory import GLOBAL_PROFILE, ContextPackage, OperationContext, RunMemory
from astromesh.workflow.merge import STRATEGIES, without_run_fields
from astromesh.workflow.operations import call_function, load_operation
from astromesh.workflow.plan import FORKS, Stage, decide, fork_children
from astromesh.workflow.project import Project
from astromesh.workflow.questions import People, Question, node_question, output_of, question_about
from astromesh.workflow.state_machine import Outcome, StateMachine
from astromesh.workflow.tools import PolicyRequest, StagePort, StageTools, denial_reason, tool_policy
from astromesh.workflow.validation import GLOBAL_CONTEXT, NO_CONTEXT

#: exception → code of the stage's error, the most specific first
_ERROR_CODES: Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], str]] = (
    ((ProviderError, AllProvidersFailed), "provider_error"),
    (InvalidOutput, "invalid_output"),
    (NotJson, "invalid_output"),
    (TemplateFailed, "template_failed"),
    ((TimeoutError, DeadlineExceeded), "timeout"),
)


def stage_error(error: BaseException) -> JsonObject:
    """Returns `{code, message}`.

    The message of a foreign exception does not contain what looks like a secret.
    """
    if isinstance(error, StageFault):
        return {"code": error.code, "message": str(error)}
    for kinds, code in _ERROR_CODES:
        if isinstance(error, kinds):
            return {"code": code, "message": str(error)}
    if isinstance(error, AstromeshError):
        return {"code": error.code, "message": str(error)}
    return {"code": "operation_error", "message": describe(error)}


log = get_logger("astromesh.workflows")

_DEFAULT_MERGE = MergeSpec()
StageCall = Call["StageExecution", ContextPackage | None, Outcome]


class StageExecution:
    """One execution of a stage, which its wrappers and its body share."""

    __slots__ = (
        "attempts", "calls", "entry", "is_suspect", "journal", "machine", "memory", "port",
        "run_journal", "scope", "suspended", "task", "tell", "write",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        entry: Entry,
        machine: StateMachine,
        memory: RunMemory,
        scope: Scope,
        attempts: StageAttempts,
    ) -> None:
        self.task, self.entry, self.machine, self.memory, self.scope = task, entry, machine, memory, scope
        self.port: StagePort | None = None
        #: None until the stage has begun in a journal
        self.calls: StageCalls | None = None
        self.attempts = attempts
        #: of a Task that can be resumed: returns when a record of its attempts is on disk
        self.write: Callable[[JsonObject], Awaitable[None]] | None = None
        #: of a Task that can be resumed; and what records the runs of agents, of any Task
        self.journal: Journal | None = None
        self.run_journal: Journal | None = None
        #: whether the process died while this stage ran
        self.is_suspect = False

        #: gives the slot of the stage back while it waits; commits a record that changes no state
        self.suspended: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        self.tell: Callable[[JsonObject], None] = _ignore

    @property
    def place(self) -> str:
        """The path of the stage within its Task."""
        return stage_path(self.task.path, self.entry.stage)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.attempts.begun(self.entry.task, self.entry.stage)

    async def note(self, type: str) -> None:
        """Notes what happens to the stage, on disk if the Task can be resumed. See `attempts`."""
        if self.journal is not None and type == START:
            self.journal.restart(self.place)
        record = {"type": type, "task": self.entry.task, "stage": self.entry.stage}
        if self.write is not None:
            await self.write(record)
        else:
            self.attempts.apply(record)

    async def note_death(self) -> int:
        """Notes that the stage's own process has died. Returns how often it has."""
        await self.note(DEATH)
        return self.attempts.deaths(self.entry.task, self.entry.stage)

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Holds no slot, and stops the time limits of the stage and of runs in it, while it waits."""
        with standing_still():
            async with self.suspended():
                yield

    async def ask_now(self, people: People, ticket: str, question: Question) -> JsonObject:
        """Returns a person's decision."""
        about = {"task": self.task.path, "stage": self.entry.stage, "ticket": ticket, "kind": question.kind,
                 "name": question.name}  # fmt: skip
        self.tell({"type": "asked", **about, "at": self.scope.clock.now()})
        async with self.waiting():
            decision = await people.ask(self.task.id, self.entry.stage, ticket, question)
        answer = {"decision": decision["decision"], "by": decision.get("by", "")}
        self.tell({"type": "decided", **about, **answer, "at": self.scope.clock.now()})
        return decision

    async def ask(self, resources: StageResources, ticket: str, question: Question) -> JsonObject:
        """Returns a person's decision, in a replay that of the recording."""
        assert resources.people is not None
        work = partial(self.ask_now, resources.people, ticket, question)
        return await recorded_question(resources.journal, self.calls, question, work)

    async def ask_about_call(self, people: People, ticket: str, question: HumanQuestion) -> JsonObject:
        """Returns a person's decision about a call in a run of an agent, or about an interrupted call."""
        return await self.ask_now(people, ticket, question_about(question))


def _ignore(record: JsonObject) -> None:
    """Commits nothing: the stage runs outside of a Task."""


@dataclass(frozen=True, slots=True)
class StageResources:
    """The resources that stages are compiled from.

    Args:
        agents: of agents.yaml, opened; other names are the runtime's.
        secrets: masked in outputs, errors and tool calls.
        people: asks people; None: no stage can wait for one.
        agent_process: runs the agent of a suspect; None: this process does, and only its Python tools and
            plain nodes run in a process of their own.
    """

    project: Project
    tools: Mapping[str, Tool]
    agents: Mapping[str, StageAgent]
    run_agent: RunAgent | None = None
    gate: Gate | None = None
    journal: StageJournal | None = None
    secrets: tuple[str, ...] = ()
    people: People | None = None
    agent_process: AgentProcess | None = None


def compile_stage(stage: Stage, resources: StageResources) -> StageCall:
    """Compiles a stage into a call that never raises: it returns an outcome, successful or not.

    Raises:
        UnreadableModule: the module of its operation cannot be imported now.
    """
    body, plain = _body(stage, resources)
    if not plain:
        body = bounded(body, stage.node.timeout_s, stage.id)
    call: StageCall = unit(body, _succeeded, _failed)
    for middleware in reversed(list(_middleware(stage, resources))):
        call = partial(middleware, call)
    return call


def failing_call(error: Exception) -> StageCall:
    """Returns the call of a stage that fails with this error."""

    async def fail(job: StageExecution, package: ContextPackage | None) -> Outcome:
        return Outcome(error=stage_error(error))

    return fail


def _succeeded(value: Any, job: StageExecution, package: ContextPackage | None, ms: float) -> Outcome:
    return Outcome(value)


def _failed(error: BaseException, job: StageExecution, package: ContextPackage | None, ms: float) -> Outcome:
    return Outcome(error=stage_error(error))


# -- what stands around the body of a stage ------------------------------------------------------------------

#: takes the call that it stands around, then the arguments of that call
_Middleware = Callable[[StageCall, "StageExecution", ContextPackage | None], Awaitable[Outcome]]


def _middleware(stage: Stage, resources: StageResources) -> Iterator[_Middleware]:
    """Yields what a stage needs, the outermost first."""
    node, project = stage.node, resources.project
    if why := _denial(stage, resources):
        yield partial(_deny, why)
    if schema := project.schema(node.schema_in):
        yield partial(_check_input, OutputSchema(schema), _schema_name(node.schema_in))
    if node.context != NO_CONTEXT:
        yield partial(_assemble_context, _context_profile(stage, resources), stage)
    if resources.journal is not None:
        yield partial(_begin_in_journal, stage, resources.journal, resources.people)
    if resources.gate is not None:
        yield partial(_wait_at_gate, resources.gate)
    if node.op or node.agent:
        yield partial(_note_start, node.idempotent is False)
    if stage.role in (*FORKS, "decision"):
        yield partial(_route_output, stage)
    if schema := project.schema(_schema_out(stage, resources)):
        yield partial(_check_output, OutputSchema(schema), _schema_name(_schema_out(stage, resources)))
    if resources.secrets and not stage.passes_on:
        yield partial(_mask, resources.secrets)


def _context_profile(stage: Stage, resources: StageResources) -> ContextProfile:
    named = stage.node.context
    return GLOBAL_PROFILE if named == GLOBAL_CONTEXT else resources.project.profiles[named]


def _schema_out(stage: Stage, resources: StageResources) -> Any:
    agent_spec = resources.project.agents.get(stage.node.agent or "")
    return stage.node.schema_out or (agent_spec.schema_out if agent_spec else None)


def _schema_name(reference: Any) -> str:
    return reference if isinstance(reference, str) else "inline"


def _denial(stage: Stage, resources: StageResources) -> str:
    """Returns why the policies deny a stage, or an empty text. Known when the stage is compiled."""
    node = stage.node
    requests = [PolicyRequest("node", node.id, node.id)]
    if node.agent:
        requests.append(PolicyRequest("agent", node.agent, node.id))
    if node.context != NO_CONTEXT:
        requests.append(PolicyRequest("context", node.context, node.id))
        profile = _context_profile(stage, resources)
        requests += [PolicyRequest("store", source.store, node.id) for source in profile.sources]
    reasons = (denial_reason(resources.project.policies, request) for request in requests)
    return next(filter(None, reasons), "")


async def _deny(why: str, call: StageCall, job: StageExecution, package: ContextPackage | None) -> Outcome:
    job.scope.events.emit("policy.denied", task=job.task.id, stage=job.entry.stage, detail=why)
    return Outcome(error={"code": "policy_denied", "message": why})


async def _check_input(
    schema: OutputSchema, name: str, call: StageCall, job: StageExecution, package: ContextPackage | None
) -> Outcome:
    job.entry.schema_in = name
    if why := _mismatch(schema, job.entry.input):
        return Outcome(error={"code": "invalid_input", "message": f"schema_in {name}: {why}"})
    return await call(job, package)


async def _check_output(
    schema: OutputSchema, name: str, call: StageCall, job: StageExecution, package: ContextPackage | None
) -> Outcome:
    job.entry.schema_out = name
    outcome = await call(job, package)
    if outcome.error is None and (why := _mismatch(schema, outcome.output)):
        return Outcome(error={"code": "invalid_output", "message": f"schema_out {name}: {why}"})
    return outcome


async def _mask(
    secrets: tuple[str, ...], call: StageCall, job: StageExecution, package: ContextPackage | None
) -> Outcome:
    """Masks configured secrets in what foreign code returned, raised, and gave to tools."""
    outcome = await call(job, package)
    if job.port is not None:
        job.port.calls = mask_secrets(job.port.calls, secrets)
    return outcome._replace(
        output=mask_secrets(outcome.output, secrets), error=mask_secrets(outcome.error, secrets)
    )


def _mismatch(schema: OutputSchema, value: Any) -> str:
    """Returns why a value does not match a schema, or an empty text."""
    try:
        schema.validate(value)
    except ValueError as error:
        return str(error)
    return ""


def _model_input(stage: Stage, value: Any) -> Any:
    """Returns the input as models and memory see it: the same in every run with the same outputs."""
    return without_run_fields(value) if stage.role == "merge" else value


async def _assemble_context(
    profile: ContextProfile,
    stage: Stage,
    call: StageCall,
    job: StageExecution,
    package: ContextPackage | None,
) -> Outcome:
    value = _model_input(stage, job.entry.input)
    query = value if isinstance(value, str) else orjson.dumps(value).decode()
    try:
        package = await job.memory.package(job.task, profile, query)
    except BaseException as error:  # foreign code: an operation, tool or store fails its stage
        if not is_failure(error):
            raise
        return Outcome(error=stage_error(error))
    job.entry.context_hash, job.entry.context_items = package.hash, package.ids
    return await call(job, package)


async def _begin_in_journal(
    stage: Stage,
    journal: StageJournal,
    people: People | None,
    call: StageCall,
    job: StageExecution,
    package: ContextPackage | None,
) -> Outcome:
    calls = StageCalls(job.task.path, job.entry.stage, package.to_json() if package else None, job.journal)
    if people is not None and people.can_wait(job.task.id):
        calls.ask = partial(job.ask_about_call, people)
    try:
        edited = await begin_stage(journal, calls)
        if calls.origin is not None and not calls.origin.is_repeated(job.entry.input):
            calls.origin = None
        job.calls = calls
    except StageFault as fault:
        return Outcome(error=stage_error(fault))
    if edited is not None:
        return route(stage, edited["output"], job)
    return await call(job, package)


async def _wait_at_gate(
    gate: Gate, call: StageCall, job: StageExecution, package: ContextPackage | None
) -> Outcome:
    if gate.applies(job.task.id, job.entry.stage):
        context = package.to_json() if package else None
        async with job.waiting():
            await gate(job.task.id, job.entry.stage, private_copy(job.entry.input), context)
    return await call(job, package)


async def _note_start(
    asks: bool, call: StageCall, job: StageExecution, package: ContextPackage | None
) -> Outcome:
    """Begins a stage on disk. One with `idempotent: false` that was interrupted asks a person before."""
    begun = job.attempt
    if asks and begun and job.journal is not None:
        try:
            await job.journal.ask_whether_again(job.place, job.entry.stage, begun)
        except OutcomeUnknown as error:
            return Outcome(error=stage_error(error))
    await job.note(START)
    return await call(job, package)


async def _route_output(
    stage: Stage, call: StageCall, job: StageExecution, package: ContextPackage | None
) -> Outcome:
    """Reads from the output of a decision or fork where to go; fails the stage if it does not say so."""
    outcome = await call(job, package)
    return outcome if outcome.error is not None else route(stage, outcome.output, job)


def route(stage: Stage, output: Any, job: StageExecution | None = None) -> Outcome:
    """Returns the outcome of a stage with this output; `job` is None for recorded outputs."""
    try:
        if stage.role == "decision":
            edge, current = decide(stage, output)
            return Outcome(current, edge=edge)
        if stage.role in FORKS:
            parts = fork_children(stage, output)
            error = job.machine.fork_limit_error(job.task, len(parts)) if job else None
            return Outcome(output, error, parts=parts)
    except BaseException as error:  # foreign code: an operation, tool or store fails its stage
        if not is_failure(error):
            raise
        return Outcome(output, stage_error(error))
    return Outcome(output)


# -- bodies --------------------------------------------------------------------------------------------------
_StageBody = Callable[[StageExecution, ContextPackage | None], Awaitable[Any]]


def _body(stage: Stage, resources: StageResources) -> tuple[_StageBody, bool]:
    """Returns the body of a stage, and whether it is so cheap that it needs no time limit."""
    node = stage.node
    if missing := _missing(stage, resources):
        return partial(_fail_as_missing, ", ".join(missing)), True
    if node.human is not None:
        return _human_body(stage, node.human, resources), True
    if node.kind == "agent":
        return _agent_body(stage, resources), False
    if node.op:
        return _operation_body(stage, resources), False
    if stage.role == "merge":
        combine = STRATEGIES[(node.merge or _DEFAULT_MERGE).strategy]

        async def merged(job: StageExecution, package: ContextPackage | None) -> Any:
            return combine([one["output"] for one in job.entry.input["inputs"]])

        return merged, True

    async def identity(job: StageExecution, package: ContextPackage | None) -> Any:
        return job.entry.input

    return identity, True


def _missing(stage: Stage, resources: StageResources) -> list[str]:
    """Returns what a stage needs and a deployment has removed since its Task was accepted."""
    node, found = stage.node, []
    if node.op:
        try:
            load_operation(resources.project.folder, node.op)
        except UnreadableModule:
            raise
        except LookupError as error:
            found.append(f"the operation {node.op!r} ({error.args[0]})")
    return [*found, *(f"the tool {name!r}" for name in node.tools if name not in resources.tools)]


async def _fail_as_missing(missing: str, job: StageExecution, package: ContextPackage | None) -> Any:
    raise StageFault(
        "missing", f"The stage {job.entry.stage!r} needs what does not exist any more: {missing}."
    )


def _human_body(stage: Stage, human: HumanSpec, resources: StageResources) -> _StageBody:
    schema = resources.project.schema(human.answer_schema)

    async def answered(job: StageExecution, package: ContextPackage | None) -> Any:
        if resources.people is None or not resources.people.can_wait(job.task.id):
            raise StageFault(
                "not_durable", f"The stage {stage.id!r} asks a person, which only durable Tasks can wait for."
            )
        question = node_question(stage, human, schema, private_copy(job.entry.input))
        return output_of(stage, human, await job.ask(resources, "human", question), job.entry.input)

    return answered


def _toolbox(names: Sequence[str], resources: StageResources) -> ToolBox:
    policies = {tool.id: tool_policy(tool) for tool in resources.project.tools.tools if tool.id in names}
    return ToolBox([resources.tools[name] for name in names], policies=policies)


def _port(job: StageExecution, box: ToolBox, stage: Stage, resources: StageResources) -> StagePort:
    """Returns the tools of one execution of a stage."""
    people = resources.people
    ask = partial(job.ask, resources) if people is not None and people.can_wait(job.task.id) else None
    node = stage.node
    return StagePort(box, node.id, resources.project.policies, node.tool_on_error, ask, job.journal)


def _operation_body(stage: Stage, resources: StageResources) -> _StageBody:
    """Calls `op(input, context, tools)` with a copy of the input, which the operation may change.

    The context is an `OperationContext`.
    """
    node = stage.node
    function = load_operation(resources.project.folder, node.op or "")
    box = _toolbox(node.tools, resources)
    is_async = inspect.iscoroutinefunction(function)

    async def operation(job: StageExecution, package: ContextPackage | None) -> Any:
        port = job.port = _port(job, box, stage, resources)
        tools = StageTools(port, job.scope)
        if node.isolation or job.is_suspect:
            attempt = partial(_in_process, stage, resources.project, job, package, tools)
            result = await _surviving(stage, resources.project, job, attempt)
        else:
            value, context = private_copy(job.entry.input), _operation_context(job, package)
            if is_async:
                result = await function(value, context, tools)
            else:
                result = await call_function(function, value, context, tools)
        if port.fault is not None:
            raise port.fault
        return canonical(result)

    return operation


async def _in_process(
    stage: Stage, project: Project, job: StageExecution, package: ContextPackage | None, tools: StageTools
) -> Any:
    """Runs an operation in a worker process."""
    node = stage.node
    try:
        return await call_operation(
            (project.folder, node.op or ""),
            job.entry.input,
            _operation_context(job, package),
            tools,
            max_memory_mb=node.max_memory_mb or 0,
            alone=job.is_suspect,
        )
    except ForeignError:
        if tools.fault is not None:
            raise tools.fault from None
        raise


async def _surviving(
    stage: Stage, project: Project, job: StageExecution, attempt: Callable[[], Awaitable[Any]]
) -> Any:
    """Runs the code of a stage in a process, again where that dies, up to `task.max_attempts` times."""
    node, most = stage.node, 1 if stage.node.idempotent is False else project.workflow.task.max_attempts
    what = f"operation {node.op!r}" if node.op else f"agent {node.agent!r}"
    while True:
        try:
            return await attempt()
        except ProcessDied as died:
            deaths = await job.note_death()
            log.warning(
                "stage_process_died", task_id=job.task.id, stage=stage.id, deaths=deaths, error=str(died)
            )
            if deaths >= most:
                raise StageFault(died.code, f"The {what} failed. {died}") from died
            await job.note(START)


def _operation_context(job: StageExecution, package: ContextPackage | None) -> OperationContext:
    found = package or _NO_PACKAGE
    task_id, stage_id, now, calls = job.task.id, job.entry.stage, job.entry.started_at, job.calls
    if calls is not None and (origin := calls.origin) is not None:  # a replay, or a fork
        now = origin.started_at
        task_id = f"{origin.task_id}{job.task.path}" if origin.task_id else task_id
    return OperationContext(found.profile, found.items, task_id, stage_id, job.attempt, now)


_NO_PACKAGE = ContextPackage(NO_CONTEXT)


def _agent_body(stage: Stage, resources: StageResources) -> _StageBody:
    node, name = stage.node, stage.node.agent or ""
    agent_spec = resources.project.agents.get(name)
    # an agent node may use the tools that both the node and its agent name
    box = _toolbox([tool for tool in node.tools if agent_spec is None or tool in agent_spec.tools], resources)
    schema = resources.project.schema(_schema_out(stage, resources))
    answer_schema = AnswerSchema(schema) if schema else None

    async def respond(job: StageExecution, package: ContextPackage | None) -> Any:
        if job.is_suspect and (process := resources.agent_process) is not None:
            job.port = _port(job, box, stage, resources)
            attempt = partial(_agent_in_process, process, stage, resources, job, package)
            return await _surviving(stage, resources.project, job, attempt)
        token = ISOLATED.set((lambda takes_context: True) if job.is_suspect else ISOLATED.get())
        try:
            return await ask(job, package)
        finally:
            ISOLATED.reset(token)

    async def ask(job: StageExecution, package: ContextPackage | None) -> Any:
        agent = resources.agents.get(name)
        if agent is None:
            if resources.run_agent is None:
                raise StageFault(
                    "agent_not_found",
                    f"The agent {name!r} is not in agents.yaml, and this engine has no run_agent to run it.",
                )
            agent = RuntimeAgent(name, resources.run_agent)
        port = job.port = _port(job, box, stage, resources)
        scope = job.scope.child(f"{job.task.path}@{stage.id}".lstrip("/"))
        answer = await agent.ask(
            AgentRequest(
                _model_input(stage, job.entry.input),
                package,
                answer_schema,
                port,
                scope,
                stage.id,
                job.run_journal,
            )
        )
        job.entry.usage = {**answer.usage, "repaired": True} if answer.repaired else answer.usage
        return canonical(answer.output)

    return respond


def agent_call(stage: Stage, resources: StageResources) -> StageCall:
    """Returns the agent of a stage as a call, without what stands around it: its parent process has that."""
    return unit(_agent_body(stage, resources), _succeeded, _failed)


async def _agent_in_process(
    process: AgentProcess,
    stage: Stage,
    resources: StageResources,
    job: StageExecution,
    package: ContextPackage | None,
) -> Any:
    """Runs an agent in a process of its own, with everything that it calls."""
    scope, calls, people, project = job.scope, job.calls, resources.people, resources.project
    request = {
        "start": job.machine.plan.start,
        "stage": stage.id,
        "manifests": project.snapshot.content,
        "place": job.place,
        "task_id": scope.run_id,
        "task": job.task.path,
        "input": job.entry.input,
        "context": package.to_json() if package else None,
        "caller": to_builtins(scope.caller),
        "trace_id": scope.trace_id,
        "sampled": scope.sampled,
        "can_wait": people is not None and people.can_wait(job.task.id),
    }

    async def ask(ticket: str, question: Question) -> JsonObject:
        assert people is not None
        return await job.ask_now(people, ticket, question)

    found = await process(request, job.journal, ask)
    job.entry.usage = found["usage"]
    assert job.port is not None
    job.port.calls = found["tool_calls"]
    if calls is not None:
        calls.calls = found["calls"]
    scope.ledger.add(found["spent"])
    if found["error"] is not None:
        raise StageFault(found["error"]["code"], found["error"]["message"])
    return found["output"]


def complete_entry(job: StageExecution, outcome: Outcome, now: float, output: Any) -> None:
    """Writes the outcome of an execution into its entry."""
    entry = job.entry
    entry.finished_at = now
    if outcome.error is not None:
        entry.status, entry.error = "failure", outcome.error
    entry.output = output
    if outcome.edge is not None:
        entry.edge = outcome.edge.label
    if job.port is not None and job.port.calls:
        entry.tool_calls = tuple(job.port.calls)
