"""The audit log: who did what to what, and how it ended; erased principals appear under pseudonyms."""

from __future__ import annotations

import fcntl
import hmac
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from astromesh.errors import StoreUnavailable
from astromesh.storage.private_files import private_folder
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import JsonObject

ERASED_PREFIX = "erased:"


#: characters of an act's object; callers choose it
MAX_OBJECT_LENGTH = 200


#: bytes of the key, and hex digits of a pseudonym
_KEY_BYTES, _DIGITS = 32, 32


class Pseudonyms:
    """Args: file: of the key; it is made when the first name is erased."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def make_key(self) -> None:
        """Raises: OSError. Only one process at a time may call this."""
        if self._file.exists():
            return
        fresh = self._file.with_name(f"{self._file.name}.new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, os.urandom(_KEY_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
        fresh.replace(self._file)

    def pseudonym_of(self, tenant: str, name: str) -> str:
        """The pseudonym of a name; empty where no name was ever erased."""
        if not self._file.exists():
            return ""
        said = hmac.new(self._file.read_bytes(), orjson.dumps((tenant, name)), sha256).hexdigest()
        return ERASED_PREFIX + said[:_DIGITS]

    def apply_to(self, act: JsonObject, tenant: str, name: str) -> JsonObject:
        """An act of any principal without an erased one: its name, its API key's id, its session's id.

        Ids of runs and Tasks stay: they are random, and what they named is erased.
        """
        if act["tenant"] != tenant:
            return act
        own, what, changed = act["principal"] == name, act["object"], dict(act)
        if own:
            changed["principal"] = self.pseudonym_of(tenant, name)
            changed["key"] = self.pseudonym_of(tenant, act["key"]) if act["key"] else ""
        if act["action"].startswith("principal.") and what == name[:MAX_OBJECT_LENGTH]:
            changed["object"] = self.pseudonym_of(tenant, name)
        elif act["action"].startswith("session.") and (own or _mentions(what, name)):
            changed["object"] = what if what.startswith(ERASED_PREFIX) else self.pseudonym_of(tenant, what)
        return changed


def _mentions(object: str, name: str) -> bool:
    """Whether a name is a word of an object's name, as of a session that is called by who speaks in it."""
    return bool(name) and re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", object) is not None


# The audit log: who did what to what, and how it ended.
#
# One JSON object a line in `audit.jsonl` of the data folder, appended by servers and commands alike, and the
# same as a line of the structured log. It holds names, never content; of an erased principal a pseudonym. The
# file is opened for each line: it can be moved away at any time, and the next line begins a new one.

#: the acts, the key of pseudonyms, and what writers lock
AUDIT_FILE, KEY_FILE, LOCK_FILE = "audit.jsonl", "audit.key", "audit.lock"


log = structlog.get_logger("astromesh.audit")


class AuditEntry(NamedTuple):
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


class AuditFilter(NamedTuple):
    """Which acts are asked for; empty: all."""

    action: str = ""
    principal: str = ""
    object: str = ""
    limit: int = 100


class AuditLog:
    """The file of one data folder. Its methods block for as long as the disk takes."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._path = folder / AUDIT_FILE
        self._lock = folder / LOCK_FILE
        self._clock = clock or SystemClock()
        self._pseudonyms = Pseudonyms(folder / KEY_FILE)

    def record(self, entry: AuditEntry) -> None:
        """Logs an act and appends it. A disk that does not take it stops nobody: the log says so as well."""
        self.log(entry)
        try:
            self.append(entry)
        except OSError as error:
            log.error("audit_not_written", error=str(error))

    def log(self, entry: AuditEntry) -> None:
        """A line of the structured log."""
        log.info("audit", **{key: value for key, value in entry._asdict().items() if value})

    def append(self, entry: AuditEntry) -> None:
        """Raises: OSError."""
        line = {"at": round(self._clock.now(), 3), **entry._asdict()}
        with self._locked(), _open_for_append(self._path) as handle:
            os.write(handle, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def pseudonymize(self, tenant: str, principal: str) -> None:
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

    def pseudonymized_entry(self, entry: AuditEntry, tenant: str, principal: str) -> AuditEntry:
        """An act as it is noted after a principal was erased."""
        return AuditEntry(**self._pseudonyms.apply_to(entry._asdict(), tenant, principal))

    def _rewrite(self, tenant: str, principal: str) -> None:
        """Beside the old file, and in its place when it is on disk: a crash leaves one of the two."""
        if not self._path.exists():
            return
        fresh = self._path.with_name(f"{AUDIT_FILE}.new")
        fresh.unlink(missing_ok=True)
        with _open_for_append(fresh) as handle:
            with self._path.open("rb") as file, os.fdopen(os.dup(handle), "wb") as kept:
                for line in file:
                    kept.write(self._pseudonymized_line(line, tenant, principal))
            os.fsync(handle)
        fresh.replace(self._path)

    def _pseudonymized_line(self, line: bytes, tenant: str, principal: str) -> bytes:
        try:
            act = orjson.loads(line)
        except orjson.JSONDecodeError:  # cut off: nobody can tell whose it was
            return b""
        changed = self._pseudonyms.apply_to(act, tenant, principal)
        return line if changed == act else orjson.dumps(changed, option=orjson.OPT_APPEND_NEWLINE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Writers one at a time, over processes: no line is lost between the old file and the new one."""
        private_folder(self._lock.parent)
        with _open_for_append(self._lock) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def read(self, tenant: str | None, query: AuditFilter) -> list[JsonObject]:
        """The newest acts, the newest first.

        Args:
            tenant: whose acts; None for all.
        """
        found = deque((line for line in self._lines() if self._matches(line, tenant, query)), query.limit)
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

    def _matches(self, line: JsonObject, tenant: str | None, query: AuditFilter) -> bool:
        if tenant is not None and line["tenant"] != tenant:
            return False
        asked = (("action", query.action), ("principal", query.principal), ("object", query.object))
        return all(not value or self._field_matches(line, key, value) for key, value in asked)

    def _field_matches(self, line: JsonObject, key: str, value: str) -> bool:
        """Whether a line says this, also of somebody who was erased since."""
        said: str = line[key]
        return said == value or (
            said.startswith(ERASED_PREFIX) and said == self._pseudonyms.pseudonym_of(line["tenant"], value)
        )


@contextmanager
def _open_for_append(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)
