"""The audit log: who did what to what, and how it ended.

One JSON object a line in `audit.jsonl` of the data folder, appended by servers and commands alike, and the
same as a line of the structured log. It holds names, never content. The file is opened for each line: it can
be moved away at any time, and the next line begins a new one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from astromesh.abc.clock import Clock, SystemClock
from astromesh.types import JsonObject

FILE = "audit.jsonl"
log = structlog.get_logger("astromesh.audit")


class Entry(NamedTuple):
    """One act.

    Args:
        action: e.g. `key.create`.
        object: what it was done to: an id or a path of ids.
        outcome: `done`, `refused` (the caller's fault, or not its right) or `failed` (ours).
        detail: more of what was done, e.g. `approve`; never content.
        principal, tenant, key: who did it; empty where nobody proved to be anybody.
    """

    action: str
    object: str
    outcome: str
    detail: str = ""
    principal: str = ""
    tenant: str = ""
    key: str = ""


class Wanted(NamedTuple):
    """Which acts are asked for; empty: all."""

    action: str = ""
    principal: str = ""
    object: str = ""
    limit: int = 100


class AuditLog:
    """The file of one data folder. Its methods block for as long as the disk takes."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._path = folder / FILE
        self._clock = clock or SystemClock()

    def note(self, entry: Entry) -> None:
        """Logs an act and appends it. A disk that does not take it stops nobody: the log says so as well."""
        self.say(entry)
        try:
            self.append(entry)
        except OSError as error:
            log.error("audit_not_written", error=str(error))

    def say(self, entry: Entry) -> None:
        """A line of the structured log."""
        log.info("audit", **{key: value for key, value in entry._asdict().items() if value})

    def append(self, entry: Entry) -> None:
        """Raises: OSError."""
        line = {"at": round(self._clock.now(), 3), **entry._asdict()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        finally:
            os.close(handle)

    def read(self, tenant: str | None, wanted: Wanted) -> list[JsonObject]:
        """The newest acts, the newest first.

        Args:
            tenant: whose acts; None for all.
        """
        found = deque((line for line in self._lines() if _matches(line, tenant, wanted)), wanted.limit)
        return [*reversed(found)]

    def _lines(self) -> Iterator[JsonObject]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for line in file:
                try:
                    yield orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # the disk was full in the middle of it


def _matches(line: JsonObject, tenant: str | None, wanted: Wanted) -> bool:
    if tenant is not None and line["tenant"] != tenant:
        return False
    asked = (("action", wanted.action), ("principal", wanted.principal), ("object", wanted.object))
    return all(not value or line[key] == value for key, value in asked)
