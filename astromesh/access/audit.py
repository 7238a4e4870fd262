"""The audit log: acts of callers with their outcomes. Erased principals appear under pseudonyms."""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson

from astromesh.errors import StoreUnavailable
from astromesh.logs import get_logger
from astromesh.storage.private_files import private_folder
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import JsonObject

ERASED_PREFIX = "erased:"
#: characters of an act's object; callers choose it
MAX_OBJECT_LENGTH = 200
#: bytes of the key, and hex digits of a pseudonym
_KEY_BYTES, _DIGITS = 32, 32


class Pseudonyms:
    """Args: file: holds the key, which is created when the first name is erased."""

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
        """Returns the pseudonym of a name; an empty text if no name was ever erased."""
        if not self._file.exists():
            return ""
        digest = hmac.new(self._file.read_bytes(), orjson.dumps((tenant, name)), sha256).hexdigest()
        return ERASED_PREFIX + digest[:_DIGITS]

    def apply_to(self, act: JsonObject, tenant: str, name: str) -> JsonObject:
        """Returns an act without the erased principal's name, the ids of its API keys and its sessions.

        Ids of runs and Tasks stay: they are random, and the runs and Tasks themselves are erased.
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
    """Whether a name is a word of an object's name, e.g. of a session that is named after its user."""
    return bool(name) and re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", object) is not None


# -- the log -------------------------------------------------------------------------------------------------

#: the acts, the key of the pseudonyms, and the file that writers lock
AUDIT_FILE, KEY_FILE, LOCK_FILE = "audit.jsonl", "audit.key", "audit.lock"
log = get_logger("astromesh.audit")


class AuditEntry(NamedTuple):
    """One act.

    Args:
        action: e.g. `key.create`.
        object: the id, or path of ids, of the object.
        outcome: `done`, `refused` (an error or a missing right of the caller) or `failed` (a server error).
        detail: e.g. `approve`; never content.
        principal, tenant, key: the caller; empty if the caller was not authenticated.
    """

    action: str
    object: str
    outcome: str
    detail: str = ""
    principal: str = ""
    tenant: str = ""
    key: str = ""


class AuditFilter(NamedTuple):
    """Selects acts. An empty value selects all."""

    action: str = ""
    principal: str = ""
    object: str = ""
    limit: int = 100
    #: number of a line: only acts before it
    before: int | None = None


class AuditLog:
    """The audit log of one data folder: `audit.jsonl`, one JSON object per line.

    Servers and commands append to it, and write the same as a line of the structured log. It contains names,
    never content. The file is opened for each line: you can move it away at any time, and the next line
    begins a new one. The methods block while the disk works.
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._path = folder / AUDIT_FILE
        self._lock = folder / LOCK_FILE
        self._clock = clock or SystemClock()
        self._pseudonyms = Pseudonyms(folder / KEY_FILE)

    def record(self, entry: AuditEntry) -> None:
        """Logs an act and appends it. An error of the disk is logged and not raised."""
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
        act = {"at": round(self._clock.now(), 3), **entry._asdict()}
        line = orjson.dumps(act, option=orjson.OPT_APPEND_NEWLINE)
        with self._locked(), _open_for_append(self._path) as handle:
            end = os.fstat(handle).st_size
            if end and os.pread(handle, 1, end - 1) != b"\n":  # a full disk has cut the line before
                line = b"\n" + line
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def pseudonymize(self, tenant: str, principal: str) -> None:
        """Replaces a principal, its API keys and its sessions by pseudonyms in the whole file.

        Raises:
            StoreUnavailable: the disk does not accept the new file; nothing has changed.
        """
        try:
            with self._locked():
                self._pseudonyms.make_key()
                self._rewrite(tenant, principal)
        except OSError as error:
            raise StoreUnavailable(
                f"The audit log could not be rewritten: {error}. Free space on its disk, or correct its "
                "permissions, and try again."
            ) from error

    def pseudonymized_entry(self, entry: AuditEntry, tenant: str, principal: str) -> AuditEntry:
        """Returns an act as it is recorded after a principal was erased."""
        return AuditEntry(**self._pseudonyms.apply_to(entry._asdict(), tenant, principal))

    def _rewrite(self, tenant: str, principal: str) -> None:
        """Writes a new file and renames it when it is on disk: a crash leaves the old file or the new one."""
        if not self._path.exists():
            return
        fresh = self._path.with_name(f"{AUDIT_FILE}.new")
        fresh.unlink(missing_ok=True)
        with _open_for_append(fresh) as handle:
            with self._path.open("rb") as file, os.fdopen(os.dup(handle), "wb") as rewritten:
                for line in file:
                    rewritten.write(self._pseudonymized_line(line, tenant, principal))
            os.fsync(handle)
        fresh.replace(self._path)

    def _pseudonymized_line(self, line: bytes, tenant: str, principal: str) -> bytes:
        try:
            act = orjson.loads(line)
        except orjson.JSONDecodeError:  # truncated: its principal is unknown
            return b""
        changed = self._pseudonyms.apply_to(act, tenant, principal)
        return line if changed == act else orjson.dumps(changed, option=orjson.OPT_APPEND_NEWLINE)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admits one writer at a time, of all processes, so that a rewrite loses no line."""
        private_folder(self._lock.parent)
        with _open_for_append(self._lock) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def read(self, tenant: str | None, query: AuditFilter) -> list[JsonObject]:
        """Returns the newest acts, newest first.

        Args:
            tenant: of the acts; None for all.
        """
        return [act for _, act in self.numbered(tenant, query)]

    def numbered(self, tenant: str | None, query: AuditFilter) -> list[tuple[int, JsonObject]]:
        """Returns the newest acts with the numbers of their lines, newest first."""
        lines = islice(enumerate(self._lines()), query.before)
        found = deque(((n, one) for n, one in lines if self._matches(one, tenant, query)), query.limit)
        return [*reversed(found)]

    def _lines(self) -> Iterator[JsonObject]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for line in file:
                try:
                    yield orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # truncated by a full disk

    def _matches(self, line: JsonObject, tenant: str | None, query: AuditFilter) -> bool:
        if tenant is not None and line["tenant"] != tenant:
            return False
        criteria = (("action", query.action), ("principal", query.principal), ("object", query.object))
        return all(not value or self._field_matches(line, key, value) for key, value in criteria)

    def _field_matches(self, line: JsonObject, key: str, value: str) -> bool:
        """Whether a field has a value, or the pseudonym of that value."""
        found: str = line[key]
        return found == value or (
            found.startswith(ERASED_PREFIX) and found == self._pseudonyms.pseudonym_of(line["tenant"], value)
        )


@contextmanager
def _open_for_append(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)
