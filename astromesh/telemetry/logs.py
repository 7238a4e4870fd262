"""Structured logs: one line per run, JSON in production, never a secret."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_KEY = re.compile(r"(?i)(^|_)(authorization|api_?key|token|secret|password|cookie)$")
_SECRET_TEXT = re.compile(r"(?i)\b(bearer\s+|sk-|am_)[a-z0-9._~+/=-]{8,}")


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blanks values of secret-sounding keys, and bearer tokens and keys inside texts."""
    for key, value in event.items():
        if isinstance(value, str) and value:
            event[key] = "***" if _SECRET_KEY.search(key) else _SECRET_TEXT.sub("***", value)
    return event


def configure_logging(level: str = "info", form: str = "console") -> None:
    """Args: level: `debug`, `info`, `warning` or `error`. form: `console` or `json`. Writes to stderr."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info if form == "json" else _keep,
        redact,
    ]
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr, format="%(name)s: %(message)s")


def _keep(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return event
