"""Recordings of an agent's model calls and tool calls, so that a test needs neither network nor key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import orjson
from msgspec import ValidationError, convert
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import (
    ConfigError,
    InvalidInput,
    ProviderError,
    ProviderRejected,
    ToolFailed,
    error_class,
)
from astromesh.graph.call_record import VERSION, call_json, key_of
from astromesh.plugins import Deps
from astromesh.providers.base import Capabilities
from astromesh.tools.base import ToolContext
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, ToolSpec


class Overridable(Protocol):
    """An `astromesh.Agent`."""

    def override(
        self, *, model: Any = ..., tools: Any = ..., wrap_model: Any = ...
    ) -> AbstractContextManager[None]: ...

    @property
    def called(self) -> Sequence[Overridable]: ...


@contextmanager
def record(agent: Overridable, file: str | Path) -> Iterator[None]:
    """Records the model calls of an agent in this context, or answers them from the recording.

    Those of agents that are its tools are part of it.

    If the file does not exist, the agent asks its models, and the calls are written at the end of the block.
    Later runs answer the same requests from the file. Delete it to record again. Tools run as ever; replace
    those that need a network with `agent.override(tools=…)`. The file holds prompts and answers.

    Args:
        agent: The `astromesh.Agent`.
        file: The recording, e.g. `tests/recordings/weather.json`.

    Raises:
        InvalidInput: The file is not a recording.
    """
    path = Path(file)
    if path.exists():
        with _overridden(agent, model=_Replay(path)):
            yield
        return
    calls: list[JsonObject] = []
    with _overridden(agent, wrap_model=lambda provider: _Recorder(provider, calls)):
        yield
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"version": VERSION, "calls": calls}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


@contextmanager
def _overridden(agent: Overridable, **parts: Any) -> Iterator[None]:
    """Replaces parts of an agent and of every agent that it may call."""
    with ExitStack() as stack:
        for one in agent.called:
            stack.enter_context(_overridden(one, **parts))
        stack.enter_context(agent.override(**parts))
        yield


@contextmanager
def replay(agent: Overridable, file: Path) -> Iterator[None]:
    """Answers the model calls of an agent in this context from a recording, and the tool calls that it has.

    Raises:
        InvalidInput: The file does not exist or is not a recording.
    """
    model = _Replay(file)
    tools = model.tools
    with agent.override(model=model) if tools is None else agent.override(model=model, tools=tools):
        yield


class _Recorder:
    """A provider whose calls are recorded. It has every other attribute of the real one."""

    def __init__(self, provider: Any, calls: list[JsonObject]) -> None:
        self._provider, self._calls = provider, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        try:
            result: CompletionResult = await self._provider.complete(request)
        except ProviderError as error:
            self._add(request, None, {"code": error.code, "message": str(error)})
            raise
        self._add(request, result)
        return result

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        try:
            async with aclosing(self._provider.stream(request)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, CompletionResult):
                        self._add(request, piece)
                    yield piece
        except ProviderError as error:
            self._add(request, None, {"code": error.code, "message": str(error)})
            raise

    def _add(
        self,
        request: CompletionRequest,
        result: CompletionResult | None,
        error: JsonObject | None = None,
    ) -> None:
        self._calls.append(call_json(request, result, error))


class _Replay:
    """A model that answers from a recording: equal requests in their recorded order, the last one again."""

    advice = "Delete the file to record again."

    def __init__(self, file: Path) -> None:
        self.name, self.provider, self.model = "recording/replay", "recording", "replay"
        self._file = file
        self._answers: dict[str, list[JsonObject]] = {}
        try:
            content = orjson.loads(file.read_bytes())
            if content["version"] != VERSION:
                raise InvalidInput(f"{file} is a recording of another version. Delete it to record again.")
            for call in content["calls"]:
                self._answers.setdefault(call["key"], []).append(call)
            self.tools = _recorded_tools(content)
        except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValidationError) as error:
            raise InvalidInput(f"{file} is not a recording: {error!r}.") from error

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        answers = self._answers.get(key_of(request))
        if not answers:
            last = request.messages[-1].content[:100] if request.messages else ""
            raise ProviderRejected(
                f"{self._file} has no answer to this request, whose last message is {last!r}. {self.advice}",
                provider=self.name,
            )
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if (error := answer.get("error")) is not None:
            kind = error_class(error["code"])
            raise (kind if issubclass(kind, ProviderError) else ProviderError)(error["message"])
        return convert(answer["result"], CompletionResult)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result


class RecordedModelOptions(BaseModel):
    """Options of `recording`."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers and metrics; the type if empty."
    )
    model: str = Field("replay", description="Shown in answers; it has no effect.")
    file: str = Field(description="The recording, relative to the configuration.")


class RecordedModel(_Replay):
    """The provider `recording`: answers the requests of a recording, so that an agent runs without a key."""

    Options = RecordedModelOptions
    capabilities = Capabilities(quality=0.0, language_model=False)
    advice = "Ask what was recorded, record it again, or set the key of a model that comes before this one."

    def __init__(self, options: RecordedModelOptions, file: Path) -> None:
        super().__init__(file)
        self.provider, self.model = options.name or "recording", options.model
        self.name = f"{self.provider}/{self.model}"

    @classmethod
    async def open(cls, options: RecordedModelOptions, deps: Deps) -> RecordedModel:
        try:
            return cls(options, deps.config_dir / options.file)
        except InvalidInput as error:
            raise ConfigError(str(error)) from error

    def estimated_cost(self, request: CompletionRequest) -> float:
        return 0.0

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Does nothing: no resource is open."""


def _recorded_tools(content: JsonObject) -> list[_RecordedTool] | None:
    """Returns the tools of a recording; None if it has none, and those of the agent run."""
    if "tools" not in content:
        return None
    answers: dict[tuple[str, str], list[JsonObject]] = {}
    for call in content["tool_calls"]:
        arguments = orjson.loads(call["arguments"] or "{}")
        answers.setdefault((call["name"], _canonical(arguments)), []).append(call)
    return [_RecordedTool(convert(spec, ToolSpec), answers) for spec in content["tools"]]


def _canonical(arguments: Any) -> str:
    return orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS).decode()


class _RecordedTool:
    """A tool that answers from a recording: equal calls in their recorded order, the last one again."""

    def __init__(self, spec: ToolSpec, answers: dict[tuple[str, str], list[JsonObject]]) -> None:
        self.spec, self._answers = spec, answers

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        found = self._answers.get((self.spec.name, _canonical(arguments)))
        if not found:
            raise ToolFailed(f"The recording has no call of {self.spec.name!r} with these arguments.")
        answer = found.pop(0) if len(found) > 1 else found[0]
        if not answer["ok"]:
            raise ToolFailed(answer["content"])
        return answer["content"]
