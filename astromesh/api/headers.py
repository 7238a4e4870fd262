"""The headers of a request, read once. Starlette looks through all of them at each question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from starlette.types import Scope

#: where a scope keeps them
_READ = "astromesh.headers"
#: what is read as a list here, so that its lines are one list (RFC 9110, 5.3)
_LISTS = frozenset({b"accept"})


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Names in lower case, as ASGI has them, and values; of those that stand more than once the first."""
    if _READ not in scope:
        given = list(scope["headers"])
        read = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(given)}
        if len(read) < len(given):
            read.update(_lists(given))
        scope[_READ] = read
    return cast("Mapping[str, str]", scope[_READ])


def _lists(given: list[tuple[bytes, bytes]]) -> dict[str, str]:
    said: dict[bytes, list[bytes]] = {}
    for name, value in given:
        if name in _LISTS:
            said.setdefault(name, []).append(value)
    return {name.decode(): b", ".join(values).decode("latin-1") for name, values in said.items()}
