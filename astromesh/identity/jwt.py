"""JSON Web Tokens (RFC 7519): a token becomes its claims, and claims become a caller. Rules of S6:

* the algorithm comes from the key, never from the token: HS256 with the shared secret, RS256 and ES256 with a
  key of the issuer; nothing else, `none` least of all
* `exp` and `sub` must be there; `iss` and `aud` must be the configured ones; `nbf` and `iat` not in future
* each claim has the type that RFC 7519 gives it
* what it says can be kept: no half surrogate pairs, no NUL, no numbers beyond 64 bits
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Self

import jwt
import orjson
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps
from astromesh.errors import ConfigError, Unauthorized
from astromesh.identity.jwks import KeySet
from astromesh.types import CallerContext, JsonObject

log = structlog.get_logger("astromesh.identity")

#: bytes that a secret of HS256 must have (RFC 7518, 3.2)
MIN_SECRET = 32
MAX_TOKEN = 16 * 1024
MAX_NAME = 256
#: seconds by which an issuer's clock may be ahead, so that a token works at once; none is added to its end
LEEWAY = 5.0
DEFAULT_TENANT = "default"
#: how principals of API keys are called; no token may call itself so
_RESERVED = ("key:",)
_FOREIGN = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class JwtOptions(BaseModel):
    """What tokens must be like. At least one of `secret` and `jwks_url`."""

    model_config = ConfigDict(extra="forbid")

    issuer: str = Field("", description="Required `iss`; empty: any.")
    audience: str = Field("", description="Required `aud`; empty: tokens without one.")
    jwks_url: str = Field("", description="Where the public keys are (RS256, ES256).")
    secret: SecretStr = Field(SecretStr(""), description="The shared secret (HS256), 32 bytes or more.")
    tenant_claim: str = Field("tenant", min_length=1, description="Claim that names the tenant.")
    roles_claim: str = Field("roles", min_length=1, description="Claim that lists the roles.")


class JwtVerifier:
    """Checks tokens.

    Args:
        keys: the issuer's, for RS256 and ES256.

    Raises:
        ConfigError: nothing to check with, or a secret that can be guessed.
    """

    def __init__(self, options: JwtOptions, keys: KeySet | None, clock: Clock) -> None:
        secret = options.secret.get_secret_value()
        if not secret and keys is None:
            raise ConfigError("Tokens need a secret (HS256) or a jwks_url (RS256, ES256) to be checked with.")
        if secret and len(secret.encode()) < MIN_SECRET:
            raise ConfigError(
                f"The secret of HS256 has {len(secret.encode())} bytes; it needs {MIN_SECRET} or more."
            )
        self._options, self._secret, self._keys, self._clock = options, secret, keys, clock

    async def verify(self, token: str) -> JsonObject:
        """The claims of a sound token.

        Raises:
            Unauthorized: it is not; the message says why, and holds nothing of the token.
            Overloaded: the issuer's keys cannot be fetched.
        """
        if len(token) > MAX_TOKEN:
            raise Unauthorized("The token is too long.")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key = await self._key(header)
            claims: JsonObject = jwt.decode(
                token, key, [algorithm], issuer=self._options.issuer or None,
                audience=self._options.audience or None,
                options={"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False,
                         "verify_iat": False},
            )  # fmt: skip
        except _FOREIGN as error:
            raise Unauthorized(f"The token is not sound ({type(error).__name__}).") from error
        if not _can_be_kept(claims):
            raise Unauthorized("The token's claims hold what no store can keep.")
        self._check_times(claims)
        return claims

    async def caller(self, token: str) -> CallerContext:
        """Who calls with a token. Raises: Unauthorized, Overloaded."""
        return caller_of(await self.verify(token), token, self._options)

    async def _key(self, header: Mapping[str, Any]) -> tuple[str, Any]:
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm == "HS256" and self._secret:
            return algorithm, self._secret
        if algorithm in ("RS256", "ES256") and self._keys is not None and isinstance(key_id, str):
            found = await self._keys.find(algorithm, key_id)
            if found is not None:
                return found.algorithm, found.key
            raise Unauthorized("The token is signed with a key that its issuer does not list.")
        raise Unauthorized("The token's algorithm is not one that is accepted here.")

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now = self._clock.now()
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(type(at) in (int, float) and isfinite(at) for at in times.values()):
            raise Unauthorized("The token's times are no numbers.")
        if times["exp"] <= now:
            raise Unauthorized("The token has expired.")
        if any(times.get(name, now) > now + LEEWAY for name in ("nbf", "iat")):
            raise Unauthorized("The token is not valid yet.")


def caller_of(claims: Mapping[str, Any], token: str, options: JwtOptions) -> CallerContext:
    """The caller that claims describe.

    Raises:
        Unauthorized: a claim has the wrong type.
    """
    subject = _name(claims.get("sub"), "sub")
    if subject.startswith(_RESERVED):
        raise Unauthorized("The token's sub is reserved for API keys.")
    tenant = claims.get(options.tenant_claim)
    return CallerContext(
        user_id=subject,
        tenant_id=DEFAULT_TENANT if tenant is None else _name(tenant, options.tenant_claim),
        bearer_token=token,
        roles=_names(claims.get(options.roles_claim, []), options.roles_claim),
        scopes=_scopes(claims),
        metadata={"claims": dict(claims)},
    )


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """`scope` as RFC 8693 writes it, a text with spaces, or the lists that some issuers send."""
    for name in ("scope", "scp", "scopes"):
        if name in claims:
            return _names(claims[name], name)
    return frozenset()


def _names(value: Any, claim: str) -> frozenset[str]:
    listed = value.split() if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise Unauthorized(f"The token's {claim} is no list of names.")
    return frozenset(_name(one, claim) for one in listed)


def _name(value: Any, claim: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME or not value.strip() or not value.isprintable():
        raise Unauthorized(f"The token's {claim} is no name.")
    return value


def _can_be_kept(claims: JsonObject) -> bool:
    """Whether claims can stand in a run's record; each store has its own text that it refuses."""
    try:
        return b"\\u0000" not in orjson.dumps(claims)
    except orjson.JSONEncodeError:
        return False


class JwtAuthenticator:
    """Tells who calls with a token (an `astromesh.api.auth.Authenticator`)."""

    Options = JwtOptions

    def __init__(self, verifier: JwtVerifier) -> None:
        self._verifier = verifier

    @classmethod
    async def open(cls, options: JwtOptions, deps: Deps) -> Self:
        return cls(open_verifier(options, deps))

    async def authenticate(self, token: str) -> CallerContext | None:
        """The caller of a sound token, else None. Raises: Overloaded: its issuer's keys cannot be fetched."""
        try:
            return await self._verifier.caller(token)
        except Unauthorized as error:
            log.info("token_refused", reason=str(error))
            return None


def open_verifier(options: JwtOptions, deps: Deps) -> JwtVerifier:
    """A verifier whose keys come through the shared HTTP session. Raises: ConfigError."""
    keys = KeySet(options.jwks_url, deps.http, deps.clock) if options.jwks_url else None
    return JwtVerifier(options, keys, deps.clock)
