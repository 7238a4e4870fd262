"""`astromesh keys …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.options import Config, Data, Json

app = typer.Typer(no_args_is_help=True, help="API keys for 'auth: {mode: api_key}' in runtime.yaml.")


@app.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="What the key is for, for people.")],
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="What it allows; repeatable.")
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="AGENT", help="Run only these; repeatable.")
    ] = None,
    user: Annotated[str, typer.Option(metavar="ID", help="Who calls with it; default: the key itself.")] = "",
    tenant: Annotated[str, typer.Option(metavar="ID", help="Whose sessions it can reach.")] = "default",
    expires: Annotated[float, typer.Option(metavar="DAYS", min=0, max=36_500, help="0: never.")] = 0,
    config: Config = CONFIG,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Make a key; it is shown this once."""
    from astromesh.cli import keys as command

    wanted = command.wanted(name, scope or [], agent or [], user, tenant, expires)
    command.create(data, wanted, as_json=json)
    if agent:
        from astromesh.cli import strangers

        strangers.tell(config, agent)


@app.command("list")
def keys_list(data: Data = DATA, json: Json = False) -> None:
    """List the keys, without their secrets."""
    from astromesh.cli import keys as command

    command.list_keys(data, as_json=json)


@app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="As 'keys list' shows it.")], data: Data = DATA
) -> None:
    """Make a key invalid, in running servers too."""
    from astromesh.cli import keys as command

    command.revoke(data, key)


@app.command("encrypt")
def keys_encrypt(
    key_env: Annotated[str, typer.Option(metavar="VARIABLE", help="Variable that holds the key.")] = "",
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File that holds the key.")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Write a new key to that file first.")] = False,
) -> None:
    """Encrypt a secret from stdin for provider_credentials.yaml (auth.type: encrypted)."""
    from astromesh.cli import secrets as command

    command.encrypt(key_env, key_file, makes_key=new_key)
