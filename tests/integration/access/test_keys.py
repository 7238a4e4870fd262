"""API keys in a real SQLite file: made, told apart, revoked, noticed by another process's server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from astromesh.access.keys import (
    DAY_SECONDS,
    MIN_REFRESH_SECONDS,
    REFRESH_SECONDS,
    USE_INTERVAL_SECONDS,
    ApiKeyAuthenticator,
    ApiKeyRequest,
    ApiKeyStore,
    key_json,
    open_authenticator,
    token_digest,
)
from astromesh.errors import Conflict, InvalidInput, NotFound
from astromesh.storage.sqlite import Database, SqliteQueries
from astromesh.testing import ManualClock

SCOPES = frozenset({"agents:run"})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with Database(tmp_path / "astromesh.db") as opened:
        yield opened


@pytest.fixture
async def store(database: Database, clock: ManualClock) -> ApiKeyStore:
    return await ApiKeyStore.open(database, clock)


@pytest.fixture
async def keys(store: ApiKeyStore, clock: ManualClock) -> ApiKeyAuthenticator:
    return ApiKeyAuthenticator(store, clock)


# -- making --------------------------------------------------------------------------------------------------


async def test_a_token_authenticates_as_its_principal(store: ApiKeyStore, keys: ApiKeyAuthenticator) -> None:
    key, token = await store.create(ApiKeyRequest("ci", SCOPES, user_id="ana", tenant_id="acme"))
    await keys.refresh()
    caller = await keys.authenticate(token)
    assert caller is not None
    assert (caller.user_id, caller.tenant_id, caller.scopes) == ("ana", "acme", SCOPES)
    assert caller.metadata == {"key_id": key.id, "key": "ci"}


async def test_keys_without_a_user_are_principals_by_their_names(
    store: ApiKeyStore, keys: ApiKeyAuthenticator
) -> None:
    """So a new key finds the sessions of the one that it replaces; of another tenant it is another one."""
    requests = [
        ApiKeyRequest("a", SCOPES), ApiKeyRequest("a", SCOPES), ApiKeyRequest("b", SCOPES),
        ApiKeyRequest("a", SCOPES, tenant_id="other"), ApiKeyRequest("a", SCOPES, user_id="ann"),
    ]  # fmt: skip
    tokens = [(await store.create(request))[1] for request in requests]
    await keys.refresh()
    callers = [await keys.authenticate(token) for token in tokens]
    who = [(caller.tenant_id, caller.user_id) for caller in callers if caller]
    assert who[0] == who[1]
    assert len(set(who)) == 4


async def test_a_key_that_replaces_one_of_an_earlier_version_has_its_principal(
    store: ApiKeyStore, database: Database
) -> None:
    """In those versions the principal was the key's id, and it owns sessions."""
    old, _ = await store.create(ApiKeyRequest("shop", SCOPES))
    by_id = f"key:{old.id}"
    aged = SqliteQueries(database, {"age": "UPDATE api_keys SET user_id = ?"})
    await aged.write("age", by_id)
    await store.revoke(old.id)
    new, _ = await store.create(ApiKeyRequest("shop", SCOPES))
    newest, _ = await store.create(ApiKeyRequest("shop", SCOPES))
    assert (new.user_id, newest.user_id) == (by_id, by_id)


async def test_tokens_are_long_and_all_different(store: ApiKeyStore) -> None:
    tokens = {(await store.create(ApiKeyRequest("a", SCOPES)))[1] for _ in range(50)}
    assert len({token.split("_")[2] for token in tokens}) == 50
    assert all(len(token.split("_")[2]) == 43 for token in tokens)


async def test_the_secret_is_neither_in_the_file_nor_in_a_repr(
    store: ApiKeyStore, database: Database, tmp_path: Path
) -> None:
    key, token = await store.create(ApiKeyRequest("ci", SCOPES))
    secret = token.split("_")[2].encode()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert key.id.encode() in content
    assert secret not in content
    assert repr(key.digest) not in repr(key)
    assert secret not in repr(key).encode()


@pytest.mark.parametrize(
    "wrong",
    [
        ApiKeyRequest("", SCOPES),
        ApiKeyRequest(" ", SCOPES),
        ApiKeyRequest("a", frozenset()),
        ApiKeyRequest("a", SCOPES, days=-1),
        ApiKeyRequest("a\x1b[2J", SCOPES),
        ApiKeyRequest("a", SCOPES, user_id="a\x1fb"),
        ApiKeyRequest("a", SCOPES, tenant_id="a\x9b2J"),
    ],
)
async def test_a_key_needs_a_name_a_scope_and_a_future(store: ApiKeyStore, wrong: ApiKeyRequest) -> None:
    with pytest.raises(InvalidInput):
        await store.create(wrong)
    assert await store.list() == ()


# -- telling apart -------------------------------------------------------------------------------------------


async def test_every_changed_character_makes_a_token_wrong(
    store: ApiKeyStore, keys: ApiKeyAuthenticator
) -> None:
    _, token = await store.create(ApiKeyRequest("ci", SCOPES))
    await keys.refresh()
    for position, letter in enumerate(token):
        wrong = token[:position] + ("x" if letter != "x" else "y") + token[position + 1 :]
        assert await keys.authenticate(wrong) is None


@pytest.mark.parametrize(
    "junk", ["", "am", "am_", "am__", "am_x_", "_", "xx_a_b", "é" * 50, "\x00", "a" * 100_000]
)
async def test_junk_is_no_key(store: ApiKeyStore, keys: ApiKeyAuthenticator, junk: str) -> None:
    _, token = await store.create(ApiKeyRequest("ci", SCOPES))
    await keys.refresh()
    assert await keys.authenticate(junk) is None
    assert await keys.authenticate(token + junk if junk else token[:-1]) is None


async def test_the_secret_of_one_key_does_not_open_another(
    store: ApiKeyStore, keys: ApiKeyAuthenticator
) -> None:
    (_, one), (_, other) = [await store.create(ApiKeyRequest("a", SCOPES)) for _ in range(2)]
    await keys.refresh()
    assert await keys.authenticate("_".join([*one.split("_")[:2], other.split("_")[2]])) is None


async def test_a_key_ends_at_its_expiry(
    store: ApiKeyStore, keys: ApiKeyAuthenticator, clock: ManualClock
) -> None:
    key, token = await store.create(ApiKeyRequest("ci", SCOPES, days=1))
    await keys.refresh()
    clock.advance(DAY_SECONDS - 1)
    assert await keys.authenticate(token) is not None
    clock.advance(1)
    assert await keys.authenticate(token) is None
    assert key.state(clock.now()) == "expired"


# -- revoking ------------------------------------------------------------------------------------------------


async def test_a_revoked_key_is_wrong_after_the_next_look(
    store: ApiKeyStore, keys: ApiKeyAuthenticator
) -> None:
    key, token = await store.create(ApiKeyRequest("ci", SCOPES))
    await keys.refresh()
    await store.revoke(key.id)
    await keys.refresh()
    assert await keys.authenticate(token) is None
    assert (await store.list())[0].state(0) == "revoked"


async def test_a_server_that_starts_later_does_not_know_revoked_keys(
    store: ApiKeyStore, clock: ManualClock
) -> None:
    key, token = await store.create(ApiKeyRequest("ci", SCOPES))
    await store.revoke(key.id)
    later = ApiKeyAuthenticator(store, clock)
    await later.refresh()
    assert await later.authenticate(token) is None


async def test_revoking_says_what_is_wrong(store: ApiKeyStore) -> None:
    key, _ = await store.create(ApiKeyRequest("ci", SCOPES))
    await store.revoke(key.id)
    with pytest.raises(Conflict, match="already"):
        await store.revoke(key.id)
    with pytest.raises(NotFound, match="keys list"):
        await store.revoke("nobody")


async def test_a_look_asks_only_for_what_is_new(store: ApiKeyStore) -> None:
    first, _ = await store.create(ApiKeyRequest("a", SCOPES))
    seen = (await store.changed_since(0))[-1].change
    assert await store.changed_since(seen) == ()
    second, _ = await store.create(ApiKeyRequest("b", SCOPES))
    await store.revoke(first.id)
    assert [key.id for key in await store.changed_since(seen)] == [second.id, first.id]


# -- a running server ----------------------------------------------------------------------------------------

IN_ANOTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from astromesh.telemetry.clock import SystemClock
from astromesh.access.keys import ApiKeyRequest, ApiKeyStore
from astromesh.storage.sqlite import Database, SqliteQueries

async def main():
    async with Database(Path(sys.argv[1])) as database:
        store = await ApiKeyStore.open(database, SystemClock())
        if sys.argv[2] == "create":
            print((await store.create(ApiKeyRequest("other", frozenset({"agents:run"}))))[1])
        else:
            await store.revoke(sys.argv[2])

asyncio.run(main())
"""


def elsewhere(file: Path, what: str) -> str:
    argv = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(file), what]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


async def test_creation_and_revocation_by_another_process_are_noticed(
    store: ApiKeyStore, database: Database, clock: ManualClock
) -> None:
    async with open_authenticator(store, clock) as keys:
        token = await asyncio.to_thread(elsewhere, database.path, "create")
        assert await keys.authenticate(token) is not None
        await asyncio.to_thread(elsewhere, database.path, token.split("_")[1])
        await until(clock, lambda: keys.authenticate(token), present=False)


async def until(clock: ManualClock, ask, *, present: bool) -> None:
    """Moves the time by looks until the answer is there; the database's thread needs real time."""
    async with asyncio.timeout(10):
        while (await ask() is not None) is not present:
            await clock.run_for(REFRESH_SECONDS)
            await asyncio.sleep(0.005)


async def test_new_keys_work_at_once_for_all_who_come_with_them(
    store: ApiKeyStore, keys: ApiKeyAuthenticator, clock: ManualClock
) -> None:
    token = (await store.create(ApiKeyRequest("a", SCOPES)))[1]
    assert None not in await asyncio.gather(*(keys.authenticate(token) for _ in range(20)))


async def test_unknown_keys_make_few_looks(
    store: ApiKeyStore, keys: ApiKeyAuthenticator, clock: ManualClock
) -> None:
    assert await keys.authenticate("am_nobody_x") is None
    token = (await store.create(ApiKeyRequest("a", SCOPES)))[1]
    assert await keys.authenticate(token) is None  # the last look was just now
    clock.advance(MIN_REFRESH_SECONDS)
    assert await keys.authenticate(token) is not None


async def test_a_store_that_fails_leaves_the_known_keys_in_force(
    store: ApiKeyStore, tmp_path: Path, clock: ManualClock
) -> None:
    _, token = await store.create(ApiKeyRequest("ci", SCOPES))
    async with Database(tmp_path / "astromesh.db") as closing:
        manager = open_authenticator(await ApiKeyStore.open(closing, clock), clock)
        keys = await manager.__aenter__()
    with capture_logs() as logs:
        await clock.run_for(3 * REFRESH_SECONDS)  # the database is closed: every look fails
    assert [log["event"] for log in logs] == ["keys_not_refreshed"]
    assert await keys.authenticate(token) is not None
    await manager.__aexit__(None, None, None)


async def test_use_is_noted_to_the_minute(
    store: ApiKeyStore, keys: ApiKeyAuthenticator, clock: ManualClock
) -> None:
    _, token = await store.create(ApiKeyRequest("ci", SCOPES))
    await keys.refresh()
    start = clock.now()
    for _ in range(3):
        await keys.authenticate(token)
        clock.advance(USE_INTERVAL_SECONDS / 3)
        await keys.refresh()
    assert [key.last_used_at for key in await store.list()] == [start]
    await keys.authenticate(token)
    await keys.refresh()
    assert [key.last_used_at for key in await store.list()] == [start + USE_INTERVAL_SECONDS]


async def test_a_wrong_secret_is_no_use_of_the_key(store: ApiKeyStore, keys: ApiKeyAuthenticator) -> None:
    _, token = await store.create(ApiKeyRequest("ci", SCOPES))
    await keys.refresh()
    await keys.authenticate(token + "x")
    await keys.refresh()
    assert [key.last_used_at for key in await store.list()] == [0.0]


async def test_a_key_is_shown_with_its_dates_and_its_state(
    store: ApiKeyStore, keys: ApiKeyAuthenticator, clock: ManualClock
) -> None:
    request = ApiKeyRequest("ci", frozenset({"runs:read", "agents:run"}), user_id="ana", days=1)
    made, token = await store.create(request)
    await keys.refresh()
    clock.advance(60)
    never, _ = await store.create(ApiKeyRequest("always", SCOPES))
    await keys.authenticate(token)
    await keys.refresh()
    clock.advance(60)
    await store.revoke(never.id)
    first, second = [key_json(key, clock.now()) for key in await store.list()]
    assert first == {
        "id": made.id, "name": "ci", "state": "active", "user": "ana", "tenant": "default",
        "scopes": ["agents:run", "runs:read"], "created_at": "2023-11-14T22:13:20+00:00",
        "expires_at": "2023-11-15T22:13:20+00:00", "revoked_at": None,
        "last_used_at": "2023-11-14T22:14:20+00:00",
    }  # fmt: skip
    assert (second["state"], second["user"]) == ("revoked", "key:always")
    assert (second["expires_at"], second["revoked_at"]) == (None, "2023-11-14T22:15:20+00:00")


def test_the_digest_is_sha_256_of_the_whole_token() -> None:
    assert token_digest("am_a_b").hex() == "ce66fbcbb567ca9970f9ed7cb3af38ffdb1c6393ee0eec9c0cb631bce1358a67"
