"""`Idempotency-Key`: the caller's own name of a request that starts a run.

Every route that starts a run reads it with `name_of` and hands it on: `runtime.start(…, key=…)`,
`runtime.accept(…, key=…)`. A name is its caller's (tenant, principal) and its route's. The body is kept as a
hash only (reliability.md S10); bodies that differ in white space or in the order of keys are the same.
"""

from __future__ import annotations

from hashlib import sha256

import orjson
from starlette.requests import Request

from astromesh.abc.durable import IdempotencyKey
from astromesh.api.access import caller_of, runtime_of
from astromesh.api.body import body_of
from astromesh.api.headers import headers_of
from astromesh.errors import InvalidInput
from astromesh.runtime.engine import principal
from astromesh.runtime.named import KEPT_SECONDS

HEADER = "idempotency-key"
#: characters of a key
_MOST = 255


async def name_of(request: Request, *more: str) -> IdempotencyKey | None:
    """The key of a request whose body was found sound; None where it has none.

    Args:
        more: what else the run depends on, headers say.

    Raises:
        InvalidInput: the key is empty, too long, or not printable ASCII.
    """
    key = headers_of(request.scope).get(HEADER)
    if key is None:
        return None
    if not 0 < len(key) <= _MOST or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"Idempotency-Key: 1 to {_MOST} printable ASCII characters.")
    body = orjson.dumps([orjson.loads(await body_of(request)), *more], option=orjson.OPT_SORT_KEYS)
    expires = runtime_of(request).clock.now() + KEPT_SECONDS
    route = f"{request.method} {request.url.path}"
    return IdempotencyKey(*principal(caller_of(request)), route, key, sha256(body).hexdigest(), expires)
