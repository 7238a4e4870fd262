"""What SQLite's errors mean to astromesh: translated here, once, by a table (sqlite.org/rescode.html)."""

from __future__ import annotations

import sqlite3

from astromesh.errors import InvalidInput, StoreError, StoreUnavailable

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

#: faults of the whole store, which hit every job alike; anything else is the fault of one job
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is locked by another process; try again",
    sqlite3.SQLITE_LOCKED: "is locked by another process; try again",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process; try again",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and may be written",
    sqlite3.SQLITE_READONLY: "may not be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "may not be used: check the permissions of the file and its folder",
    sqlite3.SQLITE_NOMEM: "ran out of memory",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "is no SQLite database; move the file away",
}


def result_code(error: BaseException) -> int:
    """SQLite's primary result code; 0 for errors that are not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether the same work may succeed in a moment."""
    return result_code(error) in _BUSY


def hits_everyone(error: BaseException) -> bool:
    """Whether the store as a whole cannot do its work now."""
    return result_code(error) in _UNAVAILABLE


def translated(error: BaseException, name: str) -> BaseException:
    """Args: name: what the operator calls the database, e.g. its file name."""
    if (said := _UNAVAILABLE.get(result_code(error))) is not None:
        return StoreUnavailable(f"The database {name} {said}.")
    if isinstance(error, OSError):
        return StoreUnavailable(f"The database {name} {_UNAVAILABLE[sqlite3.SQLITE_CANTOPEN]}.")
    if isinstance(error, sqlite3.Error):
        return StoreError(f"The database {name} refused a statement: {error}")
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput("The text holds half of a surrogate pair, which is no character.")
    return error
