"""What PostgreSQL's errors mean to astromesh, by SQLSTATE (PostgreSQL manual, appendix A)."""

from __future__ import annotations

import asyncpg

from astromesh.errors import AstromeshError, InvalidInput, StoreError, StoreUnavailable

#: longest prefix first; the store as a whole cannot do it now
_UNAVAILABLE = (
    ("25006", "may only be read at present; try again"),
    ("40", "met another transaction; try again"),
    ("53100", "cannot grow: the disk is full"),
    ("53300", "takes no more connections; try again"),
    ("53", "is out of resources; try again"),
    ("55P03", "is locked; try again"),
    ("57", "is shutting down or starting up; try again"),
    ("58", "reports a fault of its machine"),
    ("08", "broke the connection; try again"),
)
#: the operator must change something
_REFUSED = (
    ("28", "refuses the login: check the user and the password in the URL"),
    ("3D000", "does not exist on that server"),
    ("42501", "refuses a permission: the user needs CREATE on the database, or to own its tables"),
)
#: not installed, files missing, not permitted
_NO_EXTENSION = ("0A000", "58P01", "42501")
#: the last is what the library says when it goes on with a connection that the server has cut
FOREIGN = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_AWAY = ("08", "57P01", "57P02", "57P03", "53300")


def is_away(error: BaseException) -> bool:
    """Whether the server or the connection is gone, so that the same call may work in a moment."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_AWAY)
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def translated(error: BaseException, name: str) -> AstromeshError:
    """Args: name: what the operator calls the database, without its password."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"The database {name} did not answer in time; try again.")
    if isinstance(error.__cause__, UnicodeEncodeError):  # refused before it was sent
        return InvalidInput("The text holds half of a surrogate pair, which is no character.")
    if type(error) is asyncpg.DataError:  # the library's own; it repeats the value
        return StoreError(f"The database {name} was given a value of the wrong kind.")
    if isinstance(error, asyncpg.PostgresError):
        return _by_state(error, error.sqlstate or "", name)
    return StoreUnavailable(f"The database {name} cannot be reached; try again.")


def _by_state(error: asyncpg.PostgresError, state: str, name: str) -> AstromeshError:
    if state.startswith(_NO_EXTENSION) and 'extension "vector"' in str(error.args[:1]):
        return StoreError(
            f"The database {name} lacks the extension pgvector: install it on the server, and let a "
            "superuser run CREATE EXTENSION vector."
        )
    for prefix, said in _UNAVAILABLE:
        if state.startswith(prefix):
            return StoreUnavailable(f"The database {name} {said}.")
    for prefix, said in _REFUSED:
        if state.startswith(prefix):
            return StoreError(f"The database {name} {said}.")
    if isinstance(error, asyncpg.CharacterNotInRepertoireError):
        return InvalidInput("A name or id holds the character NUL, which no name or id has.")
    return StoreError(f"The database {name} refused a statement: {error.args[0] if error.args else state}")
