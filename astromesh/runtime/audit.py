"""The audit log: who did what to what, and how it ended.

One JSON object a line in `audit.jsonl` of the data folder, appended by servers and commands alike, and the
same as a line of the structured log. It holds names, never content; of an erased principal a pseudonym. The
file is opened for each line: it can be moved away at any time, and the next line begins a new one.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from astromesh.abc.clock import Clock, SystemClock
from astromesh.errors import StoreUnavailable
from astromesh.runtime.pseudonyms import PREFIX, Pseudonyms
from astromesh.storage.folder import private_folder
from astromesh.types import JsonObject

#: the acts, the key of pseudonyms, and what writers lock
FILE, KEY_FILE, LOCK_FILE = "audit.jsonl", "audit.key", "audit.lock"
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
        self._lock = folder / LOCK_FILE
        self._clock = clock or SystemClock()
        self._pseudonyms = Pseudonyms(folder / KEY_FILE)

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
        with self._locked(), _appending(self._path) as handle:
            os.write(handle, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def forget(self, tenant: str, principal: str) -> None:
        """Puts a pseudonym for a principal wherever it is named, its API keys and sessions with it.

        Raises:
            StoreUnavailable: the disk does not take it; all is as it was.
        """
        try:
            with self._locked():
                self._pseudonyms.make_key()
                self._rewrite(tenant, principal)
        except OSError as error:
            raise StoreUnavailable(f"The audit log could not be rewritten: {error}.") from error

    def without(self, entry: Entry, tenant: str, principal: str) -> Entry:
        """An act as it is noted after a principal was erased."""
        return Entry(**self._pseudonyms.put(entry._asdict(), tenant, principal))

    def _rewrite(self, tenant: str, principal: str) -> None:
        """Beside the old file, and in its place when it is on disk: a crash leaves one of the two."""
        if not self._path.exists():
            return
        fresh = self._path.with_name(f"{FILE}.new")
        fresh.unlink(missing_ok=True)
        with _appending(fresh) as handle:
            with self._path.open("rb") as file, os.fdopen(os.dup(handle), "wb") as kept:
                for line in file:
                    kept.write(self._rewritten(line, tenant, principal))
            os.fsync(handle)
        fresh.replace(self._path)

    def _rewritten(self, line: bytes, tenant: str, principal: str) -> bytes:
        try:
            act = orjson.loads(line)
        except orjson.JSONDecodeError:  # cut off: nobody can tell whose it was
            return b""
        changed = self._pseudonyms.put(act, tenant, principal)
        return line if changed == act else orjson.dumps(changed, option=orjson.OPT_APPEND_NEWLINE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Writers one at a time, over processes: no line is lost between the old file and the new one."""
        private_folder(self._lock.parent)
        with _appending(self._lock) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def read(self, tenant: str | None, wanted: Wanted) -> list[JsonObject]:
        """The newest acts, the newest first.

        Args:
            tenant: whose acts; None for all.
        """
        found = deque((line for line in self._lines() if self._matches(line, tenant, wanted)), wanted.limit)
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

    def _matches(self, line: JsonObject, tenant: str | None, wanted: Wanted) -> bool:
        if tenant is not None and line["tenant"] != tenant:
            return False
        asked = (("action", wanted.action), ("principal", wanted.principal), ("object", wanted.object))
        return all(not value or self._names(line, key, value) for key, value in asked)

    def _names(self, line: JsonObject, key: str, value: str) -> bool:
        """Whether a line says this, also of somebody who was erased since."""
        said: str = line[key]
        return said == value or (
            said.startswith(PREFIX) and said == self._pseudonyms.of(line["tenant"], value)
        )


@contextmanager
def _appending(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)
