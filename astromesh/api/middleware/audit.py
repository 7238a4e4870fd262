"""Records audited requests: a route declares its action, and the entry is on disk before the response.

Refused requests are recorded as well.
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
    #: tenant and name of the principal that this act erased
    erased: tuple[str, str] | None = None


class Audited:
    """A dependency that records a request and its outcome in the audit log.

    Args:
        action: e.g. `run.cancel`.
        resource: path parameters that name the object of the action.
    """

    def __init__(self, action: str, resource: tuple[str, ...]) -> None:
        self.action = action
        self.resource = resource

    async def __call__(self, request: Request) -> None:
        target = "/".join(request.path_params[name] for name in self.resource)
        request.state.audit = _AuditedAct(request.app.state.audit, self.action, target[:MAX_OBJECT_LENGTH])


def add_detail(request: Request, detail: str) -> None:
    """Adds a detail to the entry of a request, e.g. a person's decision. Never content."""
    request.state.audit.detail = detail


def name_object(request: Request, name: str) -> None:
    """Names the object of a request that has just made it."""
    request.state.audit.object = name


async def pseudonymise(request: Request, tenant: str, principal: str) -> None:
    """Replaces an erased principal by a pseudonym in the audit log and in the entry of this request.

    Raises:
        StoreUnavailable: the log cannot be rewritten.
    """
    act: _AuditedAct = request.state.audit
    await asyncio.to_thread(act.log.pseudonymize, tenant, principal)
    act.erased = (tenant, principal)


async def record_response(state: MutableMapping[str, Any], status: int) -> None:
    """Records a request. Args: state: the request's. status: the response's."""
    act: _AuditedAct = state.pop("audit")
    caller: CallerContext = state.get("caller", _ANONYMOUS)
    entry = AuditEntry(act.action, act.object, outcome_of(status), act.detail)
    await record_act(act.log, caller, entry, act.erased)


async def record_act(
    log: AuditLog, caller: CallerContext, entry: AuditEntry, erased: tuple[str, str] | None = None
) -> None:
    """Records what a caller did, in a thread, because it writes to disk.

    An act without a caller is only logged: it had no effect, and could fill the disk.

    Args:
        erased: tenant and name of a principal to replace by a pseudonym.
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
    """Returns `done`, `refused` or `failed`."""
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"
