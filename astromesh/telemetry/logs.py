"""Structured logs: one line per run, JSON in production, never a secret.

A line costs about as much as a model call's bookkeeping, so it is rendered by hand where nobody watches: the
coloured columns of structlog are for terminals.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import lru_cache
from time import gmtime, strftime, time_ns
from typing import Any

import orjson
import structlog

_SECRET_KEY = re.compile(r"(?i)(^|_)(authorization|api_?key|token|secret|password|cookie)$")
#: tokens and keys by their look; values of what is called a secret; passwords in URLs (a port is none, unless
#: a host comes behind it)
_SECRET_TEXT = re.compile(
    r"(?i)\b(?:bearer\s+|sk-|am_)[a-z0-9._~+/=-]{8,}"
    r"|((?:\b|_)(?:password|passwd|secret|token|api[_-]?key)[\"']?\s*[=:]\s*[\"']?"
    r"|://[^/\s:@\"]*:(?!(?<!//:)(?:\d{1,5}|PORT)(?![^\s\"'/?#.,;:)\]])(?![^\s\"']*@)))"
    r"(?!\*|true\b|false\b|null\b|none\b)[^\s\"'&,;@]{4,}"
)
#: one of these is in every text that the pattern finds something in: most lines have none, and cost a tenth
_SUSPECT = (
    "bearer", "sk-", "am_", "passw", "secret", "token=", "token:", "token\"", "token'", "token ", "api_key",
    "api-key", "apikey", "://",
)  # fmt: skip
_Line = MutableMapping[str, Any]


def blank_secrets(_logger: Any, _method: str, event: _Line) -> _Line:
    """Blanks the values of secret-sounding keys; `redacted` does tokens, keys and passwords inside texts."""
    for key in _secret_among(tuple(event)):
        event[key] = "***"
    return event


def stamped(_logger: Any, _method: str, event: _Line) -> _Line:
    """The time in UTC, to the microsecond. structlog's own takes three times as long."""
    seconds, micros = divmod(time_ns() // 1000, 1_000_000)
    event["timestamp"] = f"{_second(seconds)}.{micros:06}Z"
    return event


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds))


def redacted(render: Callable[[Any, str, _Line], str]) -> Callable[[Any, str, _Line], str]:
    """A renderer whose lines hold no token, no key and no password."""

    def rendered(logger: Any, method: str, event: _Line) -> str:
        return without_secrets(render(logger, method, event))

    return rendered


def without_secrets(line: str) -> str:
    folded = line.lower()
    for suspect in _SUSPECT:
        if suspect in folded:
            return _SECRET_TEXT.sub(r"\1***", line)
    return line


def configure_logging(level: str = "info", form: str = "console") -> None:
    """Our lines and those of libraries, alike, to stderr.

    Args:
        level: `debug`, `info`, `warning` or `error`; of libraries `warning` at least.
        form: `console` or `json`.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            stamped,
            structlog.processors.format_exc_info,
            blank_secrets,
            redacted(_renderer(form)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[_OfLibraries()])
    logging.getLogger("astromesh").setLevel(number)  # the graph engine logs as a library does


class _OfLibraries(logging.Handler):
    """What libraries log, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            about = {"logger": record.name, "exc_info": record.exc_info}
            structlog.get_logger().log(record.levelno, record.getMessage(), **about)
        except Exception:  # noqa: BLE001 (the border of a log line: no library's text ends anything)
            self.handleError(record)


class _Stderr:
    """Writes each line to what stderr is by then, in one piece; a line that nobody can take is dropped."""

    def __init__(self, *_: object) -> None: ...

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = fatal = exception = log = msg


def _renderer(form: str) -> Callable[[Any, str, _Line], str]:
    if form == "json":
        return _json
    if sys.stderr.isatty():
        renderer: Callable[[Any, str, _Line], str] = structlog.dev.ConsoleRenderer()
        return renderer
    return _plain


def _json(_logger: Any, _method: str, event: _Line) -> str:
    return orjson.dumps(event, default=str).decode()


def _plain(_logger: Any, _method: str, event: _Line) -> str:
    head = f"{event.pop('timestamp')} {event.pop('level')} {event.pop('event')}"
    trace = event.pop("exception", None)
    line = " ".join([head, *[f"{key}={value}" for key, value in event.items()]])
    return f"{line}\n{trace}" if trace else line


@lru_cache(maxsize=512)
def _secret_among(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Those that sound secret; lines of one kind have the same keys."""
    return tuple(key for key in keys if _SECRET_KEY.search(key))
