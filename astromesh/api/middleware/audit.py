"""What goes into the audit log: a route declares it as it declares its scope, the border writes it.

The line is on disk before the answer goes out; what a caller was refused is noted as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from astromesh.access.audit import MAX_OBJECT_LENGTH, AuditEntry, AuditLog
from astromesh.types import CallerContext

_ANONYMOUS = CallerContext(user_id="", tenant_id="")


@dataclass(slots=True)
class _AuditedAct:
    log: AuditLog
    action: str
    object: str
    detail: str = ""
    #: tenant and name of whom this act has erased
    erased: tuple[str, str] | None = None


class Audited:
    """A dependency that has the outcome of a request noted.

    Args:
        action: what is done, e.g. `run.cancel`.
        resource: path parameters that name what it is done to.
    """

    def __init__(self, action: str, resource: tuple[str, ...]) -> None:
        self.action = action
        self.resource = resource

    async def __call__(self, request: Request) -> None:
        named = "/".join(request.path_params[name] for name in self.resource)
        request.state.audit = _AuditedAct(request.app.state.audit, self.action, named[:MAX_OBJECT_LENGTH])


def add_detail(request: Request, detail: str) -> None:
    """Says more of what is done, e.g. which way a person decided. Never content."""
    request.state.audit.detail = detail


async def pseudonymise(request: Request, tenant: str, principal: str) -> None:
    """Leaves a pseudonym of an erased principal in the audit log, and in the line of this act.

    Raises:
        StoreUnavailable: the log could not be rewritten.
    """
    act: _AuditedAct = request.state.audit
    await asyncio.to_thread(act.log.pseudonymize, tenant, principal)
    act.erased = (tenant, principal)


async def record_response(state: MutableMapping[str, Any], status: int) -> None:
    """Writes what a request did. Args: state: of the request. status: of its answer."""
    act: _AuditedAct = state.pop("audit")
    caller: CallerContext = state.get("caller", _ANONYMOUS)
    entry = AuditEntry(act.action, act.object, outcome_of(status), act.detail)
    await record_act(act.log, caller, entry, act.erased)


async def record_act(
    log: AuditLog, caller: CallerContext, entry: AuditEntry, erased: tuple[str, str] | None = None
) -> None:
    """Notes what a caller did; in a thread, as it is written to disk.

    Who is nobody is only logged: it did nothing, and could fill the disk with that.

    Args:
        erased: tenant and name of somebody whose name is not to be noted.
    """
    key = str((caller.metadata or {}).get("key_id", ""))
    entry = entry._replace(principal=caller.user_id, tenant=caller.tenant_id, key=key)
    await asyncio.to_thread(_write, log, entry, erased)


def _write(log: AuditLog, entry: AuditEntry, erased: tuple[str, str] | None) -> None:
    if not entry.principal:
        log.log(entry)
    else:
        log.record(entry if erased is None else log.pseudonymized_entry(entry, *erased))


def outcome_of(status: int) -> str:
    """`done`, `refused` or `failed`."""
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"
