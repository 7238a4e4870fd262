"""`astromesh audit`: who did what; and how commands note what they do."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path

from astromesh.access.audit import AuditEntry, AuditFilter, AuditLog
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.types import JsonObject


def show(data: Path, tenant: str, wanted: tuple[str, str, str, int], *, as_json: bool) -> None:
    """Prints acts, the newest first. Args: wanted: action, principal, object, how many."""
    acts = AuditLog(data).read(tenant or None, AuditFilter(*wanted))
    if as_json:
        print_json(acts)
    elif acts:
        print_table(("WHEN", "WHO", "TENANT", "ACTION", "OBJECT", "OUTCOME", "DETAIL"), map(_row, acts))
    else:
        note("Nothing of that was noted in this data folder.")


def record_shell_act(data: Path, entry: AuditEntry, tenant: str) -> None:
    """Notes what the user of this machine's shell did."""
    try:
        AuditLog(data).append(entry._replace(principal=shell_user(), tenant=tenant))
    except OSError as error:
        note(f"This is done, but could not be noted in the audit log: {error}", "yellow")


def shell_user() -> str:
    """Who works at this machine's shell, as no principal is called."""
    try:
        return f"shell:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user without a name
        return "shell:unknown"


def _row(act: JsonObject) -> tuple[str, ...]:
    when = datetime.fromtimestamp(act["at"], UTC).isoformat(" ", timespec="seconds")[:19]
    who = act["principal"] or "nobody"
    return (when, who, act["tenant"], act["action"], act["object"], act["outcome"], act["detail"])
