"""Large values of a Task, stored once, compressed, and named by their SHA-256.

A value of more than 4 KiB in a record, an artifact or a result leaves `{"$payload": HASH}` in its place. Its
own large parts are taken out first: stages that add a key to a document store the large part of it once.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import orjson

#: bytes of JSON that stay in place
MAX_INLINE = 4096
#: fast: twice the level takes three times as long and saves a tenth
_LEVEL = 3
_MARK = "$payload"
_QUOTED_MARK = b'"$payload"'
#: a value of a caller with our key stands below this one
_LITERAL = "literal"
_REFERENCE = re.compile(rb'"\$payload":"([0-9a-f]{64})"')


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def needs_split(text: bytes) -> bool:
    """Whether a value with this JSON may have a large part, or holds our key itself."""
    return len(text) > MAX_INLINE or _QUOTED_MARK in text


class Splitter:
    """Takes the large parts out of values of one Task.

    Args:
        known: hashes that are stored already.
        max_inline: bytes of JSON that stay in place.

    Attributes:
        found: the others: hash → compressed content.
    """

    def __init__(self, known: Iterable[str] = (), max_inline: int = MAX_INLINE) -> None:
        self._known, self._max_inline = frozenset(known), max_inline
        self.found: dict[str, bytes] = {}
        #: by identity: one output is in a record and in an artifact
        self._split: dict[int, tuple[Any, Any]] = {}

    def split(self, value: Any) -> Any:
        """Returns a value with references in place of its large parts, itself included."""
        if isinstance(value, (int, float, bool, type(None))):
            return value
        if (done := self._split.get(id(value))) is not None:
            return done[1]
        text = to_json(value)
        if not needs_split(text):
            return value
        split = self._without_large_parts(value, text)
        self._split[id(value)] = (value, split)  # holds the value, so that no other takes its identity
        return split

    def split_fields(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Returns an object whose fields are split; it stays an object."""
        fields = {key: self.split(one) for key, one in value.items()}
        return {_MARK: {_LITERAL: fields}} if _MARK in fields else fields

    def _without_large_parts(self, value: Any, text: bytes) -> Any:
        if isinstance(value, Mapping):
            value = self.split_fields(value)
            text = to_json(value)
        elif isinstance(value, (list, tuple)):
            value = [self.split(one) for one in value]
            text = to_json(value)
        if len(text) <= self._max_inline:
            return value
        name = sha256(text).hexdigest()
        if name not in self._known and name not in self.found:
            self.found[name] = zlib.compress(text, _LEVEL)
        return {_MARK: name}


def references(text: bytes) -> set[str]:
    """Returns the hashes that a stored JSON text refers to, and perhaps others."""
    return {found.decode() for found in _REFERENCE.findall(text)} if _QUOTED_MARK in text else set()


def unpack(content: bytes) -> bytes:
    """Returns the JSON text of a stored payload."""
    return zlib.decompress(content)


class Joiner:
    """Puts the large parts of one Task back.

    Args:
        texts: hash → JSON text; what is missing stays a reference.
    """

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._texts, self._values = texts, dict[str, Any]()

    def join(self, text: bytes) -> Any:
        """Returns the value of a stored JSON text. Equal large parts are one object."""
        value = orjson.loads(text)
        return self._joined(value) if _QUOTED_MARK in text else value

    def _joined(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._joined(one) for one in value]
        if not isinstance(value, dict):
            return value
        reference = value.get(_MARK) if len(value) == 1 else None
        if isinstance(reference, str) and reference in self._texts:
            if reference not in self._values:
                self._values[reference] = self.join(self._texts[reference])
            return self._values[reference]
        if isinstance(reference, dict) and reference.keys() == {_LITERAL}:
            value = reference[_LITERAL]
        return {key: self._joined(one) for key, one in value.items()}
