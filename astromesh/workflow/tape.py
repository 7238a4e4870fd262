"""Calls of models, tools and agents of the runtime on tape: recorded by lineage, stage and number (E53).

Which stage a call belongs to is told by the context that its gate was passed in, so that neither patterns nor
operations know of the tape.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, Field, asdict, fields, is_dataclass, replace
from typing import Any, Protocol

import orjson

from astromesh.abc.provider import ModelPort
from astromesh.abc.run import OWN_TERMS, RunAgent, Terms
from astromesh.abc.tool import Tool, ToolContext
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
from astromesh.node.tool_results import describe
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    ToolCall,
    Usage,
)
from astromesh.workflow.agents import FolderAgent, StageAgent
from astromesh.workflow.stages import Kit

#: a call that a time limit or the end of its Task cut off
_CUT_OFF = "Cancelled"
#: errors that are raised again as what they were; others as the general one of their kind
_ERRORS: Mapping[str, type[AstromeshError]] = {
    **{one.__name__: one for one in (ToolFailed, ToolTimeout, InvalidInput, DeadlineExceeded, MissingKey)},
    _CUT_OFF: ToolTimeout,
}


class StageCalls:
    """The calls of one execution of a stage, in the order in which they began.

    Args:
        task: path of the Task within the run.
        context: the package that the stage was given.
    """

    __slots__ = ("calls", "context", "stage", "task")

    def __init__(self, task: str, stage: str, context: JsonObject | None) -> None:
        self.task, self.stage, self.context = task, stage, context
        self.calls: list[JsonObject] = []


#: of the stage that this code runs in
_STAGE: ContextVar[StageCalls | None] = ContextVar("astromesh_stage_calls", default=None)


class Tape(Protocol):
    """What stands between a call and whoever answers it."""

    async def through(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        """The answer as JSON.

        Args:
            call: `{kind, name, request_hash}`.
            work: asks for it.
        """


class Recorder:
    """Lets every call through and keeps what was answered until `taken`."""

    def __init__(self) -> None:
        self._stages: dict[tuple[str, str], StageCalls] = {}

    def begin(self, task: str, stage: str, context: JsonObject | None) -> None:
        """From here on the calls of this context are those of this stage.

        Args:
            task: id of the Task.
            context: the package that the stage was given.
        """
        calls = StageCalls(path_of(task), stage, context)
        self._stages[task, stage] = calls
        _STAGE.set(calls)

    def enriched(self, run_id: str, record: JsonObject) -> JsonObject:
        """The record of a stage with its calls and its context; they are forgotten here.

        `begun: false` where it failed before it was given them, such as when its memory could not be read.
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
        """What stages left that never ended."""
        for key in [k for k in self._stages if k[0].partition("/")[0] == run_id]:
            del self._stages[key]

    async def through(self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]]) -> Any:
        calls.calls.append(call)
        try:
            call["answer"] = answer = await work()
        except AstromeshError as error:
            call["error"] = {"type": type(error).__name__, "message": str(error)}
            raise
        except asyncio.CancelledError:
            call["error"] = {"type": _CUT_OFF, "message": "The call did not end in time."}
            raise
        return answer


def equip(kit: Kit, tape: Tape) -> Kit:
    """The same kit with its models, tools and agents behind a tape."""
    return replace(
        kit,
        tools={name: TapedTool(tool, tape) for name, tool in kit.tools.items()},
        agents={name: _taped(agent, tape) for name, agent in kit.agents.items()},
        run_agent=taped_agent(kit.run_agent, tape) if kit.run_agent else None,
    )


def _taped(agent: StageAgent, tape: Tape) -> StageAgent:
    return (
        replace(agent, model=TapedModel(agent.model, agent.spec.model, tape))
        if isinstance(agent, FolderAgent)
        else agent
    )


class TapedModel:
    """Args: name: of the model in providers.yaml."""

    def __init__(self, model: ModelPort, name: str, tape: Tape) -> None:
        self._model, self._name, self._tape = model, name, tape

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        calls = _STAGE.get()
        if calls is None:
            return await self._model.complete(request)

        async def work() -> JsonObject:
            return completion_to_json(await self._model.complete(request))

        call = {"kind": "model", "name": self._name, "request_hash": request_hash(request)}
        return completion_of(await self._tape.through(calls, call, work))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """The words as they were, in one piece."""
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


class TapedTool:
    def __init__(self, tool: Tool, tape: Tape) -> None:
        self.spec = tool.spec
        self._tool, self._tape = tool, tape

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        calls = _STAGE.get()
        if calls is None:
            return await self._tool.call(arguments, context)

        async def work() -> Any:
            try:
                return _json(await self._tool.call(arguments, context))
            except ToolError:
                raise
            except Exception as error:  # the border of a tool call: on tape, any fault is its answer
                raise ToolFailed(f"The tool {self.spec.name!r} failed: {describe(error)}") from error

        call = {"kind": "tool", "name": self.spec.name, "request_hash": request_hash(arguments)}
        return await self._tape.through(calls, call, work)


def taped_agent(run_agent: RunAgent, tape: Tape) -> RunAgent:
    """Runs of the runtime's agents: question and answer, without what happens inside."""

    async def run(
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: Terms = OWN_TERMS,
    ) -> Mapping[str, Any]:
        calls = _STAGE.get()
        if calls is None:
            return await run_agent(agent, query, context, parent, terms)

        async def work() -> Any:
            return _json(dict(await run_agent(agent, query, context, parent, terms)))

        call = {"kind": "agent", "name": agent, "request_hash": request_hash([query, dict(context)])}
        answer: Mapping[str, Any] = await tape.through(calls, call, work)
        return answer

    return run


def path_of(task: str) -> str:
    """The path of a Task within its run, from its id; ids of runs have no slash."""
    _, slash, rest = task.partition("/")
    return slash + rest


def request_hash(request: Any) -> str:
    """SHA-256 of what was asked, in canonical JSON; what stands at its default is left out.

    So a field that astromesh adds to its records makes no cassette diverge that does not use it.
    """
    option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    return hashlib.sha256(orjson.dumps(request, default=_told, option=option)).hexdigest()


def _told(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        given = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: one for field, one in given if not _is_default(field, one)}
    return _plain(value)


def _is_default(field: Field[Any], value: Any) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return default is not MISSING and bool(value == default)


def completion_to_json(result: CompletionResult) -> JsonObject:
    found: JsonObject = _json(result)
    return {key: value for key, value in found.items() if key != "latency_ms"}


def completion_of(data: JsonObject) -> CompletionResult:
    return CompletionResult(
        **{
            **data,
            "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"]),
            "usage": Usage(**data["usage"]),
            "attempts": tuple(data["attempts"]),
        }
    )


def error_of(call: JsonObject) -> Exception:
    """The error that a recorded call ended with."""
    told = call["error"]
    if told["type"] == _CUT_OFF and call["kind"] != "tool":
        return TimeoutError(told["message"])
    kind = _ERRORS.get(told["type"], ToolFailed if call["kind"] == "tool" else ProviderError)
    return kind(told["message"])


def _json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else str(value)
