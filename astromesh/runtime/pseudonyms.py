"""Names that an erased principal has in the audit log (GDPR, article 4(5), article 17).

That an act was done, and that somebody was erased, stays; who it was does not. A pseudonym is the HMAC-SHA256
(RFC 2104) of tenant and name under a key of the data folder: names are few enough to be tried out one by one,
so that a plain hash would hide nothing. Who knows a name can still ask for its acts, without the key nobody.
"""

from __future__ import annotations

import hmac
import os
import re
from hashlib import sha256
from pathlib import Path

import orjson

from astromesh.types import JsonObject

PREFIX = "erased:"
#: characters of an act's object; callers choose it
SHOWN = 200
#: bytes of the key, and hex digits of a pseudonym
_KEY, _DIGITS = 32, 32


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
            os.write(handle, os.urandom(_KEY))
            os.fsync(handle)
        finally:
            os.close(handle)
        fresh.replace(self._file)

    def of(self, tenant: str, name: str) -> str:
        """The pseudonym of a name; empty where no name was ever erased."""
        if not self._file.exists():
            return ""
        said = hmac.new(self._file.read_bytes(), orjson.dumps((tenant, name)), sha256).hexdigest()
        return PREFIX + said[:_DIGITS]

    def put(self, act: JsonObject, tenant: str, name: str) -> JsonObject:
        """An act of any principal without an erased one: its name, its API key's id, its session's id.

        Ids of runs and Tasks stay: they are random, and what they named is erased.
        """
        if act["tenant"] != tenant:
            return act
        own, what, changed = act["principal"] == name, act["object"], dict(act)
        if own:
            changed["principal"] = self.of(tenant, name)
            changed["key"] = self.of(tenant, act["key"]) if act["key"] else ""
        if act["action"].startswith("principal.") and what == name[:SHOWN]:
            changed["object"] = self.of(tenant, name)
        elif act["action"].startswith("session.") and (own or _tells(what, name)):
            changed["object"] = what if what.startswith(PREFIX) else self.of(tenant, what)
        return changed


def _tells(object: str, name: str) -> bool:
    """Whether a name is a word of an object's name, as of a session that is called by who speaks in it."""
    return bool(name) and re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", object) is not None
