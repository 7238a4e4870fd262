"""The journal of a Task: the calls of its stages, as records of the Task; its steps, forks and comparisons.

It is the journal of agent runs (`durable.journal`) over the log of a Task. A stage that was interrupted runs
again; its finished calls, and those of the runs of agents in it, are answered from the record.

The steps of a Task are the calls of its stages, then the stage, in the order in which stages ended. The steps
of the run of a runtime agent stand before that run. A fork is a durable Task whose records begin with those
before a step. Of a stage that was active there it has the calls, and of the run of a runtime agent the steps,
as a fork of that run would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from astromesh.durable.approvals import UncountedWaits
from astromesh.durable.base import JournalStep, StepKind
from astromesh.durable.fork import (
    Edit,
    check_edit,
    effect_step,
    forked_steps,
    is_effect,
    is_recalled,
    with_output,
)
from astromesh.durable.journal import RunJournal
from astromesh.durable.recording import Redactor, redacted_question
from astromesh.durable.replay import ReplayLog
from astromesh.durable.step_log import NESTED_MARK as _RUN
from astromesh.durable.step_log import NODE_PREFIX, StepLog
from astromesh.durable.step_view import (
    NESTED,
    EditKind,
    agent_at,
    as_shown,
    editable,
    listed,
    step_content,
    step_json,
)
from astromesh.durable.tasks import TaskWait
from astromesh.errors import AstromeshError, InvalidInput, TaskNotFound
from astromesh.graph.call_record import hash_of
from astromesh.tools.base import HumanQuestion
from astromesh.tools.results import to_text
from astromesh.types import CompletionRequest, CompletionResult, JsonObject
from astromesh.workflow.base import CONTEXT, STEP, NotJson, RecordWriter, canonical, stage_path
from astromesh.workflow.journal import (
    StageOrigin,
    call_place,
    current_calls,
    edits_path,
    origin_path,
    request_edit,
)


def open_task_journal(
    task_id: str,
    records: Sequence[Mapping[str, Any]],
    writer: RecordWriter,
    *,
    is_fork: bool = False,
    is_durable: bool = True,
    accepted_at: float = 0.0,
) -> RunJournal:
    """Returns the journal of a Task.

    Args:
        records: the steps in its records.
        is_durable: False for a Task that a caller waits for: it records the runs of agents, and no process
            continues it.
        accepted_at: the time that prompts show, so that a run that continues, or is forked, makes the same.
    """
    log = StepLog(
        task_id,
        "",
        _TaskWriter(writer),
        _StageWaits(),
        map(_step_of, records),
        inherited=0 if is_fork else None,
        is_durable=is_durable,
        accepted_at=accepted_at,
    )
    return RunJournal(log, "", task_id, _NoReplays())


def _step_of(record: Mapping[str, Any]) -> JournalStep:
    fields = JournalStep._fields  # a record of an earlier version has fewer
    return JournalStep(**{key: record[key] for key in fields if key in record})


def steps_of_runs(records: Iterable[Mapping[str, Any]]) -> dict[str, list[JournalStep]]:
    """Returns the steps of the runs of agents in the order of their numbers, by the path of the stage."""
    latest = {(step.path, step.n): step for _, step in numbered_steps_of_runs(records)}
    found: dict[str, list[JournalStep]] = {}
    for step in sorted(latest.values(), key=lambda one: one.ordinal):
        found.setdefault(step.path.removeprefix(NODE_PREFIX).partition(NESTED)[0], []).append(step)
    return found


def numbered_steps_of_runs(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, JournalStep]]:
    """Yields the steps of the runs of agents as they were written, with the numbers of their records."""
    for n, record in enumerate(records, 1):
        if record["type"] == STEP and NESTED in record["path"]:
            yield n, _step_of(record)


class ReplayedRuns:
    """The runs of agents in a Task that is replayed: each is made again, and compared with its steps.

    Args:
        records: of the Task.
        lists_tools: as of `ReplayLog`.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]], *, lists_tools: bool) -> None:
        begin, inherited = records[0], 0 if "forked_from" in records[0] else None
        self._runs = steps_of_runs(records)
        effects = filter(is_effect, (_step_of(one) for one in records if one["type"] == STEP))
        steps = [*effects, *(step for steps in self._runs.values() for step in steps)]
        steps.sort(key=lambda step: (step.path, step.n))
        at = begin.get("at", 0.0)
        self.log = ReplayLog(begin["task_id"], "", None, steps, at, inherited, lists_tools=lists_tools)

    def open_journal(self, task_id: str, *_: Any, **__: Any) -> RunJournal:
        """Returns the journal that answers these runs. See `OpenJournal`."""
        return RunJournal(self.log, "", task_id, _NoReplays())

    async def check(
        self, place: str, recorded: Mapping[str, Any], make: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> JsonObject | None:
        """Makes a run again and returns its divergence; None if it has no steps here. See `RunCheck`."""
        if place not in self._runs:
            return None
        try:
            made = await make()
        except AstromeshError:
            if self.log.divergence is None:
                raise
        else:
            self.log.check_answer({"response": recorded["response"]}, {"response": made["response"]})
        return self.log.divergence


class _TaskWriter:
    """Writes steps as records of a Task."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def step(self, step: JournalStep) -> None:
        self._writer.commit({"type": STEP, **step._asdict()})

    async def flush(self) -> None:
        await self._writer.flush()


class _StageWaits(UncountedWaits):
    """Asks people about the stage that the current code runs in."""

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        """Returns the decision, `expired` if nobody can be asked."""
        calls = current_calls()
        if calls is None or calls.ask is None:
            return {"decision": "expired"}
        return await calls.ask(f"{step.path}#{step.n}", human_question)


class _NoReplays:
    """A Task itself calls no model."""

    keeps_requests = False

    def record_replay(self, request: CompletionRequest, result: CompletionResult) -> None:
        """Keeps nothing."""


#: kind of a recorded call → kind of its step
_KINDS: Mapping[str, StepKind] = {"model": "model", "tool": "tool", "agent": "node", "person": "wait"}
#: what a fork can edit at a step, by its kind, beside the models and the manifests of its workflow
_EDITS: Mapping[str, tuple[EditKind, ...]] = {
    "model": ("output", "message", "system"),
    "tool": ("tool_result",),
    "node": ("output",),
    "value": ("output",),
}
#: edits of what the whole workflow has
_OF_THE_WORKFLOW = ("model", "manifest")


class TaskStep(NamedTuple):
    """A step of a Task.

    Args:
        step: as others see it.
        record: of its stage.
        call: the call; None: the stage itself.
        place: the path and number of the call in the journal.
        recorded: of a step in the run of an agent: as the journal has it.
        run: the steps of that run, numbered as those of the Task.
    """

    step: JournalStep
    record: Mapping[str, Any]
    call: JsonObject | None = None
    place: tuple[str, int] = ("", 0)
    recorded: JournalStep | None = None
    run: Sequence[JournalStep] = ()

    @property
    def stage(self) -> tuple[str, str]:
        entry = self.record["entry"]
        return entry["task"], entry["stage_id"]

    @property
    def editable(self) -> tuple[EditKind, ...]:
        if self.recorded is not None:  # its question is the input of the stage
            return tuple(kind for kind in editable(self.recorded) if kind != "query")
        first: tuple[EditKind, ...] = ("query",) if self.step.ordinal == 1 else ()
        values: tuple[EditKind, ...] = ("state",) if self.has_values else ()
        return (*first, *_EDITS[self.step.kind], *values, "model", "manifest")

    @property
    def has_values(self) -> bool:
        """Whether it is a stage whose output is an object, into which a fork can put values."""
        return self.is_stage and isinstance(self.record["entry"]["output"], dict)

    @property
    def is_stage(self) -> bool:
        return self.call is None and self.recorded is None

    def to_json(self) -> JsonObject:
        return {**step_json(self.step), **self._own()}

    def content(self) -> JsonObject:
        """Returns the step with its input and output."""
        found = step_content(self.run or [self.step], self.step.ordinal)
        assert found is not None
        return {**found, **self._own()}

    def _own(self) -> JsonObject:
        found: JsonObject = {"editable": list(self.editable)}
        return {**found, "kind": "stage"} if self.is_stage else found  # a stage may have the name of a rule


def task_steps(
    records: Iterable[Mapping[str, Any]],
    runs: Mapping[str, Sequence[JournalStep]],
    redactors: Mapping[str, Redactor | None],
) -> list[TaskStep]:
    """Returns the steps of a Task. Questions to people have numbers, too.

    Args:
        records: of the stages that counted, in order.
        runs: the steps of the runs of agents, see `steps_of_runs`.
        redactors: what these steps pass before others see them, by the names of the agents.
    """
    found: list[TaskStep] = []
    for record in records:
        place = stage_path(record["entry"]["task"], record["entry"]["stage_id"])
        counts, places = Counter[str](), Counter[str]()
        request: JsonObject = {}
        for call in record.get("calls", ()):
            if call["kind"] == "agent":  # a stage has one such run at most
                found += _run_steps(runs.get(_run_path(record), ()), len(found), record, redactors)
            path, position = f"{place}/{call['kind']}:{call['name']}", call_place(place, call)
            counts[path] += 1
            places[position] += 1
            if call["kind"] == "model":
                request = _whole(request, call["request"])
            step = _call_step(path, counts[path], len(found) + 1, call, request, record["entry"])
            found.append(TaskStep(step, record, call, (position, places[position])))
        found.append(TaskStep(_stage_step(place, len(found) + 1, record["entry"]), record))
    return found


def _run_path(record: Mapping[str, Any]) -> str:
    """Returns the path of the runs of agents that a stage has made."""
    return f"{record['entry']['task']}@{record['entry']['stage_id']}".lstrip("/")


def redacted_steps(
    journal: Iterable[Mapping[str, Any]], redactors: Mapping[str, Redactor | None]
) -> dict[int, JsonObject]:
    """Returns the records that an ended Task has in place of others, by their numbers.

    Args:
        redactors: as of `task_steps`.
    """
    pairs = ((n, step, as_shown([step], redactors)[0]) for n, step in numbered_steps_of_runs(journal))
    return {n: _record(shown) for n, step, shown in pairs if shown is not step}


def redacted_waits(waits: Sequence[TaskWait], redactors: Mapping[str, Redactor | None]) -> Sequence[TaskWait]:
    """Returns the questions of agents of the runtime, with their decisions, as their rules leave them.

    Args:
        redactors: by the names of the agents.
    """
    found = []
    for wait in waits:
        if (redact := redactors.get(agent_at(wait.ticket))) is not None:
            answer = wait.answer and redacted_question(wait.answer, redact)
            found.append(wait._replace(question=redacted_question(wait.question, redact), answer=answer))
    return found


def _run_steps(
    recorded: Sequence[JournalStep],
    before: int,
    record: Mapping[str, Any],
    redactors: Mapping[str, Redactor | None],
) -> Iterator[TaskStep]:
    """Yields the steps of the run of an agent. Args: before: the number of the last step of the Task."""
    own_steps = listed(recorded)
    numbers = {step.ordinal: before + n for n, step in enumerate(own_steps, 1)}

    def numbered(step: JournalStep) -> JournalStep:
        about = dict(step.about or {})
        if step.kind == "node" and "after" in about:  # the last step before it began
            about["after"] = max((new for old, new in numbers.items() if old <= about["after"]), default=0)
        return step._replace(ordinal=numbers[step.ordinal], about=about)

    seen = as_shown(map(numbered, own_steps), redactors)
    run = sorted(seen, key=lambda step: (step.path, step.n))
    for step, own in zip(seen, own_steps, strict=True):
        yield TaskStep(step, record, recorded=own, run=run)


def visible(steps: Iterable[TaskStep]) -> list[TaskStep]:
    """Returns the steps without questions to people."""
    return [one for one in steps if one.step.kind != "wait"]


def step_at(steps: Iterable[TaskStep], number: int, task_id: str) -> TaskStep:
    """Raises: TaskNotFound: there is no such step."""
    found = next((one for one in visible(steps) if one.step.ordinal == number), None)
    if found is None:
        raise TaskNotFound(f"The Task {task_id!r} has no step {number}.")
    return found


def _whole(before: JsonObject, new: JsonObject) -> JsonObject:
    """Returns a request. Args: new: what it has that the one before had not, see `StageCalls.new_in`."""
    earlier = before.get("messages", [])
    messages = [*earlier[: new.get("same", len(earlier))], *new.get("messages", ())]
    return {**before, **{key: value for key, value in new.items() if key != "same"}, "messages": messages}


def _call_step(
    path: str, n: int, number: int, call: JsonObject, request: JsonObject, entry: JsonObject
) -> JournalStep:
    kind = _KINDS[call["kind"]]
    seen: Any = call["request"]
    if kind == "model":
        rest = {key: value for key, value in request.items() if key != "messages"}
        seen = {"messages": request["messages"], "rest": rest}
    elif kind == "tool":
        seen = orjson.dumps(seen).decode()
    elif kind == "node":
        seen = {"query": seen[0], "context": seen[1]}
    output = _OUTPUTS[kind](call)
    about = {"name": call["name"], "in": seen}
    at: float = call["started_at"] if "started_at" in call else entry["started_at"]
    took: float = call.get("duration_ms", 0.0)
    return JournalStep(path, n, kind, "", "done", output, number, at, took, about)


def _answered(call: JsonObject) -> JsonObject:
    """Returns the answer of a model as the record of a run has it."""
    failed = "error" in call
    return {"step": 0, "failure": call["error"]} if failed else {"step": 0, "result": call["answer"]}


def _returned(call: JsonObject) -> JsonObject:
    """Returns the result of a tool as the record of a run has it."""
    if "error" in call:
        error = call["error"]
        return {"content": error["message"], "ok": False, "error": error["type"], "value": None}
    answer = call["answer"]
    return {"content": to_text(answer), "ok": True, "error": "", "value": answer}


def _responded(call: JsonObject) -> JsonObject:
    """Returns the response of an agent as the record of a run has the result of a node."""
    if "error" in call:
        return {"result": {"error": call["error"]}}
    usage = (call["answer"].get("metadata") or {}).get("usage")
    return {"result": {**call["answer"], "usage": usage}}


_OUTPUTS: Mapping[StepKind, Any] = {
    "model": _answered, "tool": _returned, "node": _responded, "wait": lambda call: call.get("answer"),
}  # fmt: skip


def _stage_step(place: str, number: int, entry: JsonObject) -> JournalStep:
    keys = ("status", "output", "error", "edge")
    out = {key: entry[key] for key in keys if entry[key] or key in ("status", "output")}
    about = {"name": entry["stage_id"], "in": {"input": entry["input"]}, "out": out, "usage": entry["usage"]}
    took = round((entry["finished_at"] - entry["started_at"]) * 1000, 3)
    return JournalStep(place, 1, "value", "", "done", out, number, entry["started_at"], took, about)


# -- forks ---------------------------------------------------------------------------------------------------


def forked_records(
    task_id: str,
    records: Sequence[Mapping[str, Any]],
    steps: Sequence[TaskStep],
    at: TaskStep,
    edit: Edit | None,
) -> list[JsonObject]:
    """Returns the records that a fork begins with, behind its `begin` record.

    Args:
        task_id, records: of the Task, all records.
        steps: of the Task.
        at: the step that the Task is forked at.

    Raises:
        InvalidInput: the step cannot be edited like that, or the value does not fit.
    """
    if edit is not None and edit.kind not in at.editable:
        can = ", ".join(at.editable)
        raise InvalidInput(f"edit: at step {at.step.ordinal}, {can} can be edited.")
    if edit is not None and edit.kind == "query":
        return [*_effects(records, steps), *_origins(task_id, steps)]
    before = [one for one in steps if one.step.ordinal < at.step.ordinal]
    edited = edit if edit is not None and edit.kind in ("output", "tool_result", "state") else None
    ended: list[JsonObject] = [{"task_id": task_id, **one.record} for one in before if one.is_stage]
    if edited is not None and at.is_stage:
        ended.append(_edited_stage(at.record, edited))
    if edited is not None and at.call is not None:
        before.append(at._replace(call=_edited_call(at, edited)))
    complete = {(one["entry"]["task"], one["entry"]["stage_id"]) for one in ended}
    open_ones = [one for one in before if one.stage not in complete]
    begun = [one for one in open_ones if one.call is not None]
    runs = [_record(one.recorded) for one in before if one.recorded is not None]
    if at.recorded is not None:
        open_ones.append(at)
        runs = [one for one in runs if not _is_in_run(one, at)] + _forked_run(records, at, edit)
    origins = _origins(task_id, (one for one in steps if one.stage not in complete))
    copied = [
        *_contexts(open_ones),
        *runs,
        *map(_journaled, begun),
        *_effects(records, steps),
        *origins,
        *ended,
    ]
    if at.call is None or at.stage in complete:
        return copied
    edits = [*at.record.get("edits", ())]  # of a Task that is a fork itself
    if edit is not None and edit.kind in ("system", "message"):
        edits.append(_edit_of_requests(at, steps, edit))
    return [*copied, *_edits_of_stage(at.stage, edits)]


def _is_in_run(record: Mapping[str, Any], at: TaskStep) -> bool:
    path: str = record["path"].removeprefix(NODE_PREFIX)
    return path.startswith(_run_path(at.record) + _RUN)


def _forked_run(records: Iterable[Mapping[str, Any]], at: TaskStep, edit: Edit | None) -> list[JsonObject]:
    """Returns the steps that the run of an agent begins with, see `forked_steps`.

    Raises:
        NotRecorded: a text of a step before is no longer stored.
    """
    assert at.recorded is not None
    steps = steps_of_runs(records).get(_run_path(at.record), ())
    if edit is not None and edit.kind in _OF_THE_WORKFLOW:
        edit = None
    if edit is not None:
        check_edit(at.recorded, edit)
    forked = forked_steps(sorted(steps, key=lambda one: (one.path, one.n)), at.recorded, edit)
    # the Task has all effects, and its agents have sessions of their own
    return [_record(step) for step in forked if not (is_effect(step) or is_recalled(step))]


def _edit_of_requests(at: TaskStep, steps: Iterable[TaskStep], edit: Edit) -> JsonObject:
    """Returns an edit of the requests of a stage from one of its calls on, see `workflow.journal`."""
    if not isinstance(edit.value, str):
        raise InvalidInput(f"edit.{edit.kind}: must be a text.")
    first = sum(
        one.call is not None and one.stage == at.stage for one in steps if one.step.ordinal < at.step.ordinal
    )
    assert at.step.about is not None
    return request_edit(edit.kind, edit.value, first, at.step.about["in"]["messages"])


def _origins(task_id: str, steps: Iterable[TaskStep]) -> Iterator[JsonObject]:
    """Yields the executions that stages of a fork repeat, if they have the same input."""
    for one in steps:
        if one.is_stage and one.record.get("begun", True):
            entry, record = one.record["entry"], one.record
            began = record.get("began_at", entry["started_at"])
            origin = StageOrigin(record.get("task_id", task_id), began, hash_of(entry["input"]))
            path = origin_path(stage_path(*one.stage))
            yield _record(JournalStep(path, 1, "value", "", "done", origin._asdict()))


def _edits_of_stage(stage: tuple[str, str], edits: Iterable[JsonObject]) -> Iterator[JsonObject]:
    for n, edit in enumerate(edits, 1):
        yield _record(JournalStep(edits_path(stage_path(*stage)), n, "value", "", "done", edit))


def _contexts(begun: Iterable[TaskStep]) -> Iterable[JsonObject]:
    stages = {one.stage: one.record.get("context") for one in begun}
    for (task, stage), context in stages.items():
        if context is not None:
            yield {"type": CONTEXT, "task": task, "stage": stage, "context": context}


def _journaled(one: TaskStep) -> JsonObject:
    """Returns a call as a step in the journal of a Task."""
    call = one.call or {}
    output: JsonObject = {key: call[key] for key in ("answer", "error") if key in call}
    return _record(JournalStep(*one.place, "value", call["request_hash"], "done", output))


def _record(step: JournalStep) -> JsonObject:
    return {"type": STEP, **step._asdict()}


def _effects(records: Iterable[Mapping[str, Any]], steps: Iterable[TaskStep]) -> Iterator[JsonObject]:
    """Yields what tools have returned, for calls that must not happen again."""
    seen = Counter[str]()
    for record in records:
        if record["type"] == STEP and record["path"].startswith("effect:"):
            yield dict(record)  # of a Task that is a fork itself
            seen[record["path"]] += 1
    called = [(one.step.about, one.step.output) for one in steps if one.call and one.step.kind == "tool"]
    # those of agents in stages
    called += [(r.get("about"), r["output"]) for r in records if _is_nested_tool(r)]
    for about, output in called:
        assert about is not None and output is not None
        step = effect_step(about["name"], about["in"], output)
        seen[step.path] += 1
        yield _record(step._replace(n=seen[step.path]))


def _is_nested_tool(record: Mapping[str, Any]) -> bool:
    if record["type"] != STEP or record["kind"] != "tool" or record["state"] != "done":
        return False
    return bool(record.get("about")) and "content" in (record["output"] or {})


def _edited_stage(record: Mapping[str, Any], edit: Edit) -> JsonObject:
    value = _value_of(edit)
    if edit.kind == "state":
        before = record["entry"]["output"]
        if not isinstance(value, dict) or not isinstance(before, dict):
            raise InvalidInput(
                "edit.state: must be an object of values by name, and so must the stage's output."
            )
        value = {**before, **value}
    changed = {"status": "success", "output": value, "error": None, "edge": ""}
    return {**record, "entry": {**record["entry"], **changed}, "edited": True}


def _edited_call(at: TaskStep, edit: Edit) -> JsonObject:
    call = {key: value for key, value in (at.call or {}).items() if key != "error"}
    if call["kind"] == "model":
        return {**call, "answer": with_output(at.step, edit).output["result"]}  # type: ignore[index]
    if call["kind"] == "agent":
        return {**call, "answer": {**call.get("answer", {}), "response": to_text(_value_of(edit))}}
    return {**call, "answer": _value_of(edit)}


def _value_of(edit: Edit) -> Any:
    try:
        return canonical(edit.value)
    except NotJson as error:
        raise InvalidInput(f"edit.{edit.kind}: {error}") from error
