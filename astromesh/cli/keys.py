"""`astromesh keys`: make, list, revoke API keys."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from astromesh.abc.clock import SystemClock
from astromesh.cli.audit import by_shell
from astromesh.cli.output import note, print_json, print_table
from astromesh.runtime.audit import Entry
from astromesh.runtime.keys import Key, KeyStore, NewKey
from astromesh.runtime.scopes import for_agents
from astromesh.storage.database import FILE, Database

#: the last second that dates have; older files may hold keys that live longer
_LAST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def wanted(
    name: str, scopes: Sequence[str], agents: Sequence[str], user: str, tenant: str, days: float
) -> NewKey:
    """What the options ask for. Raises: InvalidInput: scopes that do not exist or contradict the agents."""
    return NewKey(name, for_agents(scopes, agents), user, tenant, days)


def create(data: Path, wanted: NewKey, *, as_json: bool) -> None:
    """Prints the token, and on stderr what it is."""
    key, token = asyncio.run(_create(data, wanted))
    by_shell(data, Entry("key.create", key.id, "done", " ".join(sorted(key.scopes))), key.tenant_id)
    if as_json:
        print_json({**_line(key), "token": token})
        return
    note(f"key {key.id} ({key.name}) for {key.user_id}: {', '.join(sorted(key.scopes))}")
    print(token)
    sys.stdout.flush()
    note("Keep it now: it is not stored and cannot be shown again.", "yellow")


def list_keys(data: Path, *, as_json: bool) -> None:
    """Prints every key, revoked ones too."""
    keys = asyncio.run(_list(data))
    if as_json:
        print_json([_line(key) for key in keys])
    elif keys:
        print_table(
            ("ID", "NAME", "STATE", "USER", "TENANT", "CREATED", "EXPIRES", "LAST USED", "SCOPES"),
            map(_row, keys),
        )
    else:
        note("There are no keys; 'astromesh keys create NAME' makes one.")


def revoke(data: Path, key_id: str) -> None:
    """Makes a key invalid."""
    by_shell(data, Entry("key.revoke", key_id, "done"), asyncio.run(_revoke(data, key_id)))
    note(f"The key {key_id} is revoked; running servers refuse it within two seconds.")


def _line(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(time.time()),
        "user": key.user_id,
        "tenant": key.tenant_id,
        "scopes": sorted(key.scopes),
        "created_at": _when(key.created_at),
        "expires_at": _when(key.expires_at),
        "revoked_at": _when(key.revoked_at),
        "last_used_at": _when(key.last_used_at),
    }


def _row(key: Key) -> tuple[str, ...]:
    line = _line(key)
    times = (
        (line[name] or "never")[:16].replace("T", " ")
        for name in ("created_at", "expires_at", "last_used_at")
    )
    return (key.id, key.name, line["state"], key.user_id, key.tenant_id, *times, ", ".join(line["scopes"]))


def _when(seconds: float) -> str | None:
    return datetime.fromtimestamp(min(seconds, _LAST), UTC).isoformat(timespec="seconds") if seconds else None


@asynccontextmanager
async def _store(data: Path) -> AsyncIterator[KeyStore]:
    async with Database(data / FILE) as database:
        yield await KeyStore.open(database, SystemClock())


async def _create(data: Path, wanted: NewKey) -> tuple[Key, str]:
    async with _store(data) as store:
        return await store.create(wanted)


async def _list(data: Path) -> tuple[Key, ...]:
    async with _store(data) as store:
        return await store.list()


async def _revoke(data: Path, key_id: str) -> str:
    """Answers whose tenant's key it was."""
    async with _store(data) as store:
        await store.revoke(key_id)
        return next(key.tenant_id for key in await store.list() if key.id == key_id)
