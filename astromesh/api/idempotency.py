"""`Idempotency-Key`: the caller's own name of a request that starts a run.

Every route that starts a run reads it with `idempotency_key` and hands it on: `runtime.start(…, key=…)`,
`runtime.accept(…, key=…)`. A name is its caller's (tenant, principal) and its route's. The body is kept as a
hash only (reliability.md S10); bodies that differ in white space or in the order of keys are the same.
"""

from __future__ import annotations

from hashlib import sha256

import orjson
from starlette.requests import Request

from astromesh.access.scopes import principal_of
from astromesh.api.auth import caller_of, runtime_of
from astromesh.api.requests import headers_of, raw_body
from astromesh.durable.base import IdempotencyKey
from astromesh.errors import InvalidInput
from astromesh.runtime.idempotency import KEY_SECONDS

HEADER = "idempotency-key"
#: characters of a key
_MAX_LENGTH = 255


async def idempotency_key(request: Request, *more: str) -> IdempotencyKey | None:
    """The key of a request whose body was found sound; None where it has none.

    Args:
        more: what else the run depends on, headers say.

    Raises:
        InvalidInput: the key is empty, too long, or not printable ASCII.
    """
    key = headers_of(request.scope).get(HEADER)
    if key is None:
        return None
    if not 0 < len(key) <= _MAX_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"Idempotency-Key: 1 to {_MAX_LENGTH} printable ASCII characters.")
    body = orjson.dumps([orjson.loads(await raw_body(request)), *more], option=orjson.OPT_SORT_KEYS)
    expires = runtime_of(request).clock.now() + KEY_SECONDS
    route = f"{request.method} {request.url.path}"
    return IdempotencyKey(*principal_of(caller_of(request)), route, key, sha256(body).hexdigest(), expires)
