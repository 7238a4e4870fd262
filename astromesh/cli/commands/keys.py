"""`astromesh keys`: create, list and revoke API keys; encrypt secrets for provider_credentials.yaml."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from astromesh.access.audit import AuditEntry
from astromesh.access.keys import ApiKey, ApiKeyRequest, ApiKeyStore
from astromesh.access.scopes import limit_to_agents
from astromesh.cli.commands.audit import record_shell_act
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.errors import InvalidInput
from astromesh.storage.sqlite import FILE, Database
from astromesh.telemetry.clock import SystemClock
from astromesh.workflow.credentials import encrypt_secret, new_key

#: the last second that dates have; older files may hold keys that live longer
_LAST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def key_from_options(
    name: str, scopes: Sequence[str], agents: Sequence[str], user: str, tenant: str, days: float
) -> ApiKeyRequest:
    """What the options ask for. Raises: InvalidInput: scopes that do not exist or contradict the agents."""
    return ApiKeyRequest(name, limit_to_agents(scopes, agents), user, tenant, days)


def create(data: Path, wanted: ApiKeyRequest, *, as_json: bool) -> None:
    """Prints the token, and on stderr what it is."""
    key, token = asyncio.run(_create(data, wanted))
    record_shell_act(
        data, AuditEntry("key.create", key.id, "done", " ".join(sorted(key.scopes))), key.tenant_id
    )
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
    record_shell_act(data, AuditEntry("key.revoke", key_id, "done"), asyncio.run(_revoke(data, key_id)))
    note(f"The key {key_id} is revoked; running servers refuse it within two seconds.")


def _line(key: ApiKey) -> dict[str, Any]:
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


def _row(key: ApiKey) -> tuple[str, ...]:
    line = _line(key)
    times = (
        (line[name] or "never")[:16].replace("T", " ")
        for name in ("created_at", "expires_at", "last_used_at")
    )
    return (key.id, key.name, line["state"], key.user_id, key.tenant_id, *times, ", ".join(line["scopes"]))


def _when(seconds: float) -> str | None:
    return datetime.fromtimestamp(min(seconds, _LAST), UTC).isoformat(timespec="seconds") if seconds else None


@asynccontextmanager
async def _store(data: Path) -> AsyncIterator[ApiKeyStore]:
    async with Database(data / FILE) as database:
        yield await ApiKeyStore.open(database, SystemClock())


async def _create(data: Path, wanted: ApiKeyRequest) -> tuple[ApiKey, str]:
    async with _store(data) as store:
        return await store.create(wanted)


async def _list(data: Path) -> tuple[ApiKey, ...]:
    async with _store(data) as store:
        return await store.list()


async def _revoke(data: Path, key_id: str) -> str:
    """Answers whose tenant's key it was."""
    async with _store(data) as store:
        await store.revoke(key_id)
        return next(key.tenant_id for key in await store.list() if key.id == key_id)


# `astromesh keys encrypt`: secrets for `auth: {type: encrypted}` of provider_credentials.yaml.


def encrypt(key_env: str, key_file: Path | None, *, makes_key: bool) -> None:
    """Prints the encrypted form of what is read from stdin.

    Args:
        key_env, key_file: where the key is; one of them.
        makes_key: the file does not exist yet and gets a new key.

    Raises:
        InvalidInput: there is no key, or nothing to encrypt.
    """
    key = _write_new_key(key_file) if makes_key else _read_key(key_env, key_file)
    if sys.stdin.isatty():
        note("Type the secret, then Ctrl-D.")
    text = sys.stdin.read().strip()
    if not text:
        raise InvalidInput("There is nothing to encrypt: the secret is read from stdin.")
    print(encrypt_secret(text, key))


def _write_new_key(file: Path | None) -> str:
    if file is None:
        raise InvalidInput("--new-key needs --key-file FILE, where the key is written.")
    key = new_key()
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(f"The key cannot be written to {file}: {error.strerror}.") from error
    with os.fdopen(opened, "w") as out:
        out.write(key + "\n")
    note(f"a new key is in {file}; keep it apart from the secrets")
    return key


def _read_key(variable: str, file: Path | None) -> str:
    if bool(variable) == (file is not None):
        raise InvalidInput("Name the key: either --key-env VARIABLE or --key-file FILE.")
    if file is None:
        if not os.environ.get(variable):
            raise InvalidInput(f"The environment variable {variable} is not set.")
        return os.environ[variable]
    try:
        return file.read_text()
    except OSError as error:
        raise InvalidInput(f"The key file {file} cannot be read: {error.strerror}.") from error
