"""The agents of suspected stages in processes of their own, which open the runtime anew: both sides."""

from __future__ import annotations

import asyncio
from pkgutil import resolve_name
from typing import Any

from msgspec import convert

from astromesh.durable.base import JournalStep
from astromesh.durable.journal import RunJournal
from astromesh.graph.scope import Journal
from astromesh.runtime.bootstrap import RuntimeState
from astromesh.runtime.task_journal import open_task_journal
from astromesh.runtime.workflows import open_workflow
from astromesh.tools.process_pool import Port, call_in_process
from astromesh.types import JsonObject
from astromesh.workflow.isolated_agent import PeopleOfParent
from astromesh.workflow.isolation import AgentProcess
from astromesh.workflow.journal import Recorder
from astromesh.workflow.questions import Ask, Question

# -- in this process -----------------------------------------------------------------------------------------


def agent_process(state: RuntimeState, workflow: str) -> AgentProcess | None:
    """Returns what runs agents of a workflow in processes of their own.

    Returns:
        None if the runtime has parts in Python: another process cannot make it again.
    """
    if not state.factory:
        return None
    opened = {
        "factory": state.factory,
        "folders": [str(state.configuration.folder), str(state.deps.data_dir)],
        "workflow": workflow,
    }

    async def run(request: JsonObject, journal: Journal | None, ask: Ask) -> JsonObject:
        log = journal.step_log if isinstance(journal, RunJournal) else None

        async def answer(message: JsonObject) -> Any:
            if "question" in message:
                return await ask(message["ticket"], convert(message["question"], Question))
            assert log is not None
            if "step" in message:
                log.add(JournalStep(**message["step"]))
            else:
                await log.flush()
            return None

        steps = None if log is None else [one._asdict() for one in log.below(request["place"])]
        is_fork = log is not None and log.is_fork
        accepted_at = 0.0 if log is None else log.accepted_at
        payload = {**opened, "request": request, "steps": steps, "is_fork": is_fork, "at": accepted_at}
        handler = f"{__name__}:{run_agent.__name__}"
        found: JsonObject = await call_in_process(handler, payload, answer=answer, alone=True)
        return found

    return run


# -- in the process of the agent -----------------------------------------------------------------------------


async def run_agent(payload: JsonObject, port: Port) -> JsonObject:
    """Opens the runtime and the workflow, and runs the agent of one stage; see `tools.process_pool`."""
    request, steps = payload["request"], payload["steps"]
    runtime: Any = resolve_name(payload["factory"])(tuple(payload["folders"]))
    async with runtime:
        writer = _WriterOfParent(port)
        journal = (
            None
            if steps is None
            else open_task_journal(
                request["task_id"], steps, writer, is_fork=payload["is_fork"], accepted_at=payload["at"]
            )
        )
        engine = await open_workflow(
            runtime.state,
            payload["workflow"],
            people=PeopleOfParent(port, can_wait=request["can_wait"]),
            journal=Recorder(),
            snapshot=request["manifests"],
        )
        try:
            return await engine.run_agent(request, journal)
        finally:
            await engine.close()
            if steps is not None:
                await writer.flush()


class _WriterOfParent:
    """A `RecordWriter`: the parent of this process writes the steps, in order."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._last: asyncio.Future[Any] | None = None

    def commit(self, record: JsonObject) -> None:
        step = {key: value for key, value in record.items() if key != "type"}
        self._last = asyncio.ensure_future(self._port.ask({"step": step}))

    async def flush(self) -> None:
        if self._last is not None:
            await self._last
        await self._port.ask({"flush": True})
