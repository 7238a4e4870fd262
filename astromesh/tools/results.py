"""Exactly one result for every call of a tool, and the complete texts of results that were too long.

The functions are shared by every `ToolPort`: `ToolBox` for standalone graphs, the tool registry for agents.
`LongResults` keeps complete results in memory for an hour.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Self, TypeAlias

import orjson
from msgspec import Struct, structs

from astromesh.errors import (
    InvalidToolCall,
    LimitReached,
    NotDurable,
    ToolBusy,
    ToolError,
    ToolFailed,
    ToolTimeout,
    is_failure,
    text_of,
)
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.events import ms_since
from astromesh.types import Command, SessionKey, ToolCall, ToolResult

#: stores a complete result and returns its id
StoreText: TypeAlias = Callable[[str], str]
#: characters of a result that the model receives; more would push the conversation out of its window
MAX_RESULT = 100_000
#: the rule of thumb for English text; exact counts would need the tokenizer of every model
CHARACTERS_PER_TOKEN = 4
#: characters of one error that the model receives
_MAX_ERROR = 500

# Exceptions of foreign libraries often quote what they sent.
_SECRETS = re.compile(
    r"(?i)(\bbearer\s+|\bbasic\s+|\bsk-|\b(?:api[_-]?key|access[_-]?token|token|secret|password)[\"']?\s*[=:]\s*[\"']?"
    r"|://[^/\s:@]*:)[^\s\"'&@,;]{3,}"
)


async def result_of(
    call: ToolCall,
    value: Awaitable[Any],
    max_characters: int = MAX_RESULT,
    store: StoreText | None = None,
    untrusted: bool = False,
) -> ToolResult:
    """Awaits a tool call; returns its value or its error as the one result of the call.

    Args:
        call: as the model requested it.
        value: the running call.
        max_characters: of the text that the model receives.
        store: stores a longer text completely and returns its id.
        untrusted: whether the tool's text, also of its errors, comes from a third party.

    Raises:
        LimitReached, NotDurable: of the run; it is not an error of the tool.
        asyncio.CancelledError: the run was cancelled.
    """
    started = perf_counter()
    try:
        answer, command = await value, None
        if isinstance(answer, Command):
            command = answer
            answer = dict(command.update) if command.result is None else command.result
        content = to_text(answer, max_characters, store)
    except (LimitReached, NotDurable):
        raise
    except ToolError as error:
        return failed_result(call, error, started, untrusted)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # the run was not cancelled: the tool leaked the cancellation of a task of its own
        return failed_result(call, ToolFailed(f"The tool {call.name!r} cancelled itself."), started)
    except BaseException as error:  # any error of a tool is the result of its call
        if not is_failure(error):
            raise
        return failed_result(
            call, ToolFailed(f"The tool {call.name!r} failed: {describe(error)}"), started, untrusted
        )
    return ToolResult(
        call.id, call.name, content, duration_ms=ms_since(started), value=answer, untrusted=untrusted,
        command=command,
    )  # fmt: skip


def failed_result(
    call: ToolCall, error: ToolError, started: float = 0.0, untrusted: bool = False
) -> ToolResult:
    """Returns an error as the model receives it.

    Args:
        started: `perf_counter()` of the call, 0.0 if it did not start.
        untrusted: whether the tool's own text is; other errors have texts of astromesh.
    """
    duration = ms_since(started) if started else 0.0
    foreign_words = untrusted and error.code == ToolFailed.code
    text = text_of(error)
    if error.code != InvalidToolCall.code:  # that one quotes only what the model itself wrote
        text = _SECRETS.sub(r"\1***", text)
    return ToolResult(call.id, call.name, text, False, error.code, duration, untrusted=foreign_words)


def timeout_error(error: TimeoutError, message: str) -> ToolError:
    """Returns the error of an exceeded time limit.

    Args:
        error: raised by `asyncio.timeout`; its cause is the call's reaction to the cancellation.
        message: for a call that had started.
    """
    cause = error.__cause__
    reason = cause.args[0] if cause is not None and cause.args else None
    return reason if isinstance(reason, ToolBusy) else ToolTimeout(message)


def describe(error: BaseException) -> str:
    """Returns type and message of a foreign exception, without stack and secrets."""
    message = _SECRETS.sub(r"\1***", text_of(error)[: 2 * _MAX_ERROR])[:_MAX_ERROR]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def unknown_tool(name: str, known: Sequence[str]) -> str:
    """Returns a message to the model that names the most similar tool."""
    name = name[:64]
    if not known:
        return f"There is no tool {name!r}; no tools are available. Answer without tools."
    folded = {tool.casefold(): tool for tool in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1, 0.0)
    return f"There is no tool {name!r}. Did you mean {folded[near[0]]!r}? Available: {', '.join(known)}."


# -- text of results -----------------------------------------------------------------------------------------


def to_text(value: Any, max_characters: int = MAX_RESULT, store: StoreText | None = None) -> str:
    """Returns a tool's value as text for the model: strings unchanged, everything else as JSON."""
    text = value if isinstance(value, str) else _json(value)
    if not text.isascii():  # half a surrogate pair cannot be encoded
        text = text.encode("utf-8", "replace").decode()
    if len(text) <= max_characters:
        return text
    where = f", kept as {store(text)!r}" if store else ""
    return f"{text[:max_characters]}\n[cut: the result has {len(text)} characters{where}]"


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=_jsonable, option=_OPTIONS).decode()
    except orjson.JSONEncodeError:  # integers beyond 64 bits, half surrogate pairs
        return json.dumps(value, default=_jsonable)


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # a pydantic model, recognized without importing pydantic
        return value.model_dump(mode="json")
    if isinstance(value, Struct):
        return structs.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


# -- results that are too long -------------------------------------------------------------------------------


#: most characters of one result and of all results, and seconds that a result is kept
MAX_RESULT_CHARACTERS, MAX_TOTAL_CHARACTERS, RESULT_TTL_SECONDS = 4 << 20, 32 << 20, 3600.0


class LongResult(NamedTuple):
    """One result. `characters`: of the complete result, if only its beginning was stored."""

    text: str
    characters: int
    tenant: str
    owner: str
    expires_at: float


class LongResults:
    """Results by run and id; drops the oldest first. A shared resource of `Deps.resources`.

    Args:
        clock: for the expiry.
        max_characters: of all results.
    """

    def __init__(self, clock: Clock | None = None, max_characters: int = MAX_TOTAL_CHARACTERS) -> None:
        self._clock, self._max_characters = clock or SystemClock(), max_characters
        self._results: OrderedDict[tuple[str, str], LongResult] = OrderedDict()
        self._characters = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._results.clear()

    def add(self, run_id: str, call_id: str, text: str, session: SessionKey, owner: str) -> str:
        """Stores a result and returns its id within the run."""
        name, again = call_id, 1
        while (run_id, name) in self._results:  # some models restart the numbers of calls in each turn
            again += 1
            name = f"{call_id}-{again}"
        until = self._clock.monotonic() + RESULT_TTL_SECONDS
        stored = LongResult(text[:MAX_RESULT_CHARACTERS], len(text), session.tenant, owner, until)
        self._results[run_id, name] = stored
        self._characters += len(stored.text)
        while self._characters > self._max_characters or self._oldest_has_expired():
            self._drop(next(iter(self._results)))
        return name

    def find(self, run_id: str, name: str) -> LongResult | None:
        """Returns a result of a run, or None if the id is unknown or the result has expired."""
        found = self._results.get((run_id, name))
        return found if found and found.expires_at > self._clock.monotonic() else None

    def erase_owner(self, tenant: str, owner: str) -> int:
        """Drops the results of one principal; returns their number."""
        theirs = [key for key, one in self._results.items() if (one.tenant, one.owner) == (tenant, owner)]
        for key in theirs:
            self._drop(key)
        return len(theirs)

    def _oldest_has_expired(self) -> bool:
        oldest = next(iter(self._results.values()), None)
        return oldest is not None and oldest.expires_at <= self._clock.monotonic()

    def _drop(self, key: tuple[str, str]) -> None:
        self._characters -= len(self._results.pop(key).text)
