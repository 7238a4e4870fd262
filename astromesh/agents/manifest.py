"""An agent as the content of its YAML file, in which live objects of the program stand at their keys.

Among them is its model: whatever a program passes as a model becomes a block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, SecretStr

from astromesh.config.base import Steps, format_path
from astromesh.errors import ConfigError
from astromesh.graph.calls import FunctionModel, ModelFunction
from astromesh.plugins import Deps, Plugins
from astromesh.providers.base import Capabilities, ModelPort, Provider, split_model_name
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject, StreamBroken


class AgentKeys(TypedDict, total=False):
    """Further arguments of `Agent`: keys of an agent's YAML (docs/configuration.md)."""

    #: metadata
    version: str
    namespace: str
    labels: Mapping[str, str]
    #: spec.identity
    display_name: str
    description: str
    #: spec.model
    fallback: Any
    routing: str | Mapping[str, Any]
    roles: Mapping[str, Any]
    #: spec.prompts
    variables: Mapping[str, Any]
    #: spec.orchestration
    max_iterations: int | None
    timeout_seconds: float | timedelta | None
    #: spec
    skills: Sequence[str | Path]
    permissions: Mapping[str, Any] | Sequence[str]
    sessions: Mapping[str, Any]
    queue: Mapping[str, Any]
    stream: Literal["token", "sentence", "final"] | None
    on_disconnect: Literal["continue", "cancel"] | None
    recording: bool | None
    client_tools: Literal["allow", "deny"]
    overridable: Sequence[Literal["model", "temperature", "max_tokens", "tools"]] | None
    schedules: Sequence[Mapping[str, Any]]
    callback: Mapping[str, Any] | None


@dataclass(frozen=True)
class Live:
    """A live object at a key of a manifest that names a plugin, a graph or a text.

    Args:
        group: The group of plugins; `graphs` for a graph, empty for what no plugin replaces.
        value: The object that the plugin opens, or a plugin class.
        label: Its part of the name of the plugin, e.g. `model`.
        about: What it is, for a reader of the YAML text.
        written: The keys that stand for it in YAML, if it can be written.
    """

    group: str
    value: Any
    label: str
    about: str
    written: Mapping[str, Any] | None = None


class _NoOptions(BaseModel):
    model_config = ConfigDict(extra="allow")


class _StreamingOptions(_NoOptions):
    @property
    def needs_whole_text(self) -> bool:
        """Whether a rule with these options cannot check a stream; the configuration asks."""
        return False


def live_plugin(value: Any) -> type[Any]:
    """Returns a plugin class whose `open` returns a live object."""

    class LivePlugin:
        Options = _NoOptions if getattr(value, "needs_whole_text", True) else _StreamingOptions

        @classmethod
        async def open(cls, options: BaseModel, deps: Deps) -> Any:
            return value

    return LivePlugin


def plain(value: Any) -> Any:
    """Returns a value of Python as YAML holds it: a path as text, a timedelta as seconds, a tuple as list."""
    match value:
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case timedelta():
            return value.total_seconds()
        case SecretStr():
            return value.get_secret_value()
        case BaseModel():
            return plain(value.model_dump(mode="json", exclude_unset=True))
        case Path():
            return str(value)
        case set() | frozenset() | list() | tuple():
            return [plain(one) for one in value]
    return value


def without_empty(value: Any) -> Any:
    """Returns nested mappings without keys that say nothing."""
    if not isinstance(value, dict):
        return value
    cleaned = {key: without_empty(one) for key, one in value.items()}
    return {key: one for key, one in cleaned.items() if one is not None and one not in ("", {}, [])}


def check_values(value: Any, at: Steps = ()) -> None:
    """Raises: ConfigError: JSON and YAML cannot represent a value, e.g. an infinite number."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            check_values(one, (*at, key))
    elif isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{format_path(at)}: {value} is not a finite number.")
    elif not isinstance(value, Live):
        try:
            orjson.dumps(value)
        except TypeError as error:
            raise ConfigError(f"{format_path(at)}: {error}. Pass a value that JSON can represent.") from error


def live_objects(value: Any, at: Steps = ()) -> Iterator[tuple[Steps, Live]]:
    """Yields every live object in a manifest with its path."""
    if isinstance(value, Live):
        yield at, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from live_objects(one, (*at, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from live_objects(one, (*at, index))


def replace_live(value: Any, make: Callable[[Live], Any]) -> Any:
    """Returns a manifest with something else in place of each live object."""
    if isinstance(value, Live):
        return make(value)
    if isinstance(value, dict):
        return {key: replace_live(one, make) for key, one in value.items()}
    if isinstance(value, list):
        return [replace_live(one, make) for one in value]
    return value


# -- as text -------------------------------------------------------------------------------------------------

_MARK = "__live_object__"


def to_yaml(manifest: JsonObject, *, strict: bool = False) -> str:
    """Returns a manifest as YAML. What cannot be written stands as a comment at its key.

    Raises:
        ConfigError: `strict`, and something cannot be written. The message lists it.
    """
    written = _with_written_keys(manifest)
    left = [f"{format_path(at)}: {one.about}" for at, one in live_objects(written)]
    if left and strict:
        raise ConfigError(f"These parts of the agent cannot be written as YAML: {'; '.join(left)}.")
    abouts: list[str] = []

    def mark(one: Live) -> str:
        abouts.append(one.about)
        return f"{_MARK}{len(abouts) - 1}"

    text: str = yaml.safe_dump(replace_live(written, mark), sort_keys=False, allow_unicode=True, width=110)
    lines = [*text.splitlines(keepends=True), ""]
    return "".join(_commented(line, after, abouts) for line, after in pairwise(lines))


def _with_written_keys(value: Any) -> Any:
    """Returns a manifest in which keys stand for the live objects that can be written."""
    if isinstance(value, list):
        return [_with_written_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    written: JsonObject = {}
    for key, one in value.items():
        if isinstance(one, Live) and one.written is not None:
            written |= one.written
        else:
            written[key] = _with_written_keys(one)
    return written


def _commented(line: str, after: str, abouts: list[str]) -> str:
    """Returns a line of YAML; as a comment if it has a live object, which leaves a list its entries."""
    head, mark, number = line.partition(_MARK)
    if not mark:
        return line
    indent = _indent_of(line)
    if head[indent:].startswith("- ") and _indent_of(after) > indent:
        indent += len("- ")
    return f"{line[:indent]}# {head[indent:].strip()} {abouts[int(number)]} cannot be written here\n"


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


#: a Provider, `provider:name`, a YAML block, or an async function
ModelLike: TypeAlias = "Provider | ModelPort | str | Mapping[str, Any] | ModelFunction"


def model_block(model: ModelLike, plugins: Plugins) -> JsonObject:
    """Returns the block of `spec.model` that a model is.

    Args:
        plugins: Where providers are looked up.

    Raises:
        UnknownPlugin: A text names no provider; the message says how to write it.
        ConfigError: The argument is nothing that can be a model.
    """
    if isinstance(model, str):
        return _named_block(model, plugins)
    if isinstance(model, Mapping):
        return dict(model)
    if hasattr(model, "complete"):
        return _live_block(_BorrowedModel(model))
    if callable(model):
        return _live_block(_BorrowedModel(FunctionModel(model)))
    raise ConfigError(
        f"{model!r} is not a model. Pass 'provider:name', a Provider, a YAML block or an async function."
    )


def _named_block(text: str, plugins: Plugins) -> JsonObject:
    provider, name = split_model_name(text, plugins.names("providers"))
    return {"provider": provider, **({"model": name} if name else {})}


def _live_block(model: _BorrowedModel) -> JsonObject:
    about = f"the Python object {model.name}"
    return {"provider": Live("providers", model, "model", about), "model": model.model}


class _BorrowedModel:
    """A model of the program as a Provider. It keeps its name, and the program closes it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._name: str = getattr(model, "name", "") or type(model).__name__
        self.model: str = getattr(model, "model", "") or self._name.rpartition("/")[2]
        self.provider: str = getattr(model, "provider", "") or self._name.partition("/")[0]
        self.capabilities: Capabilities = getattr(model, "capabilities", None) or Capabilities()

    @property
    def name(self) -> str:
        return self._name

    @name.setter
    def name(self, of_block: str) -> None:
        """Ignores the name of the model's block, which the runtime sets."""

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        result: CompletionResult = await self._model.complete(request)
        return result

    async def stream(
        self, request: CompletionRequest
    ) -> AsyncIterator[Delta | StreamBroken | CompletionResult]:
        async with aclosing(self._model.stream(request)) as pieces:
            async for piece in pieces:
                yield piece

    def estimated_cost(self, request: CompletionRequest) -> float:
        estimate = getattr(self._model, "estimated_cost", None)
        return float(estimate(request)) if estimate is not None else 0.0

    async def ping(self) -> str | None:
        ping = getattr(self._model, "ping", None)
        found: str | None = await ping() if ping is not None else None
        return found

    async def close(self) -> None:
        """Does nothing: the program has made the model, and may use it elsewhere."""
