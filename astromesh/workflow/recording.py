"""Records the calls of models, tools and runtime agents by stage and number, so that a run replays (E53).

A context variable, which the gate sets, says which stage a call belongs to. Patterns and operations do not
know of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import orjson
from msgspec import NODEFAULT, Struct, structs

from astromesh.errors import (
    AstromeshError,
    DeadlineExceeded,
    InvalidInput,
    MissingKey,
    ProviderError,
    ToolError,
    ToolFailed,
    ToolTimeout,
)
from astromesh.providers.base import ModelPort
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, RunAgent, Tool, ToolContext
from astromesh.tools.results import describe
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, ToolCall, Usage
from astromesh.workflow.agents import FolderAgent, StageAgent
from astromesh.workflow.base import digest, task_path
from astromesh.workflow.plan import Plan
from astromesh.workflow.projection import TaskProjection
from astromesh.workflow.stages import StageResources

#: type of a call that a time limit or the end of its Task cancelled
_CANCELLED = "Cancelled"
#: error types that a replay raises as recorded; any other becomes the general error of its kind of call
_ERRORS: Mapping[str, type[AstromeshError]] = {
    **{one.__name__: one for one in (ToolFailed, ToolTimeout, InvalidInput, DeadlineExceeded, MissingKey)},
    _CANCELLED: ToolTimeout,
}


class StageCalls:
    """The calls of one execution of a stage, in the order in which they began.

    Args:
        task: path of the Task within the run.
        context: the context package that the stage received.
    """

    __slots__ = ("calls", "context", "stage", "task")

    def __init__(self, task: str, stage: str, context: JsonObject | None) -> None:
        self.task, self.stage, self.context = task, stage, context
        self.calls: list[JsonObject] = []


#: calls of the stage that the current code runs in
_CURRENT_CALLS: ContextVar[StageCalls | None] = ContextVar("astromesh_stage_calls", default=None)


class CallInterceptor(Protocol):
    """Stands between a call and the model, tool or agent behind it: `Recorder` and `Replay`."""

    async def intercept(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the response as JSON.

        Args:
            call: `{kind, name, request_hash}`.
            work: makes the call.
        """


class Recorder:
    """Makes every call and stores its response until the record of its stage is written."""

    def __init__(self) -> None:
        self._stages: dict[tuple[str, str], StageCalls] = {}

    def begin(self, task: str, stage: str, context: JsonObject | None) -> None:
        """Assigns the calls of the current context to this stage from here on.

        Args:
            task: id of the Task.
            context: the context package that the stage receives.
        """
        calls = StageCalls(task_path(task), stage, context)
        self._stages[task, stage] = calls
        _CURRENT_CALLS.set(calls)

    def with_calls(self, run_id: str, record: JsonObject) -> JsonObject:
        """Returns the record of a stage with its calls and its context, and removes both from the recorder.

        Adds `begun: false` where the stage failed before its gate, for example because its memory could not
        be read.
        """
        if record["type"] != "stage":
            return record
        entry = record["entry"]
        found = self._stages.pop((run_id + entry["task"], entry["stage_id"]), None)
        if found is None:
            return {**record, "begun": False}
        more = {"calls": found.calls, "context": found.context}
        return {**record, **{key: value for key, value in more.items() if value}}

    def forget(self, run_id: str) -> None:
        """Removes the calls of stages that never ended."""
        for key in [k for k in self._stages if k[0].partition("/")[0] == run_id]:
            del self._stages[key]

    async def intercept(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        calls.calls.append(call)
        try:
            call["answer"] = answer = await work()
        except AstromeshError as error:
            call["error"] = {"type": type(error).__name__, "message": str(error)}
            raise
        except asyncio.CancelledError:
            call["error"] = {"type": _CANCELLED, "message": "The call did not end in time."}
            raise
        return answer


def intercept_calls(resources: StageResources, interceptor: CallInterceptor) -> StageResources:
    """Returns the same resources with models, tools and agents behind an interceptor."""
    return replace(
        resources,
        tools={name: InterceptedTool(tool, interceptor) for name, tool in resources.tools.items()},
        agents={name: _intercepted_agent(agent, interceptor) for name, agent in resources.agents.items()},
        run_agent=intercept_run_agent(resources.run_agent, interceptor) if resources.run_agent else None,
    )


def _intercepted_agent(agent: StageAgent, interceptor: CallInterceptor) -> StageAgent:
    return (
        replace(agent, model=InterceptedModel(agent.model, agent.spec.model, interceptor))
        if isinstance(agent, FolderAgent)
        else agent
    )


class InterceptedModel:
    """A model behind an interceptor.

    Args:
        name: of the model in providers.yaml.
    """

    def __init__(self, model: ModelPort, name: str, interceptor: CallInterceptor) -> None:
        self._model, self._name, self._interceptor = model, name, interceptor

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        calls = _CURRENT_CALLS.get()
        if calls is None:
            return await self._model.complete(request)

        async def work() -> JsonObject:
            return completion_to_json(await self._model.complete(request))

        call = {"kind": "model", "name": self._name, "request_hash": request_hash(request)}
        return completion_from_json(await self._interceptor.intercept(calls, call, work))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """Yields the whole text as one piece."""
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


class InterceptedTool:
    """A tool behind an interceptor."""

    def __init__(self, tool: Tool, interceptor: CallInterceptor) -> None:
        self.spec = tool.spec
        self._tool, self._interceptor = tool, interceptor

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        calls = _CURRENT_CALLS.get()
        if calls is None:
            return await self._tool.call(arguments, context)

        async def work() -> Any:
            try:
                return _json(await self._tool.call(arguments, context))
            except ToolError:
                raise
            except Exception as error:  # foreign code: any exception of a tool is recorded as its response
                raise ToolFailed(f"The tool {self.spec.name!r} failed: {describe(error)}") from error

        call = {"kind": "tool", "name": self.spec.name, "request_hash": request_hash(arguments)}
        return await self._interceptor.intercept(calls, call, work)


def intercept_run_agent(run_agent: RunAgent, interceptor: CallInterceptor) -> RunAgent:
    """Returns a function that intercepts whole runs of the runtime's agents, not the calls inside them."""

    async def run(
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        calls = _CURRENT_CALLS.get()
        if calls is None:
            return await run_agent(agent, query, context, parent, terms)

        async def work() -> Any:
            return _json(dict(await run_agent(agent, query, context, parent, terms)))

        call = {"kind": "agent", "name": agent, "request_hash": request_hash([query, dict(context)])}
        answer: Mapping[str, Any] = await interceptor.intercept(calls, call, work)
        return answer

    return run


def request_hash(request: Any) -> str:
    """Returns the SHA-256 of a request in canonical JSON without the fields that have their default.

    A field that a later version adds to the records therefore does not change the hash of a recorded request.
    """
    option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    return hashlib.sha256(orjson.dumps(request, default=_without_defaults, option=option)).hexdigest()


def _without_defaults(value: Any) -> Any:
    if isinstance(value, Struct):
        values = ((field, getattr(value, field.name)) for field in structs.fields(value))
        return {field.name: one for field, one in values if not _is_default(field, one)}
    return _plain(value)


def _is_default(field: structs.FieldInfo, value: Any) -> bool:
    default = field.default_factory() if field.default_factory is not NODEFAULT else field.default
    return default is not NODEFAULT and bool(value == default)


def completion_to_json(result: CompletionResult) -> JsonObject:
    found: JsonObject = _json(result)
    return {key: value for key, value in found.items() if key != "latency_ms"}


def completion_from_json(data: JsonObject) -> CompletionResult:
    return CompletionResult(
        **{
            **data,
            "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"]),
            "usage": Usage(**data["usage"]),
            "attempts": tuple(data["attempts"]),
        }
    )


def recorded_error(call: JsonObject) -> Exception:
    """Returns the error that a recorded call ended with."""
    error = call["error"]
    if error["type"] == _CANCELLED and call["kind"] != "tool":
        return TimeoutError(error["message"])
    kind = _ERRORS.get(error["type"], ToolFailed if call["kind"] == "tool" else ProviderError)
    return kind(error["message"])


def _json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS))


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else str(value)


RECORDING_VERSION = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """The input of a run and every response that came from outside of it.

    Args:
        stages: `{task, stage, status, code, edge, output_hash, calls}` in the order in which they counted,
            with `begun: false` where a stage failed before it began.
        memory: items of project and global memory that its stages received.
    """

    workflow: str
    start: str
    input: Any
    status: str
    stages: tuple[JsonObject, ...] = field(repr=False)
    run_fingerprint: str = ""
    memory: tuple[JsonObject, ...] = field(default=(), repr=False)

    @property
    def path(self) -> list[str]:
        return [stage["stage"] for stage in self.stages]

    def to_json(self) -> JsonObject:
        return {
            "version": RECORDING_VERSION, "workflow": self.workflow, "start": self.start, "input": self.input,
            "status": self.status, "run_fingerprint": self.run_fingerprint, "memory": list(self.memory),
            "stages": list(self.stages),
        }  # fmt: skip

    @classmethod
    def from_records(
        cls, plan: Plan, records: Sequence[Mapping[str, Any]], status: str, fingerprint: str = ""
    ) -> Recording:
        """Creates a recording from the records of a Task, which contain the calls of its stages."""
        begin = records[0]
        projection = TaskProjection(plan, begin["task_id"])
        projection.apply(records)
        stages = tuple(map(_stage_record, projection.records))
        memory = _shared_memory_items(record.get("context") for record in projection.records)
        return cls(begin["workflow"], begin["start"], begin["input"], status, stages, fingerprint, memory)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recording:
        """Creates a recording from JSON.

        Raises:
            KeyError, TypeError: the data is not a recording.
            InvalidInput: it has another version.
        """
        if data["version"] != RECORDING_VERSION:
            raise InvalidInput(
                f"The recording has version {data['version']}, which this astromesh does not read. Record it "
                "again with 'astromesh workflow record'."
            )
        return cls(
            data["workflow"], data["start"], data["input"], data["status"], tuple(data["stages"]),
            data["run_fingerprint"], tuple(data["memory"]),
        )  # fmt: skip

    @classmethod
    def read(cls, file: Path) -> Recording:
        """Reads a file.

        Raises:
            InvalidInput: the file does not exist or is not a recording.
        """
        try:
            return cls.from_json(orjson.loads(file.read_bytes()))
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise InvalidInput(f"{file} is not a recording: {error!r}.") from error

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _shared_memory_items(contexts: Iterable[JsonObject | None]) -> tuple[JsonObject, ...]:
    """Returns the items of project and global memory of these context packages, each once."""
    found: dict[tuple[str, str], JsonObject] = {}
    for context in contexts:
        for item in context["items"] if context else ():
            if item["layer"] != "task":
                found.setdefault((item["layer"], item["id"]), item)
    return tuple(found.values())


def _stage_record(record: Mapping[str, Any]) -> JsonObject:
    found = {**comparable_fields(record["entry"]), "calls": list(record.get("calls", ()))}
    return found if record.get("begun", True) else {**found, "begun": False}


def comparable_fields(entry: Mapping[str, Any]) -> JsonObject:
    """Returns the fields of an entry that a replay must reproduce."""
    return {
        "task": entry["task"],
        "stage": entry["stage_id"],
        "status": entry["status"],
        "code": (entry["error"] or {}).get("code", ""),
        "edge": entry["edge"],
        "output_hash": digest(entry["output"]),
    }
