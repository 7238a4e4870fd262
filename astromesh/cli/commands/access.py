"""`astromesh keys` and `audit`: API keys, encrypted secrets, and who did what.

Other commands record their acts here.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from astromesh.access.audit import AuditEntry, AuditFilter, AuditLog
from astromesh.access.keys import ApiKey, ApiKeyRequest, ApiKeyStore, key_json
from astromesh.access.scopes import limit_to_agents
from astromesh.cli.errors import require_data_folder
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.errors import InvalidInput
from astromesh.storage.sqlite import FILE, Database
from astromesh.telemetry.clock import SystemClock
from astromesh.types import JsonObject
from astromesh.workflow.credentials import encrypt_secret
from astromesh.workflow.credentials import new_key as generate_key

#: the commands of `astromesh keys`
app = typer.Typer()


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name that tells people what the key is for.")],
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="What the key allows; repeatable.")
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="AGENT", help="Run only these agents; repeatable.")
    ] = None,
    user: Annotated[str, typer.Option(metavar="ID", help="Principal of the key; default: `key:NAME`.")] = "",
    tenant: Annotated[str, typer.Option(metavar="ID", help="Tenant of the key.")] = "default",
    expires: Annotated[
        float, typer.Option(metavar="DAYS", min=0, max=36_500, help="Lifetime; 0: forever.")
    ] = 0,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Create a key. The command shows it only once."""
    request = ApiKeyRequest(name, limit_to_agents(scope or [], agent or []), user, tenant, expires)
    key, token = asyncio.run(_create(data, request))
    scopes = sorted(key.scopes)
    record_shell_act(data, AuditEntry("key.create", key.id, "done", " ".join(scopes)), key.tenant_id)
    if json:
        print_json({**key_json(key, time.time()), "token": token})
    else:
        note(f"key {key.id} ({key.name}) for {key.user_id}: {', '.join(scopes)}")
        print(token)
        sys.stdout.flush()
        note("Store the token now: astromesh does not store it and cannot show it again.", "yellow")
    if agent:
        from astromesh.cli.commands.validate import warn_of_unknown_agents  # loads the configuration's models

        warn_of_unknown_agents(config, agent)


@app.command("list")
def list_keys(data: Data = DATA_FOLDER, json: Json = False) -> None:
    """List the keys, without their secrets."""
    keys = asyncio.run(_list(data))
    if json:
        print_json([key_json(key, time.time()) for key in keys])
    elif keys:
        print_table(
            ("ID", "NAME", "STATE", "USER", "TENANT", "CREATED", "EXPIRES", "LAST USED", "SCOPES"),
            map(_row, keys),
        )
    else:
        note("There are no keys. 'astromesh keys create NAME' creates one.")


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The id that 'keys list' shows.")],
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Make a key invalid, in running servers too."""
    record_shell_act(data, AuditEntry("key.revoke", key, "done"), asyncio.run(_revoke(data, key)))
    if json:
        print_json({"id": key, "revoked": True})
    else:
        note(f"The key {key} is revoked. Running servers refuse it within two seconds.")


@app.command()
def encrypt(
    key_env: Annotated[str, typer.Option(metavar="VARIABLE", help="Variable that holds the key.")] = "",
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File that holds the key.")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Write a new key to that file first.")] = False,
    json: Json = False,
) -> None:
    """Encrypt a secret from stdin.

    Write the result to provider_credentials.yaml of a workflow, with auth.type: encrypted.
    """
    key = _write_new_key(key_file) if new_key else _read_key(key_env, key_file)
    if sys.stdin.isatty():
        note("Type the secret, then Ctrl-D.")
    text = sys.stdin.read().strip()
    if not text:
        raise InvalidInput("There is nothing to encrypt: the command reads the secret from stdin.")
    encrypted = encrypt_secret(text, key)
    if json:
        print_json({"encrypted": encrypted})
    else:
        print(encrypted)


def _row(key: ApiKey) -> tuple[str, ...]:
    line = key_json(key, time.time())
    times = (
        (line[name] or "never")[:16].replace("T", " ")
        for name in ("created_at", "expires_at", "last_used_at")
    )
    return (key.id, key.name, line["state"], key.user_id, key.tenant_id, *times, ", ".join(line["scopes"]))


@asynccontextmanager
async def _store(data: Path) -> AsyncIterator[ApiKeyStore]:
    require_data_folder(data)
    async with Database(data / FILE) as database:
        yield await ApiKeyStore.open(database, SystemClock())


async def _create(data: Path, request: ApiKeyRequest) -> tuple[ApiKey, str]:
    async with _store(data) as store:
        return await store.create(request)


async def _list(data: Path) -> tuple[ApiKey, ...]:
    async with _store(data) as store:
        return await store.list()


async def _revoke(data: Path, key_id: str) -> str:
    """Returns the tenant of the key."""
    async with _store(data) as store:
        await store.revoke(key_id)
        return next(key.tenant_id for key in await store.list() if key.id == key_id)


def _write_new_key(file: Path | None) -> str:
    if file is None:
        raise InvalidInput("--new-key needs --key-file FILE, the file to write the key to.")
    key = generate_key()
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(f"The key cannot be written to {file}: {error.strerror}.") from error
    with os.fdopen(opened, "w") as out:
        out.write(key + "\n")
    note(f"A new key is in {file}. Store it apart from the secrets.")
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


# -- the audit log -------------------------------------------------------------------------------------------


def audit(
    data: Data = DATA_FOLDER,
    action: Annotated[str, typer.Option(metavar="ACTION", help="Only this action, e.g. key.revoke.")] = "",
    principal: Annotated[str, typer.Option(metavar="ID", help="Only acts of this principal.")] = "",
    object: Annotated[str, typer.Option(metavar="OBJECT", help="Only acts on this object.")] = "",
    tenant: Annotated[str, typer.Option(metavar="ID", help="Only acts in this tenant.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most this many, the newest.")] = 100,
    json: Json = False,
) -> None:
    """Show who did what: the audit log.

    It names who created keys, cancelled runs, decided for runs, and saw or erased data.
    """
    acts = AuditLog(data).read(tenant or None, AuditFilter(action, principal, object, limit))
    if json:
        print_json(acts)
    elif acts:
        print_table(("WHEN", "WHO", "TENANT", "ACTION", "OBJECT", "OUTCOME", "DETAIL"), map(_audit_row, acts))
    else:
        note("No entry of this data folder's audit log matches.")


def record_shell_act(data: Path, entry: AuditEntry, tenant: str) -> None:
    """Records an act of the user of this machine's shell."""
    try:
        AuditLog(data).append(entry._replace(principal=shell_user(), tenant=tenant))
    except OSError as error:
        note(f"The command succeeded, but the audit log could not record it: {error}", "yellow")


def shell_user() -> str:
    """Returns the user of this machine's shell, under a name that no principal has."""
    try:
        return f"shell:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user without a name
        return "shell:unknown"


def _audit_row(act: JsonObject) -> tuple[str, ...]:
    when = datetime.fromtimestamp(act["at"], UTC).isoformat(" ", timespec="seconds")[:19]
    who = act["principal"] or "nobody"
    return (when, who, act["tenant"], act["action"], act["object"], act["outcome"], act["detail"])
