"""JSON Web Tokens (RFC 7519) and their keys (RFC 7517): a token becomes its claims, and claims a caller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple, Self

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.errors import ConfigError, NetError, Overloaded, Unauthorized
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.telemetry.clock import Clock
from astromesh.types import DEFAULT_TENANT, CallerContext, JsonObject

log = get_logger("astromesh.identity")
#: seconds after which keys are fetched again; while the issuer does not answer, the known keys stay valid
MAX_KEYS_AGE_SECONDS = 600.0
#: least seconds between two fetches, whatever unknown keys callers name
MIN_KEYS_AGE_SECONDS = 30.0
FETCH_TIMEOUT_SECONDS = 5.0
MAX_KEYS_BYTES, MAX_KEYS = 256 * 1024, 100
MIN_RSA_BITS = 2048


class PublicKey(NamedTuple):
    """One key. Args: algorithm: the only one that the key may be used with."""

    id: str
    algorithm: str
    key: Any


class KeySet:
    """The keys behind one URL.

    Args:
        url: trusted, because the operator wrote it.
        clock: for the age of the keys.
    """

    def __init__(self, url: str, http: Http, clock: Clock) -> None:
        self._url, self._http, self._clock = url, http, clock
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched_at: float | None = None
        self._requested_at: float | None = None
        self._fetch_lock = asyncio.Lock()

    async def find(self, algorithm: str, key_id: str) -> PublicKey | None:
        """Returns the key that a token names; without a name, the only one of its algorithm.

        Raises:
            Overloaded: the issuer's keys have never been fetched.
        """
        if self._is_stale():
            await self._refresh()
        found = self._find_stored(algorithm, key_id)
        if found is None and self._may_fetch():
            await self._refresh()
            found = self._find_stored(algorithm, key_id)
        if self._fetched_at is None:
            raise Overloaded("The issuer's keys cannot be fetched. Try again soon.")
        return found

    def _find_stored(self, algorithm: str, key_id: str) -> PublicKey | None:
        fitting = [key for key in self._keys if key.algorithm == algorithm and key_id in ("", key.id)]
        return fitting[0] if len(fitting) == 1 else None

    def _is_stale(self) -> bool:
        return self._may_fetch() and (
            self._fetched_at is None or self._clock.monotonic() - self._fetched_at >= MAX_KEYS_AGE_SECONDS
        )

    def _may_fetch(self) -> bool:
        return (
            self._requested_at is None or self._clock.monotonic() - self._requested_at >= MIN_KEYS_AGE_SECONDS
        )

    async def _refresh(self) -> None:
        async with self._fetch_lock:
            if not self._may_fetch():  # another caller has just fetched them
                return
            self._requested_at = self._clock.monotonic()
            try:
                answer = await self._http.request(
                    "GET", self._url, timeout=FETCH_TIMEOUT_SECONDS, limit=MAX_KEYS_BYTES
                )
                if answer.status != 200:
                    raise NetError(f"The issuer answered HTTP {answer.status} instead of its keys.")
                self._keys = tuple(_usable_keys(answer.json()))
            except (NetError, orjson.JSONDecodeError) as error:
                log.warning("jwks_not_fetched", error=str(error))
                return
            self._fetched_at = self._clock.monotonic()


def _usable_keys(document: Any) -> Iterator[PublicKey]:
    """Yields the keys of a document that can verify tokens here."""
    listed = document.get("keys") if isinstance(document, dict) else None
    for entry in (listed if isinstance(listed, list) else [])[:MAX_KEYS]:
        if isinstance(entry, dict) and (key := _parse_key(entry)) is not None:
            yield key


def _parse_key(entry: Mapping[str, Any]) -> PublicKey | None:
    algorithm = _ALGORITHM_BY_KEY_TYPE.get((entry.get("kty"), entry.get("crv")))
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
    return PublicKey(key_id, algorithm, key) if _is_strong_public_key(key) else None


#: by kind and curve of a key (RFC 7518, 3.1)
_ALGORITHM_BY_KEY_TYPE: Mapping[tuple[Any, Any], str] = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}


def _is_strong_public_key(key: Any) -> bool:
    """Whether a key is public and long enough. A private key that an issuer publishes is not safe."""
    if isinstance(key, RSAPublicKey):
        return key.key_size >= MIN_RSA_BITS
    return isinstance(key, EllipticCurvePublicKey)


#: bytes that a secret of HS256 must have (RFC 7518, 3.2)
MIN_SECRET_BYTES = 32
MAX_TOKEN_LENGTH = 16 * 1024
MAX_NAME_LENGTH = 256
#: seconds by which an issuer's clock may be ahead; a token's end is not extended
LEEWAY_SECONDS = 5.0
#: principals of API keys have these names, and tokens may not
_RESERVED_PREFIXES = ("key:",)
_PYJWT_ERRORS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class JwtOptions(BaseModel):
    """Requirements for tokens. Give `secret`, `jwks_url` or both."""

    model_config = ConfigDict(extra="forbid")

    issuer: str = Field("", description="Required `iss`; empty: any.")
    audience: str = Field("", description="Required `aud`; empty: tokens without one.")
    jwks_url: str = Field("", description="Where the public keys are (RS256, ES256).")
    secret: SecretStr = Field(SecretStr(""), description="The shared secret (HS256), 32 bytes or more.")
    tenant_claim: str = Field("tenant", min_length=1, description="Claim that names the tenant.")
    roles_claim: str = Field("roles", min_length=1, description="Claim that lists the roles.")


class JwtVerifier:
    """Verifies tokens.

    Args:
        keys: the issuer's, for RS256 and ES256.

    Raises:
        ConfigError: there is neither a secret nor a URL, or the secret is too short.
    """

    def __init__(self, options: JwtOptions, keys: KeySet | None, clock: Clock) -> None:
        secret = options.secret.get_secret_value()
        if not secret and keys is None:
            raise ConfigError("To verify tokens, give a secret (HS256) or a jwks_url (RS256, ES256).")
        if secret and len(secret.encode()) < MIN_SECRET_BYTES:
            raise ConfigError(
                f"The secret of HS256 has {len(secret.encode())} bytes; it needs {MIN_SECRET_BYTES} or more."
            )
        self._options, self._secret, self._keys, self._clock = options, secret, keys, clock

    async def verify(self, token: str) -> JsonObject:
        """Returns the claims of a valid token.

        Raises:
            Unauthorized: it is not valid; the message says why, and contains nothing of the token.
            Overloaded: the issuer's keys cannot be fetched.
        """
        if len(token) > MAX_TOKEN_LENGTH:
            raise Unauthorized(f"The token has more than {MAX_TOKEN_LENGTH} characters.")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key = await self._verification_key(header)
            claims: JsonObject = jwt.decode(
                token, key, [algorithm], issuer=self._options.issuer or None,
                audience=self._options.audience or None,
                options={"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False,
                         "verify_iat": False},
            )  # fmt: skip
        except _PYJWT_ERRORS as error:
            raise Unauthorized(f"The token is not valid ({type(error).__name__}).") from error
        if not _can_be_stored(claims):
            raise Unauthorized("A claim of the token has a character that cannot be stored, e.g. NUL.")
        self._check_times(claims)
        return claims

    async def caller(self, token: str) -> CallerContext:
        """Returns the caller of a valid token. Raises: Unauthorized, Overloaded."""
        return caller_of(await self.verify(token), token, self._options)

    async def _verification_key(self, header: Mapping[str, Any]) -> tuple[str, Any]:
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm == "HS256" and self._secret:
            return algorithm, self._secret
        if algorithm in ("RS256", "ES256") and self._keys is not None and isinstance(key_id, str):
            found = await self._keys.find(algorithm, key_id)
            if found is not None:
                return found.algorithm, found.key
            raise Unauthorized("The issuer does not list the key that signed the token.")
        raise Unauthorized("The token's algorithm is not accepted.")

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now = self._clock.now()
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(type(at) in (int, float) and isfinite(at) for at in times.values()):
            raise Unauthorized("The exp, nbf and iat of the token must be numbers.")
        if times["exp"] <= now:
            raise Unauthorized("The token has expired.")
        if any(times.get(name, now) > now + LEEWAY_SECONDS for name in ("nbf", "iat")):
            raise Unauthorized("The token is not valid yet.")


def caller_of(claims: Mapping[str, Any], token: str, options: JwtOptions) -> CallerContext:
    """Returns the caller that claims describe.

    Raises:
        Unauthorized: a claim has the wrong type.
    """
    subject = _name(claims.get("sub"), "sub")
    if subject.startswith(_RESERVED_PREFIXES):
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
    """Returns the scopes of a text with spaces (RFC 8693) or of a list, which some issuers send."""
    for name in ("scope", "scp", "scopes"):
        if name in claims:
            return _names(claims[name], name)
    return frozenset()


def _names(value: Any, claim: str) -> frozenset[str]:
    listed = value.split() if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise Unauthorized(f"The token's {claim} is not a list of names.")
    return frozenset(_name(one, claim) for one in listed)


def _name(value: Any, claim: str) -> str:
    good = isinstance(value, str) and len(value) <= MAX_NAME_LENGTH
    if not good or not value.strip() or not value.isprintable():
        raise Unauthorized(f"The token's {claim} is not a name.")
    return str(value)


def _can_be_stored(claims: JsonObject) -> bool:
    """Whether every store accepts the claims in the record of a run."""
    try:
        return b"\\u0000" not in orjson.dumps(claims)
    except orjson.JSONEncodeError:
        return False


class JwtAuthenticator:
    """Authenticates callers by their tokens (an `astromesh.api.auth.Authenticator`)."""

    Options = JwtOptions

    def __init__(self, verifier: JwtVerifier) -> None:
        self._verifier = verifier

    @classmethod
    async def open(cls, options: JwtOptions, deps: Deps) -> Self:
        return cls(open_verifier(options, deps))

    async def authenticate(self, token: str) -> CallerContext | None:
        """Returns the caller of a valid token, else None. Raises: Overloaded: the keys cannot be fetched."""
        try:
            return await self._verifier.caller(token)
        except Unauthorized as error:
            log.info("token_refused", reason=str(error))
            return None


def open_verifier(options: JwtOptions, deps: Deps) -> JwtVerifier:
    """Returns a verifier that fetches keys over the shared HTTP session. Raises: ConfigError."""
    keys = KeySet(options.jwks_url, deps.http, deps.clock) if options.jwks_url else None
    return JwtVerifier(options, keys, deps.clock)
