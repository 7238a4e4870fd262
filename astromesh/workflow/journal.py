"""The journal of a stage: records its calls of models, tools and runtime agents, or answers them.

A context variable says which stage a call belongs to. Patterns and operations do not know of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeAlias

import orjson
from msgspec.structs import replace

from astromesh.errors import (
    AstromeshError,
    ProviderError,
    StoreError,
    ToolError,
    ToolFailed,
    ToolTimeout,
    is_failure,
)
from astromesh.graph.call_record import (
    completion_of,
    completion_to_json,
    error_of,
    error_to_json,
    hash_of,
    request_hash,
    request_to_json,
    to_lenient_json,
)
from astromesh.graph.scope import Journal
from astromesh.providers.base import ModelPort
from astromesh.tools.base import (
    DEFAULT_NESTED_RUN_OPTIONS,
    HumanQuestion,
    NestedRunOptions,
    RunAgent,
    Tool,
    ToolContext,
)
from astromesh.tools.results import describe
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, Message, ToolCall
from astromesh.workflow.base import stage_path
from astromesh.workflow.questions import Question

#: asks a person about the current stage, and returns the decision in the form of `RecordedToolCall.ask`
Ask: TypeAlias = Callable[[str, HumanQuestion], Awaitable[JsonObject]]


class StageOrigin(NamedTuple):
    """The execution of a stage that another one repeats: it has its ids, its time and its random numbers.

    Args:
        task_id: of the Task that it was in; empty: of the present one.
        started_at: when the stage began there.
        input_hash: of its input. A stage of a fork with another input repeats nothing. Empty: any.
    """

    task_id: str
    started_at: float
    input_hash: str = ""

    def is_repeated(self, input: Any) -> bool:
        return self.input_hash in ("", hash_of(input))


class StageCalls:
    """The calls of one execution of a stage, in the order in which they began.

    Args:
        task: path of the Task within the run.
        context: the context package that the stage received.
        journal: of a Task that can be resumed: the finished calls of an earlier attempt are not repeated.
        ask: asks a person; it takes the place of the question in the journal. None: nobody can be asked.

    Attributes:
        edits: of the requests to models, in a fork; see `request_edit`.
        origin: in a replay or a fork, the recorded execution of the stage.
    """

    __slots__ = (
        "_last_request", "ask", "calls", "context", "edits", "journal", "origin", "stage", "task",
    )  # fmt: skip

    def __init__(
        self, task: str, stage: str, context: JsonObject | None, journal: Journal | None = None
    ) -> None:
        self.task, self.stage, self.context, self.journal = task, stage, context, journal
        self.ask: Ask | None = None
        self.calls: list[JsonObject] = []
        self.edits: Sequence[JsonObject] = ()
        self.origin: StageOrigin | None = None
        self._last_request: JsonObject = {}

    def new_in(self, request: CompletionRequest) -> JsonObject:
        """Returns what a request to a model has that the previous one of this stage had not.

        A conversation that grows with every call is therefore stored once. Of another one, `same` says how
        many messages of the previous request it begins with.
        """
        last, self._last_request = self._last_request, request_to_json(request)
        new = {key: value for key, value in self._last_request.items() if value != last.get(key)}
        if "messages" in new:
            before, messages = last.get("messages", []), new["messages"]
            new["messages"] = _new_messages(before, messages)
            if (same := len(messages) - len(new["messages"])) < len(before):
                new["same"] = same
        return new

    def edited(self, request: CompletionRequest) -> CompletionRequest:
        """Returns the request that is made in place of this one."""
        for edit in self.edits:
            if len(self.calls) >= edit["from"]:
                request = _edited_request(request, edit)
        return request

    @property
    def place(self) -> str:
        """The path of the stage within its Task."""
        return stage_path(self.task, self.stage)

    def to_json(self) -> JsonObject:
        """Returns what the record of the stage contains of them."""
        fields: JsonObject = {"calls": self.calls, "context": self.context, "edits": [*self.edits]}
        if self.origin is not None:
            fields |= {"task_id": self.origin.task_id, "began_at": self.origin.started_at}
        return {key: value for key, value in fields.items() if value}


def _new_messages(before: Sequence[Any], messages: Sequence[Any]) -> list[Any]:
    """Returns the messages after those that both conversations begin with."""
    pairs = enumerate(zip(before, messages, strict=False))
    first = next((n for n, (old, new) in pairs if old != new), min(len(before), len(messages)))
    return list(messages[first:])


# -- edits of the requests of a stage, in a fork -------------------------------------------------------------


def edits_path(stage: str) -> str:
    """Returns the path of the edits in the journal. Args: stage: the path of its stage."""
    return f"{stage}/edit"


def origin_path(stage: str) -> str:
    """Returns the path of the `StageOrigin` in the journal of a fork. Args: stage: the path of its stage."""
    return f"{stage}/origin"


def request_edit(kind: str, text: str, first: int, messages: Sequence[JsonObject]) -> JsonObject:
    """Returns an edit of the requests that a stage makes from one of its calls on.

    Args:
        kind: `system`: another system message. `message`: a user message behind those of a request, in all
            requests that go on from there.
        first: number of calls of the stage before.
        messages: of the request there.
    """
    edit: JsonObject = {"kind": kind, "text": text, "from": first}
    if kind == "message":
        edit |= {"at": len(messages), "after": _conversation_hash(messages)}
    return edit


def _conversation_hash(messages: Iterable[JsonObject]) -> str:
    return hash_of([one for one in messages if one.get("role") != "system"])


def _edited_request(request: CompletionRequest, edit: JsonObject) -> CompletionRequest:
    messages = request.messages
    if edit["kind"] == "system":
        rest = [one for one in messages if one.role != "system"]
        return replace(
            request, messages=(*([Message("system", edit["text"])] if edit["text"] else []), *rest)
        )
    before, after = messages[: edit["at"]], messages[edit["at"] :]
    if _conversation_hash([request_to_json(one) for one in before]) != edit["after"]:
        return request
    return replace(request, messages=(*before, Message("user", edit["text"]), *after))


class StageJournal(Protocol):
    """Stands between stages and what they call: `Recorder` and `Replay`."""

    async def begin(self, calls: StageCalls) -> JsonObject | None:
        """Returns when the stage may begin. `{"output"}`: it has this output and does not run.

        Raises:
            StageFault: the stage fails.
        """

    async def answer(
        self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]], *, once: bool = False
    ) -> Any:
        """Returns the answer of a call as JSON.

        Args:
            calls: of the stage that makes the call.
            call: `{kind, name, request_hash, request}`.
            work: makes the call.
            once: whether the call must not be repeated after a crash.
        """


#: calls of the stage that the current code runs in
_CURRENT_CALLS: ContextVar[StageCalls] = ContextVar("astromesh_stage_calls")


def current_calls() -> StageCalls | None:
    """Returns the calls of the stage that the current code runs in."""
    return _CURRENT_CALLS.get(None)


async def begin_stage(journal: StageJournal, calls: StageCalls) -> JsonObject | None:
    """Begins a stage, see `StageJournal`: the calls of the current context belong to it from here on.

    Raises:
        StageFault: the stage fails.
    """
    _CURRENT_CALLS.set(calls)
    return await journal.begin(calls)


# -- what stages call ----------------------------------------------------------------------------------------


class JournaledModel:
    """A model behind a journal.

    Args:
        name: of the model in providers.yaml.
    """

    def __init__(self, model: ModelPort, name: str, journal: StageJournal) -> None:
        self._model, self._name, self._journal = model, name, journal

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        async def work() -> JsonObject:
            return completion_to_json(await self._model.complete(request))

        calls = _CURRENT_CALLS.get()
        request = calls.edited(request)
        digest = request_hash(_without_sealed(request))
        call: JsonObject = {"kind": "model", "name": self._name, "request_hash": digest}
        call["request"] = calls.new_in(request)
        return completion_of(await self._journal.answer(calls, call, work))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """Yields the whole text as one piece."""
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


def _without_sealed(request: CompletionRequest) -> CompletionRequest:
    """Returns a request without what only its provider may read, and what no case has."""
    messages = tuple(
        replace(one, tool_calls=tuple(replace(call, kept="") for call in one.tool_calls))
        if one.tool_calls
        else one
        for one in request.messages
    )
    return replace(request, messages=messages)


class JournaledTool:
    """A tool behind a journal."""

    def __init__(self, tool: Tool, journal: StageJournal) -> None:
        self.spec = tool.spec
        self._tool, self._journal = tool, journal

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        async def work() -> Any:
            try:
                return to_lenient_json(await self._tool.call(arguments, context))
            except ToolError:
                raise
            except BaseException as error:  # foreign code: any exception of a tool is recorded as its answer
                if not is_failure(error):
                    raise
                raise ToolFailed(f"The tool {self.spec.name!r} failed: {describe(error)}") from error

        call = _call("tool", self.spec.name, arguments)
        once = self.spec.effect != "read" and not self.spec.repeatable
        return await self._journal.answer(_CURRENT_CALLS.get(), call, work, once=once)


def _call(kind: str, name: str, request: Any) -> JsonObject:
    call = {"kind": kind, "name": name, "request_hash": request_hash(request)}
    return {**call, "request": request_to_json(request)}


async def recorded_question(
    journal: StageJournal | None,
    calls: StageCalls | None,
    question: Question,
    work: Callable[[], Awaitable[JsonObject]],
) -> JsonObject:
    """Puts a question to a person behind a journal."""
    if journal is None or calls is None:
        return await work()
    about = {"kind": question.kind, "arguments": question.arguments}
    decision: JsonObject = await journal.answer(calls, _call("person", question.name, about), work)
    return decision


def journaled_agents(run_agent: RunAgent, journal: StageJournal) -> RunAgent:
    """Puts whole runs of the runtime's agents, not the calls inside them, behind a journal."""

    async def run(
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        async def work() -> Any:
            return to_lenient_json(dict(await run_agent(agent, query, context, parent, terms)))

        call = _call("agent", agent, [query, dict(context)])
        answer: Mapping[str, Any] = await journal.answer(_CURRENT_CALLS.get(), call, work)
        return answer

    return run


# -- recording -----------------------------------------------------------------------------------------------

#: type of a call that a time limit or the end of its Task cancelled
_CANCELLED = "Cancelled"


class Recorder:
    """Makes every call and records its answer or its error.

    In a Task that can be resumed, a call that an earlier attempt of the stage has finished is not made again.
    """

    async def begin(self, calls: StageCalls) -> None:
        """Returns at once. The stage has the edits and the origin of a fork."""
        if calls.journal is not None:
            calls.edits = calls.journal.values(edits_path(calls.place))
            for recorded in calls.journal.values(origin_path(calls.place)):
                calls.origin = StageOrigin(**recorded)

    async def answer(
        self, calls: StageCalls, call: JsonObject, work: Callable[[], Awaitable[Any]], *, once: bool = False
    ) -> Any:
        calls.calls.append(call)
        raised: list[AstromeshError] = []

        async def make() -> JsonObject:
            try:
                return {"answer": await work()}
            except StoreError:
                raise
            except AstromeshError as error:
                raised.append(error)
                return {"error": error_to_json(error)}

        begun, since = time.time(), time.perf_counter()
        try:
            call |= await _journaled(calls, call, make, once=once)
        except AstromeshError as error:
            call["error"] = error_to_json(error)
            raise
        except asyncio.CancelledError:
            call["error"] = {"type": _CANCELLED, "message": "The call did not end in time."}
            raise
        finally:
            duration_ms = round((time.perf_counter() - since) * 1000, 3)
            call |= {"started_at": begun, "duration_ms": duration_ms}
        if "error" in call:
            raise raised[0] if raised else recorded_error(call)
        return call["answer"]


async def _journaled(
    calls: StageCalls, call: JsonObject, make: Callable[[], Awaitable[JsonObject]], *, once: bool
) -> JsonObject:
    """Returns the answer of an earlier attempt of the stage, else that of `make`."""
    if calls.journal is None:
        return await make()
    digest, name = call["request_hash"], call["name"]
    effect = calls.journal.effect_of(_tool_call(name, call["request"])) if once else None
    if effect is not None:  # it is not called again in a fork
        error = {"type": effect["error"], "message": effect["content"]}
        return {"answer": effect["value"]} if effect["ok"] else {"error": error}
    place = call_place(calls.place, call)
    return await calls.journal.call(place, digest, name, make, once=once, arguments=call["request"])


def call_place(stage: str, call: Mapping[str, Any]) -> str:
    """Returns the path of a call in the journal. Args: stage: the path of its stage."""
    return f"{stage}/{call['kind']}:{call['name']}:{call['request_hash'][:16]}"


def _tool_call(name: str, arguments: Any) -> ToolCall:
    return ToolCall("", name, orjson.dumps(arguments).decode())


def comparable_fields(entry: Mapping[str, Any]) -> JsonObject:
    """Returns the fields of an entry that a replay must reproduce."""
    return {
        "task": entry["task"],
        "stage": entry["stage_id"],
        "status": entry["status"],
        "code": (entry["error"] or {}).get("code", ""),
        "edge": entry["edge"],
        "output_hash": hash_of(entry["output"]),
    }


def recorded_error(call: JsonObject) -> Exception:
    """Returns the error that a recorded call ended with."""
    error, is_tool = call["error"], call["kind"] == "tool"
    if error["type"] == _CANCELLED:
        return ToolTimeout(error["message"]) if is_tool else TimeoutError(error["message"])
    return error_of(error, ToolFailed if is_tool else ProviderError)
