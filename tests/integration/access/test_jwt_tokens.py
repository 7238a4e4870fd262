"""Tokens at the server: keys that an issuer lists and rotates, modes jwt and both, every bad token a 401."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import yaml
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from astromesh.access.jwt import (
    MAX_KEYS_AGE_SECONDS,
    MAX_KEYS_BYTES,
    MIN_KEYS_AGE_SECONDS,
    JwtOptions,
    JwtVerifier,
    KeySet,
)
from astromesh.access.keys import ApiKeyRequest, ApiKeyStore
from astromesh.config.folder import load
from astromesh.errors import Overloaded, Unauthorized
from astromesh.net.http import Http
from astromesh.storage.sqlite import FILE, Database
from astromesh.testing import ManualClock, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.unit.access.tokens import (
    AUDIENCE,
    EC_KEY,
    ISSUER,
    OTHER_RSA_KEY,
    RSA_KEY,
    SECRET,
    claims,
    jwk,
    raw,
    signed,
)  # fmt: skip


@dataclass
class Issuer:
    """An issuer's key endpoint."""

    keys: list[Any] = field(default_factory=list)
    status: int = 200
    asked: int = 0
    url: str = ""
    body: Any = None

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response(self.body or {"keys": self.keys}, status=self.status)


@asynccontextmanager
async def issuer(*keys: Any) -> AsyncIterator[Issuer]:
    far = Issuer(list(keys))
    app = web.Application()
    app.router.add_get("/jwks", far.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    far.url = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks"
    try:
        yield far
    finally:
        await runner.cleanup()


@asynccontextmanager
async def verifier(far: Issuer, clock: ManualClock) -> AsyncIterator[JwtVerifier]:
    async with Http() as http:
        options = JwtOptions(issuer=ISSUER, audience=AUDIENCE, jwks_url=far.url)
        yield JwtVerifier(options, KeySet(far.url, http, clock), clock)


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "algorithm"), [(RSA_KEY, "RS256"), (EC_KEY, "ES256")])
async def test_a_token_is_checked_with_the_key_it_names(key: Any, algorithm: str) -> None:
    clock = ManualClock()
    async with (
        issuer(jwk(RSA_KEY, "r"), jwk(EC_KEY, "e"), jwk(OTHER_RSA_KEY, "o")) as far,
        verifier(far, clock) as v,
    ):
        name = algorithm[0].lower()
        token = signed(claims(clock.now()), key, algorithm, kid=name)
        assert (await v.caller(token)).user_id == "alice"
        with pytest.raises(Unauthorized):  # the signature of another key
            await v.caller(signed(claims(clock.now()), OTHER_RSA_KEY, "RS256", kid="r"))
        with pytest.raises(Unauthorized):  # a shared secret where none is configured
            await v.caller(signed(claims(clock.now())))
    assert far.asked == 1


async def test_a_new_key_is_found_and_an_old_one_is_no_longer_accepted() -> None:
    clock = ManualClock()
    async with issuer(jwk(RSA_KEY, "old")) as far, verifier(far, clock) as v:
        new = signed(claims(clock.now() + 3600, iat=None), OTHER_RSA_KEY, "RS256", kid="new")
        old = signed(claims(clock.now() + 3600, iat=None), RSA_KEY, "RS256", kid="old")
        await v.caller(old)
        far.keys = [jwk(OTHER_RSA_KEY, "new")]
        clock.advance(MIN_KEYS_AGE_SECONDS)
        assert (await v.caller(new)).user_id == "alice"
        with pytest.raises(Unauthorized):
            await v.caller(old)


async def test_unknown_keys_do_not_make_us_ask_all_the_time() -> None:
    clock = ManualClock()
    async with issuer(jwk(RSA_KEY, "r")) as far, verifier(far, clock) as v:
        for asked in (1, 2):
            for number in range(20):
                with pytest.raises(Unauthorized):
                    await v.caller(signed(claims(clock.now()), OTHER_RSA_KEY, "RS256", kid=f"x{number}"))
            assert far.asked == asked
            clock.advance(MIN_KEYS_AGE_SECONDS)


async def test_a_token_that_names_no_key_is_checked_with_the_only_one_of_its_algorithm() -> None:
    clock = ManualClock()
    unnamed = {name: value for name, value in jwk(RSA_KEY, "").items() if name != "kid"}
    async with issuer(unnamed, jwk(EC_KEY, "e")) as far, verifier(far, clock) as v:
        token = signed(claims(clock.now() + 3600, iat=None), RSA_KEY, "RS256")
        assert (await v.caller(token)).user_id == "alice"
        far.keys.append(jwk(OTHER_RSA_KEY, "o"))
        clock.advance(MAX_KEYS_AGE_SECONDS)
        with pytest.raises(Unauthorized, match="does not list the key"):
            await v.caller(token)


async def test_a_key_that_is_too_short_or_private_is_left_out() -> None:
    clock = ManualClock()
    short = rsa.generate_private_key(65537, 1024)
    published = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_RSA_KEY)), "kid": "p"}
    keys = (jwk(short, "s"), published, jwk(RSA_KEY, "r"))
    async with issuer(*keys) as far, verifier(far, clock) as v:
        for name in ("s", "p"):
            with pytest.raises(Unauthorized, match="does not list the key"):
                await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid=name))
        assert (await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))).user_id == "alice"


async def test_an_issuer_that_fails_keeps_the_keys_it_had_and_one_that_never_answered_is_503() -> None:
    clock = ManualClock()
    async with issuer(jwk(RSA_KEY, "r")) as far, verifier(far, clock) as v:
        await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))
        far.status = 500
        clock.advance(MAX_KEYS_AGE_SECONDS + 1)
        assert (await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))).user_id == "alice"
        assert far.asked == 2
    async with issuer() as far, verifier(far, clock) as v:
        far.status = 404
        with pytest.raises(Overloaded):
            await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))


@pytest.mark.parametrize(
    "body",
    [
        {"keys": 5}, {"no": "keys"}, [], "x",
        {"keys": [None, 5, {}, {"kty": "RSA"}, {"kty": "oct", "k": "x"}]},
        {"keys": [{"kty": "RSA", "kid": ["r"], "n": "AQAB", "e": "AQAB"}]},
        {"keys": [{"kty": "RSA", "kid": "r", "n": "AQAB", "e": "AQAB"}]},
    ],
)  # fmt: skip
async def test_keys_that_are_none_are_left_out(body: Any) -> None:
    clock = ManualClock()
    async with issuer() as far, verifier(far, clock) as v:
        far.body = body
        with pytest.raises(Unauthorized):
            await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))


async def test_keys_for_encryption_and_for_other_algorithms_sign_nothing() -> None:
    clock = ManualClock()
    for more in ({"use": "enc"}, {"alg": "RS512"}, {"alg": "HS256"}):
        async with issuer(jwk(RSA_KEY, "r", **more)) as far, verifier(far, clock) as v:
            with pytest.raises(Unauthorized):
                await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))


async def test_keys_that_are_too_many_bytes_are_not_read() -> None:
    clock = ManualClock()
    async with issuer() as far, verifier(far, clock) as v:
        far.body = {"keys": [jwk(RSA_KEY, "r")], "more": "x" * MAX_KEYS_BYTES}
        with pytest.raises(Overloaded, match="cannot be fetched"):
            await v.caller(signed(claims(clock.now()), RSA_KEY, "RS256", kid="r"))


# -- the server ----------------------------------------------------------------------------------------------


def configured(folder: Path, mode: str, **options: str) -> Path:
    write(folder, manifest("helper"))
    spec = {"auth": {"mode": mode, "jwt": options}}
    whole = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": spec}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(whole))
    return folder


@asynccontextmanager
async def server(
    folder: Path, mode: str = "jwt", **spec: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, ManualClock]]:
    clock = ManualClock()
    configured(folder, mode, issuer=ISSUER, audience=AUDIENCE, secret_env="JWT_SECRET")
    write(folder, manifest("helper", **spec))
    runtime = runtime_of(folder, ScriptedProvider(*["fine"] * 20), env={"JWT_SECRET": SECRET}, clock=clock)
    async with client_of(runtime) as client:
        yield client, clock


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_server_checks_tokens_with_the_keys_of_its_jwks_url(tmp_path: Path) -> None:
    clock = ManualClock()
    async with issuer(jwk(RSA_KEY, "r")) as far:
        configured(tmp_path, "jwt", issuer=ISSUER, audience=AUDIENCE, jwks_url=far.url)
        async with client_of(runtime_of(tmp_path, ScriptedProvider(), clock=clock)) as client:
            for key, status in ((RSA_KEY, 200), (OTHER_RSA_KEY, 401)):
                token = signed(claims(clock.now()), key, "RS256", kid="r")
                assert (await client.get("/v1/agents", headers=bearer(token))).status_code == status


async def test_a_token_opens_what_its_scopes_say(tmp_path: Path) -> None:
    async with server(tmp_path) as (client, clock):
        body = {"query": "hi", "session_id": "s"}
        sound = bearer(signed(claims(clock.now())))
        assert (await client.post("/v1/agents/helper/run", json=body, headers=sound)).status_code == 200
        weak = bearer(signed(claims(clock.now(), scope="agents:read")))
        assert (await client.post("/v1/agents/helper/run", json=body, headers=weak)).status_code == 403
        assert (await client.post("/v1/agents/helper/run", json=body)).status_code == 401


async def test_tenants_and_subjects_of_tokens_do_not_see_each_others_sessions(tmp_path: Path) -> None:
    memory = {"conversational": {"backend": "in_memory"}}
    async with server(tmp_path, memory=memory) as (client, clock):
        scope = "agents:run sessions:read"
        tokens = {
            (tenant, sub): bearer(signed(claims(clock.now(), tenant=tenant, sub=sub, scope=scope)))
            for tenant in ("acme", "umbrella")
            for sub in ("alice", "bob")
        }
        owner = tokens["acme", "alice"]
        body = {"query": "my secret", "session_id": "s"}
        assert (await client.post("/v1/agents/helper/run", json=body, headers=owner)).status_code == 200
        seen = {
            who: (await client.get("/v1/agents/helper/sessions/s", headers=headers)).status_code
            for who, headers in tokens.items()
        }
    assert seen.pop(("acme", "alice")) == 200
    assert set(seen.values()) == {404}


async def test_no_bad_token_is_a_500_nor_is_it_shown_or_logged(tmp_path: Path) -> None:
    async with server(tmp_path, "both") as (client, clock):
        now = clock.now()
        bad = [
            *(raw({"alg": "none"}, claims(now)), signed(claims(now), SECRET + "!")),
            *(
                signed(claims(now, exp=now - 1)),
                signed(claims(now, exp=None)),
                signed(claims(now, nbf=now + 99)),
            ),
            *(signed(claims(now, aud="other")), raw({"alg": "HS256"}, b"\xff")),
            *("x.y.z", "..", "am_nope_nope", "a" * 20_000),
        ]
        with capture_logs() as logs:
            for token in bad:
                answer = await client.get("/v1/agents", headers=bearer(token))
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), token
                assert len(token) < 10 or token not in answer.text
        assert not any(len(token) > 10 and token in str(logs) for token in bad)


async def test_mode_both_takes_keys_and_tokens(tmp_path: Path) -> None:
    async with server(tmp_path, "both") as (client, clock):
        async with Database(tmp_path / "data" / FILE) as database:
            store = await ApiKeyStore.open(database, clock)
            _, key = await store.create(ApiKeyRequest("test", frozenset({"agents:read"})))
        token = signed(claims(clock.now()))
        assert (await client.get("/v1/agents", headers=bearer(token))).status_code == 200
    async with server(tmp_path, "both") as (client, _):
        assert (await client.get("/v1/agents", headers=bearer(key))).status_code == 200


@pytest.mark.parametrize(
    ("mode", "jwt", "said"),
    [
        ("jwt", {}, "needs jwks_url or secret_env"),
        ("jwt", {"secret_env": "SHORT"}, "has 5 bytes; HS256 needs at least 32"),
        ("both", {"secret_env": "MISSING"}, "MISSING is not set"),
        ("jwt", {"jwks_url": "https://x/jwks", "issuer": "i"}, "audience: required key is missing"),
        ("none", {"secret_env": "GOOD"}, "has no effect with mode: none"),
        ("api_key", {"audience": "a"}, "has no effect with mode: api_key"),
    ],
)
def test_what_cannot_protect_is_found_at_load(
    tmp_path: Path, mode: str, jwt: dict[str, str], said: str
) -> None:
    env = {"SHORT": "short", "GOOD": SECRET}
    faults = load(configured(tmp_path, mode, **jwt), env=env).faults
    assert any(said in str(fault) for fault in faults), faults
