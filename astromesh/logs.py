"""Structured logs: one line per run, JSON in production, never a secret, and one line per outage.

Inside another program astromesh writes nothing unless that program asks for it: lines go to structlog where
it is configured, as `astromesh serve` does, else to the logger `astromesh` of the standard library, which is
silent until the program configures logging. structlog itself would print to stdout.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import lru_cache
from time import gmtime, localtime, monotonic, strftime, time_ns
from typing import Any, ClassVar

import orjson
import structlog

from astromesh.text import counted

_SECRET_KEY = re.compile(r"(?i)(^|_)(authorization|api_?key|token|secret|password|passwd|cookie)$")
#: tokens and keys by their form; values of keys that name secrets; passwords in URLs (not a port, unless a
#: host follows it)
_SECRET_TEXT = re.compile(
    r"(?i)\b(?:bearer\s+|sk-|am_)[a-z0-9._~+/=-]{8,}"
    r"|((?:\b|_)(?:password|passwd|secret|token|api[_-]?key)[\"']?\s*[=:]\s*[\"']?"
    r"|://[^/\s:@\"]*:(?!(?<!//:)(?:\d{1,5}|PORT)(?![^\s\"'/?#.,;:)\]])(?![^\s\"']*@)))"
    r"(?!\*|true\b|false\b|null\b|none\b)[^\s\"'&,;@]{4,}"
)
#: every text that the pattern matches contains one of these; checking them first costs a tenth for most lines
_SECRET_HINTS = (
    "bearer", "sk-", "am_", "passw", "secret", "token=", "token:", "token\"", "token'", "token ", "api_key",
    "api-key", "apikey", "://",
)  # fmt: skip
#: without one of these, nothing in a value of a line is a secret by its form
_SUSPICIOUS = ("=", ":", "sk-", "am_", "bearer")
#: values that astromesh makes itself
_OWN_VALUES = frozenset({"timestamp", "link"})
_HARMLESS_TYPES = frozenset({int, float, bool, type(None)})
_Line = MutableMapping[str, Any]
_Processor = Callable[[Any, str, Any], Any]
_METHODS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}
#: the form of lines for `astromesh dev`
PRETTY = "pretty"
#: the standard library prints warnings of a logger without handlers to stderr
logging.getLogger("astromesh").addHandler(logging.NullHandler())


class Logger:
    """Writes lines of an event name and its values, e.g. `log.info("run", status="completed")`.

    Args:
        name: of the standard library's logger, e.g. `astromesh.run`.
    """

    __slots__ = ("_plain", "_structured")

    def __init__(self, name: str) -> None:
        self._structured = structlog.get_logger(name)
        self._plain = logging.getLogger(name)

    def debug(self, event: str, **values: Any) -> None:
        self._write(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:
        self._write(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._write(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:
        self._write(logging.ERROR, event, values)

    def exception(self, event: str, **values: Any) -> None:
        """Writes an error with the traceback of the current exception."""
        self._write(logging.ERROR, event, {"exc_info": True, **values})

    def _write(self, level: int, event: str, values: dict[str, Any]) -> None:
        if _Lines.own is not None and _Lines.own.is_configured():
            _Lines.own.write(level, event, values)
        elif structlog.is_configured():
            self._structured.log(level, event, **values)
        elif self._plain.isEnabledFor(level):
            trace = values.pop("exc_info", None)
            pairs = mask_secret_keys(self._plain, event, values).items()
            line = redact_secrets(" ".join([event, *(f"{key}={value}" for key, value in pairs)]))
            self._plain.log(level, "%s", line, exc_info=trace)


def get_logger(name: str) -> Logger:
    """Returns the logger of a part of astromesh, e.g. `astromesh.run`."""
    return Logger(name)


def mask_secret_keys(_logger: Any, _method: str, event: _Line) -> _Line:
    """Masks the values of keys that name secrets.

    `redacting_renderer` masks tokens, keys and passwords inside texts.
    """
    for key in _secret_keys(tuple(event)):
        event[key] = "***"
    return event


def add_timestamp(_logger: Any, _method: str, event: _Line) -> _Line:
    """Adds the time in UTC, to the microsecond. structlog's processor takes three times as long."""
    seconds, micros = divmod(time_ns() // 1000, 1_000_000)
    event["timestamp"] = f"{_second(seconds)}.{micros:06}Z"
    return event


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds))


def redacting_renderer(render: Callable[[Any, str, _Line], str]) -> Callable[[Any, str, _Line], str]:
    """Wraps a renderer so that its lines contain no token, key or password."""

    def rendered(logger: Any, method: str, event: _Line) -> str:
        is_suspicious = _may_have_secret(event)
        line = render(logger, method, event)
        return redact_secrets(line) if is_suspicious else line

    return rendered


def _may_have_secret(event: _Line) -> bool:
    """Whether a value can be a secret by its form. The ids and numbers of most lines cannot."""
    for key, value in event.items():
        if type(value) is str:
            is_harmless = value.isalnum() or key in _OWN_VALUES
            if not is_harmless and any(map(value.lower().__contains__, _SUSPICIOUS)):
                return True
        elif type(value) not in _HARMLESS_TYPES:
            return True
    return False


def redact_secrets(line: str) -> str:
    folded = line.lower()
    for hint in _SECRET_HINTS:
        if hint in folded:
            return _SECRET_TEXT.sub(r"\1***", line)
    return line


def configure_logging(level: str = "info", form: str = "console") -> None:
    """Logs the lines of astromesh and of libraries to stderr in one form.

    Args:
        level: `debug`, `info`, `warning` or `error`; libraries log at `warning` or above.
        form: `console`, `json`, or `pretty` for a person who develops.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Any] = [
        structlog.processors.add_log_level,
        add_timestamp,
        structlog.processors.format_exc_info,
        mask_secret_keys,
        redacting_renderer(_renderer(form)),
    ]
    _Lines.own = _Lines(number, processors)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Stderr,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[_LibraryHandler()])
    logging.getLogger("astromesh").setLevel(number)  # the graph engine uses the standard library's logging


class _Lines:
    """Passes the lines of astromesh through the same processors as structlog, in a fifth of its time.

    Attributes:
        own: as `configure_logging` says. None: another program configures its logging.
    """

    own: ClassVar[_Lines | None] = None

    def __init__(self, level: int, processors: list[_Processor]) -> None:
        self._level, self._processors = level, processors

    def is_configured(self) -> bool:
        """Whether structlog still has these processors: the program may have configured it anew."""
        return structlog.get_config()["processors"] is self._processors

    def write(self, level: int, event: str, values: dict[str, Any]) -> None:
        if level < self._level:
            return
        line: Any = {**values, "event": event}
        method = _METHODS[level]
        with suppress(structlog.DropEvent):  # `structlog.testing.capture_logs` changes the processors
            for process in self._processors:
                line = process(None, method, line)
            _STDERR.msg(line)


class _LibraryHandler(logging.Handler):
    """Passes log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            about = {"logger": record.name, "exc_info": record.exc_info}
            structlog.get_logger().log(record.levelno, record.getMessage(), **about)
        except Exception:  # noqa: BLE001 (a library's log record must not end the caller)
            self.handleError(record)


class _Stderr:
    """Writes each line to the current stderr in one call; drops a line that cannot be written."""

    def __init__(self, *_: object) -> None: ...

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = fatal = exception = log = msg


_STDERR = _Stderr()


def _renderer(form: str) -> Callable[[Any, str, _Line], str]:
    if form == "json":
        return _json
    if form == PRETTY:
        return _pretty
    if sys.stderr.isatty():
        renderer: Callable[[Any, str, _Line], str] = structlog.dev.ConsoleRenderer()
        return renderer
    return _plain


def _json(_logger: Any, _method: str, event: _Line) -> str:
    try:
        return orjson.dumps(event, default=str).decode()
    except TypeError:  # a text that is not Unicode, as the name of a file may be
        return json.dumps(event, default=str)


def _plain(_logger: Any, _method: str, event: _Line) -> str:
    head = f"{event.pop('timestamp')} {event.pop('level')} {event.pop('event')}"
    trace = event.pop("exception", None)
    line = " ".join([head, *[f"{key}={value}" for key, value in event.items()]])
    return f"{line}\n{trace}" if trace else line


#: colours of a terminal by level
_COLOURS = {"warning": "33", "error": "31", "critical": "31"}


def _pretty(_logger: Any, _method: str, event: _Line) -> str:
    """Returns the local time, what happened, and its values; of a run what it took and what it cost."""
    event.pop("timestamp")
    level, name, trace = event.pop("level"), event.pop("event"), event.pop("exception", None)
    text = _run_line(event) if name == "run" else " ".join([name, *(f"{k}={v}" for k, v in event.items())])
    if sys.stderr.isatty():
        failed = name == "run" and event["status"] not in ("completed", "waiting")
        colour = "31" if failed else _COLOURS.get(level, "32" if name == "run" else "0")
        text = f"\x1b[{colour}m{text}\x1b[0m"
    line = f"{strftime('%H:%M:%S', localtime())} {text}"
    return f"{line}\n{trace}" if trace else line


def _run_line(run: _Line) -> str:
    reason = "" if run["reason"] in ("completed", run["status"]) else f" ({run['reason']})"
    parts = [
        f"{run['agent']} {run['status']}{reason}",
        f"{run['duration_ms'] / 1000:.2f} s",
        f"{run['tokens']} tokens",
        f"${run['cost_usd']:.6f}".rstrip("0").rstrip(".") if run["cost_usd"] else "$0",
        *([counted(run["tools"], "tool")] if run["tools"] else []),
        str(run.get("link", run["run_id"])),
    ]
    return "  ".join(parts)


@lru_cache(maxsize=512)
def _secret_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the keys that name secrets; lines of one kind have the same keys."""
    return tuple(key for key in keys if _SECRET_KEY.search(key))


# -- outages -----------------------------------------------------------------------------------------------

#: seconds after which the same reason is logged again
REPEAT_SECONDS = 60.0
#: seconds without a failure that mean recovery: on a full disk, reads succeed while writes fail
RECOVERY_SECONDS = 5.0
#: remembered reasons; beyond them each reason has its own text and counts as new
_MAX_REASONS = 64


class OutageLog:
    """Logs that a dependency fails, and that it has recovered.

    A new reason is logged immediately, then once a minute while it persists.

    Args:
        log: the logger.
        failed_event, recovered_event: names of the two log events.
        now: seconds that never decrease.
        context: names the dependency, in both lines.
    """

    def __init__(
        self,
        log: Any,
        failed_event: str,
        recovered_event: str,
        now: Callable[[], float] = monotonic,
        **context: str,
    ) -> None:
        self._log, self._now, self._context = log, now, context
        self._failed_event, self._recovered_event = failed_event, recovered_event
        self._reported: dict[str, float] = {}
        self._last_failure = 0.0

    def failed(self, reason: str) -> None:
        """Records a failed attempt."""
        self._last_failure = now = self._now()
        if now - self._reported.get(reason, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            if len(self._reported) >= _MAX_REASONS:
                self._reported.clear()
            self._reported[reason] = now
            self._log.warning(self._failed_event, **self._context, error=reason)

    def succeeded(self) -> None:
        """Records a successful attempt; logs the recovery if none has failed for a moment."""
        if self._reported and self._now() - self._last_failure >= RECOVERY_SECONDS:
            self._reported.clear()
            self._log.info(self._recovered_event, **self._context)
