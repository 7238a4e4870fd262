"""Tokens: what makes a caller, and everything else that is refused (reliability.md S6)."""

from __future__ import annotations

import hmac
import json
import re
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from astromesh.access.jwt import JwtOptions, JwtVerifier
from astromesh.errors import ConfigError, Unauthorized
from astromesh.testing import ManualClock
from tests.unit.access.tokens import AUDIENCE, EC_KEY, ISSUER, RSA_KEY, SECRET, claims, raw, signed

CLOCK = ManualClock()
NOW = CLOCK.now()


def verifier(**options: Any) -> JwtVerifier:
    given = {"issuer": ISSUER, "audience": AUDIENCE, "secret": SecretStr(SECRET), **options}
    return JwtVerifier(JwtOptions(**given), None, CLOCK)


def hs256(message: str, key: bytes) -> str:
    return raw({}, {}, hmac.digest(key, message.encode(), sha256)).rpartition(".")[2]


async def test_the_claims_of_a_sound_token_are_the_caller() -> None:
    token = signed(claims(NOW))
    caller = await verifier().caller(token)
    assert (caller.user_id, caller.tenant_id, caller.bearer_token) == ("alice", "acme", token)
    assert sorted(caller.roles | caller.scopes) == ["agents:read", "agents:run", "analyst"]
    assert caller.metadata["claims"]["iss"] == ISSUER
    assert token not in repr(caller)


@pytest.mark.parametrize(
    ("more", "scopes"),
    [
        ({"scope": None}, set()),
        ({"scope": ""}, set()),
        ({"scope": None, "scp": ["a", "b"]}, {"a", "b"}),
        ({"scope": None, "scopes": "a b"}, {"a", "b"}),
        ({"scope": "x", "scp": ["a"]}, {"x"}),
    ],
)
async def test_scopes_come_as_text_or_as_a_list(more: dict[str, Any], scopes: set[str]) -> None:
    assert (await verifier().caller(signed(claims(NOW, **more)))).scopes == scopes


async def test_the_claims_for_tenant_and_roles_can_be_named() -> None:
    checks = verifier(tenant_claim="org", roles_claim="groups")
    caller = await checks.caller(signed(claims(NOW, org="umbrella", groups=["boss"])))
    assert (caller.tenant_id, *caller.roles) == ("umbrella", "boss")
    assert (await checks.caller(signed(claims(NOW)))).tenant_id == "default"


async def test_names_have_up_to_256_characters_and_an_issuers_clock_may_be_five_seconds_ahead() -> None:
    given = claims(NOW, sub="a" * 256, iat=NOW + 5, nbf=NOW + 5)
    assert len((await verifier().caller(signed(given))).user_id) == 256


async def test_times_are_those_of_the_servers_clock() -> None:
    clock = ManualClock(8e9)  # in the year 2223
    checks = JwtVerifier(JwtOptions(secret=SecretStr(SECRET)), None, clock)
    given = claims(clock.now(), nbf=clock.now(), aud=None)
    assert (await checks.caller(signed(given))).user_id == "alice"


REFUSED: dict[str, dict[str, Any]] = {
    "no exp": {"exp": None},
    "expired": {"exp": NOW - 1},
    "expires now": {"exp": NOW},
    "exp as text": {"exp": str(NOW + 600)},
    "exp as a list": {"exp": [NOW + 600]},
    "exp as true": {"exp": True},
    "exp as an object": {"exp": {"at": NOW}},
    "not yet valid": {"nbf": NOW + 6},
    "nbf as text": {"nbf": "yesterday"},
    "made in the future": {"iat": NOW + 6},
    "iat as text": {"iat": "now"},
    "no sub": {"sub": None},
    "empty sub": {"sub": ""},
    "sub as a number": {"sub": 7},
    "sub as a list": {"sub": ["alice"]},
    "long sub": {"sub": "a" * 257},
    "sub of an API key": {"sub": "key:abc"},
    "no aud": {"aud": None},
    "wrong aud": {"aud": "somebody-else"},
    "aud as a number": {"aud": 5},
    "aud of numbers": {"aud": [5]},
    "no iss": {"iss": None},
    "wrong iss": {"iss": "https://evil.example"},
    "iss as a list": {"iss": [ISSUER]},
    "tenant as a number": {"tenant": 5},
    "empty tenant": {"tenant": ""},
    "roles as a number": {"roles": 5},
    "roles of numbers": {"roles": [5]},
    "roles as an object": {"roles": {"admin": True}},
    "scope as a number": {"scope": 5},
    "scope of objects": {"scope": [{}]},
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_token_with_wrong_claims_is_refused(name: str) -> None:
    body = claims(NOW, **REFUSED[name])
    header = {"alg": "HS256", "typ": "JWT"}
    unsigned = raw(header, body).rpartition(".")[0]
    token = f"{unsigned}.{hs256(unsigned, SECRET.encode())}"
    with pytest.raises(Unauthorized):
        await verifier().caller(token)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("expired", "The token has expired."),
        ("not yet valid", "The token is not valid yet."),
        ("iat as text", "The exp, nbf and iat of the token must be numbers."),
        ("sub of an API key", "The token's sub is reserved for API keys."),
        ("wrong aud", "The token is not valid (InvalidAudienceError)."),
        ("tenant as a number", "The token's tenant is not a name."),
        ("roles as an object", "The token's roles is not a list of names."),
        ("scope of objects", "The token's scope is not a name."),
    ],
)
async def test_a_refusal_says_which_claim_is_wrong(name: str, says: str) -> None:
    unsigned = raw({"alg": "HS256"}, claims(NOW, **REFUSED[name])).rpartition(".")[0]
    token = f"{unsigned}.{hs256(unsigned, SECRET.encode())}"
    with pytest.raises(Unauthorized, match=f"^{re.escape(says)}$"):
        await verifier().caller(token)


async def test_infinite_times_and_broken_json_are_refused_with_a_sound_signature() -> None:
    for body in (
        b'{"sub": "a", "exp": 1e999}',
        b'{"sub": "a", "exp": NaN}',
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"",
    ):
        unsigned = raw({"alg": "HS256"}, body).rpartition(".")[0]
        with pytest.raises(Unauthorized):
            await verifier(issuer="", audience="").caller(f"{unsigned}.{hs256(unsigned, SECRET.encode())}")


@pytest.mark.parametrize(
    "claim",
    [
        rb'"sub": "\ud800"',
        rb'"sub": "a\u0000b"',
        rb'"sub": "a\nb"',
        rb'"sub": "   "',
        rb'"tenant": "\ud800"',
        rb'"roles": ["a\u0007"]',
        rb'"note": "\udc00"',
        rb'"note": {"deep": ["\u0000"]}',
        b'"note": 1000000000000000000000000000000',
    ],
)
async def test_claims_that_no_store_can_keep_are_refused(claim: bytes) -> None:
    """They would stand in the run's record: half a surrogate pair there was a 500."""
    body = b'{"sub": "alice", "exp": %d, %s}' % (NOW + 600, claim)
    unsigned = raw({"alg": "HS256"}, body).rpartition(".")[0]
    with pytest.raises(Unauthorized):
        await verifier(issuer="", audience="").caller(f"{unsigned}.{hs256(unsigned, SECRET.encode())}")


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "", "HS384", "HS512", "RS256", "ES256", "EdDSA", 5, None]
)
async def test_no_other_algorithm_is_accepted(alg: Any) -> None:
    for signature in (b"", b"x" * 32):
        with pytest.raises(Unauthorized):
            await verifier().caller(raw({"alg": alg, "typ": "JWT"}, claims(NOW), signature))


async def test_a_token_without_alg_or_with_critical_extensions_is_refused() -> None:
    critical = {"alg": "HS256", "crit": ["exp"], "exp": 1}
    headers: list[Any] = [{}, critical, {"alg": "HS256", "kid": 5}, [], "HS256", None]
    for header in headers:
        unsigned = raw(header, claims(NOW)).rpartition(".")[0]
        with pytest.raises(Unauthorized):
            await verifier().caller(f"{unsigned}.{hs256(unsigned, SECRET.encode())}")


async def test_the_issuers_public_key_is_no_secret_of_hs256() -> None:
    """The confusion of algorithms: signed with what everybody knows."""
    for key in (RSA_KEY, EC_KEY):
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        unsigned = raw({"alg": "HS256"}, claims(NOW)).rpartition(".")[0]
        with pytest.raises(Unauthorized):
            await verifier().caller(f"{unsigned}.{hs256(unsigned, pem)}")


async def test_another_secret_and_a_changed_token_are_refused() -> None:
    sound = signed(claims(NOW))
    head, body, signature = sound.split(".")
    admin = raw({}, claims(NOW, scope="admin")).split(".")[1]
    other = signed(claims(NOW), SECRET + "!")
    wrong = (
        other,
        f"{head}.{admin}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        sound + "x",
        "x",
        "..",
        "",
    )
    for token in (*wrong, "a" * 20_000, sound.replace(".", "..", 1)):
        with pytest.raises(Unauthorized):
            await verifier().caller(token)


@given(st.one_of(st.text(), st.binary().map(lambda b: b.decode("latin-1"))))
async def test_whatever_is_sent_is_a_refusal(token: str) -> None:
    with pytest.raises(Unauthorized):
        await verifier().caller(token)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(claims(NOW))), JSON))
async def test_a_signed_token_with_any_claims_is_a_caller_or_a_refusal(more: dict[str, Any]) -> None:
    unsigned = raw({"alg": "HS256"}, jwt.utils.force_bytes(_json({**claims(NOW), **more}))).rpartition(".")[0]
    try:
        caller = await verifier().caller(f"{unsigned}.{hs256(unsigned, SECRET.encode())}")
    except Unauthorized:
        return
    assert caller.user_id
    assert caller.tenant_id


def _json(value: Any) -> str:
    return json.dumps(value)


def test_a_secret_that_can_be_guessed_is_refused_at_load() -> None:
    verifier(secret=SecretStr("x" * 32))
    with pytest.raises(ConfigError, match="has 31 bytes; it needs 32"):
        verifier(secret=SecretStr("x" * 31))
    with pytest.raises(ConfigError, match="jwks_url"):
        verifier(secret=SecretStr(""))


async def test_a_token_without_audience_is_for_nobody_else_where_none_is_configured() -> None:
    anybody = verifier(audience="", issuer="")
    assert (await anybody.caller(signed(claims(NOW, aud=None)))).user_id == "alice"
    with pytest.raises(Unauthorized):
        await anybody.caller(signed(claims(NOW)))
