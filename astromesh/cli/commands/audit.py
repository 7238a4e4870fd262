"""`astromesh audit`: shows who did what. Other commands record their acts here."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from astromesh.access.audit import AuditEntry, AuditFilter, AuditLog
from astromesh.cli.options import DATA_FOLDER, Data, Json
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.types import JsonObject


def audit(
    data: Data = DATA_FOLDER,
    action: Annotated[str, typer.Option(help="Only this action, e.g. key.revoke.")] = "",
    principal: Annotated[str, typer.Option(help="Only acts of this principal.")] = "",
    object: Annotated[str, typer.Option(help="Only acts on this object.")] = "",
    tenant: Annotated[str, typer.Option(help="Only acts in this tenant.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 100,
    json: Json = False,
) -> None:
    """Show who created keys, cancelled runs, decided for runs, and saw or erased data."""
    acts = AuditLog(data).read(tenant or None, AuditFilter(action, principal, object, limit))
    if json:
        print_json(acts)
    elif acts:
        print_table(("WHEN", "WHO", "TENANT", "ACTION", "OBJECT", "OUTCOME", "DETAIL"), map(_row, acts))
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


def _row(act: JsonObject) -> tuple[str, ...]:
    when = datetime.fromtimestamp(act["at"], UTC).isoformat(" ", timespec="seconds")[:19]
    who = act["principal"] or "nobody"
    return (when, who, act["tenant"], act["action"], act["object"], act["outcome"], act["detail"])
