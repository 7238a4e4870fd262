"""Commands that run inside a test configure logging for the whole process: each test has that for itself.

A logger that was cached would keep its level for good, so that nothing is cached.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

_configure = structlog.configure


def _uncached(*given: Any, **named: Any) -> None:
    _configure(*given, **{**named, "cache_logger_on_first_use": False})


def install() -> None:
    """No logger is cached from here on."""
    structlog.configure = _uncached


@contextmanager
def kept() -> Iterator[None]:
    """What is configured inside is undone."""
    root, ours = logging.getLogger(), logging.getLogger("astromesh")
    before, levels, handlers = structlog.get_config(), (root.level, ours.level), list(root.handlers)
    try:
        yield
    finally:
        _configure(**before)
        for logger, level in zip((root, ours), levels, strict=True):
            if logger.level != level:  # to set one walks through all loggers
                logger.setLevel(level)
        for handler in [one for one in root.handlers if one not in handlers]:
            root.removeHandler(handler)
