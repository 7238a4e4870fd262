"""Whether and how plain runs are recorded (`recording` of an agent and of `runtime.yaml`)."""

from __future__ import annotations

from astromesh.config.runtime import Recording as RecordingKeys
from astromesh.durable.journal import RunJournal
from astromesh.durable.plain_recording import MemorySteps, NoWaits, Recording
from astromesh.durable.serialization import caller_to_json, ended_request
from astromesh.durable.step_log import StepLog
from astromesh.runtime.agent import Agent
from astromesh.runtime.content_capture import redactor_of
from astromesh.runtime.records import RunRequest, request_to_json
from astromesh.runtime.run import Run
from astromesh.types import CallerContext


class PlainRecorder:
    """Records plain runs.

    Args:
        keys: of `runtime.yaml`.
        by_default: whether it records where `runtime.yaml` does not say.
    """

    def __init__(self, keys: RecordingKeys, *, by_default: bool = False) -> None:
        says = "enabled" in keys.model_fields_set
        self._keys, self._is_enabled = keys, keys.enabled if says else by_default

    def begin(self, agent: Agent, run: Run) -> MemorySteps | None:
        """Makes the calls of a run pass through a journal, if its agent is recorded."""
        wanted = agent.manifest.spec.recording
        if not (self._is_enabled if wanted is None else wanted) or run.journal is not None:
            return None
        steps = MemorySteps(self._keys.max_bytes)
        log = StepLog(
            run.id,
            agent.name,
            steps,
            NoWaits(),
            (),
            accepted_at=run.scope.clock.now(),
            manifest=agent.snapshot,
            is_durable=False,
        )
        run.journal = run.scope.journal = RunJournal(log, "", run.id, run.model, redactor_of(agent))
        return steps

    def end(self, agent: Agent, request: RunRequest, run: Run, steps: MemorySteps) -> Recording | None:
        """Returns the recording of a run that has ended. None: it is too long, or was not admitted."""
        assert run.journal is not None
        run.journal.step_log.redact()
        if not run.admitted_query or not steps.steps:
            return None
        admitted = run.admitted_request or request_to_json(request, run.admitted_query)
        stored = {**ended_request(admitted, run.admitted_query), "accepted_at": run.prompt_time}
        caller = caller_to_json(run.caller or CallerContext())
        return Recording(steps.steps, stored, agent.snapshot, caller)
