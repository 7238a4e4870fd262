"""The public keys of an issuer (RFC 7517), fetched, kept, and fetched again when they rotate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from astromesh.abc.clock import Clock
from astromesh.errors import NetError, Overloaded
from astromesh.net.http import Http

log = structlog.get_logger("astromesh.identity")

#: seconds after which keys are asked for again; an issuer that does not answer keeps those it had
MAX_AGE = 600.0
#: seconds between two questions, whatever unknown keys callers name
MIN_AGE = 30.0
SECONDS = 5.0
MAX_BYTES, MAX_KEYS = 256 * 1024, 100
MIN_RSA_BITS = 2048


class PublicKey(NamedTuple):
    """One key. `algorithm` is the only one it may be used with."""

    id: str
    algorithm: str
    key: Any


class KeySet:
    """The keys behind one URL.

    Args:
        url: written by the operator, so that it is trusted.
        clock: for the age of what is known.
    """

    def __init__(self, url: str, http: Http, clock: Clock) -> None:
        self._url, self._http, self._clock = url, http, clock
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched: float | None = None
        self._asked: float | None = None
        self._fetching = asyncio.Lock()

    async def find(self, algorithm: str, key_id: str) -> PublicKey | None:
        """The key that a token names; without a name, the only one of its algorithm.

        Raises:
            Overloaded: the issuer's keys were never to be had.
        """
        if self._stale():
            await self._refresh()
        found = self._known(algorithm, key_id)
        if found is None and self._may_ask():
            await self._refresh()
            found = self._known(algorithm, key_id)
        if self._fetched is None:
            raise Overloaded("The keys that tokens are checked with cannot be fetched; try again soon.")
        return found

    def _known(self, algorithm: str, key_id: str) -> PublicKey | None:
        fitting = [key for key in self._keys if key.algorithm == algorithm and key_id in ("", key.id)]
        return fitting[0] if len(fitting) == 1 else None

    def _stale(self) -> bool:
        return self._may_ask() and (
            self._fetched is None or self._clock.monotonic() - self._fetched >= MAX_AGE
        )

    def _may_ask(self) -> bool:
        return self._asked is None or self._clock.monotonic() - self._asked >= MIN_AGE

    async def _refresh(self) -> None:
        async with self._fetching:
            if not self._may_ask():  # somebody else has just asked
                return
            self._asked = self._clock.monotonic()
            try:
                answer = await self._http.request("GET", self._url, timeout=SECONDS, limit=MAX_BYTES)
                if answer.status != 200:
                    raise NetError(f"The issuer's keys: HTTP {answer.status}.")
                self._keys = tuple(_read(answer.json()))
            except (NetError, orjson.JSONDecodeError) as error:
                log.warning("jwks_not_fetched", error=str(error))
                return
            self._fetched = self._clock.monotonic()


def _read(document: Any) -> Iterator[PublicKey]:
    """The keys of a document that can sign tokens here; others are left out."""
    listed = document.get("keys") if isinstance(document, dict) else None
    for entry in (listed if isinstance(listed, list) else [])[:MAX_KEYS]:
        if isinstance(entry, dict) and (key := _key(entry)) is not None:
            yield key


def _key(entry: Mapping[str, Any]) -> PublicKey | None:
    algorithm = _ALGORITHMS.get((entry.get("kty"), entry.get("crv")))
    key_id = entry.get("kid", "")
    if algorithm is None or entry.get("use", "sig") != "sig" or not isinstance(key_id, str):
        return None
    if entry.get("alg", algorithm) != algorithm:
        return None
    try:
        key = PyJWK(dict(entry), algorithm).key
    except (PyJWTError, ValueError, TypeError) as error:
        log.warning("jwk_unusable", kid=key_id[:64], error=type(error).__name__)
        return None
    return PublicKey(key_id, algorithm, key) if _is_sound(key) else None


#: by kind and curve of a key (RFC 7518, 3.1)
_ALGORITHMS: Mapping[tuple[Any, Any], str] = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}


def _is_sound(key: Any) -> bool:
    """Public, and long enough; an issuer that shows a private key has lost it."""
    if isinstance(key, RSAPublicKey):
        return key.key_size >= MIN_RSA_BITS
    return isinstance(key, EllipticCurvePublicKey)
