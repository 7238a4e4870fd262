"""The headers of a request, read once. Starlette looks through all of them at each question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from starlette.types import Scope

#: where a scope keeps them
_READ = "astromesh.headers"


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Names in lower case, as ASGI has them, and values; of those that stand more than once the first."""
    if _READ not in scope:
        given = reversed(list(scope["headers"]))
        scope[_READ] = {name.decode("latin-1"): value.decode("latin-1") for name, value in given}
    return cast("Mapping[str, str]", scope[_READ])
