"""The agent of a stage in a process of its own: what runs there. `stages` has the other side.

Everything that the agent needs is opened there anew: its tools, models, hooks and guards, and the runtime of
an agent that the node names. The Task, its journal and its questions to people remain in the parent.
"""

from __future__ import annotations

from functools import partial

from msgspec import structs

from astromesh.graph.scope import Journal, Scope
from astromesh.tools.process_pool import Port
from astromesh.types import JsonObject
from astromesh.workflow.base import Entry, StageAttempts, Task
from astromesh.workflow.journal import StageCalls, begin_stage
from astromesh.workflow.memory import RunMemory, package_from_json
from astromesh.workflow.plan import Plan
from astromesh.workflow.questions import Question
from astromesh.workflow.stages import StageExecution, StageResources, agent_call
from astromesh.workflow.state_machine import StateMachine


class PeopleOfParent:
    """`People` that the parent of this process asks."""

    def __init__(self, port: Port, *, can_wait: bool) -> None:
        self._port, self._can_wait = port, can_wait

    def can_wait(self, task: str) -> bool:
        return self._can_wait

    async def ask(self, task: str, stage: str, ticket: str, question: Question) -> JsonObject:
        decision: JsonObject = await self._port.ask({"ticket": ticket, "question": structs.asdict(question)})
        return decision


async def run_agent(
    plan: Plan, resources: StageResources, scope: Scope, request: JsonObject, journal: Journal | None
) -> JsonObject:
    """Runs the agent of a stage as its parent has asked, and returns what the parent needs of it.

    Args:
        scope: of the Task.
        request: See `AgentProcess`.
        journal: of the Task.
    """
    stage, path, context = plan.stages[request["stage"]], request["task"], request["context"]
    task = Task(scope.run_id + path, path, "root", None, ())
    entry = Entry(path, stage.id, request["input"], scope.clock.now())
    machine, memory = StateMachine(plan, scope.run_id), RunMemory({}, (), {})
    job = StageExecution(task, entry, machine, memory, scope, StageAttempts())
    job.journal = job.run_journal = journal
    people = resources.people
    assert resources.journal is not None
    calls = StageCalls(path, stage.id, context, journal)
    if people is not None and people.can_wait(task.id):
        calls.ask = partial(job.ask_about_call, people)
    await begin_stage(resources.journal, calls)
    job.calls = calls
    package = package_from_json(context) if context is not None else None
    outcome = await agent_call(stage, resources)(job, package)
    return {
        "output": outcome.output,
        "error": outcome.error,
        "usage": entry.usage,
        "tool_calls": job.port.calls if job.port is not None else [],
        "calls": calls.calls,
        "spent": scope.ledger.to_json(),
    }
