"""What goes into the audit log: a route declares it as it declares its scope, the border writes it.

The line is on disk before the answer goes out; what a caller was refused is noted as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request

from astromesh.runtime.audit import AuditLog, Entry
from astromesh.types import CallerContext

_NOBODY = CallerContext(user_id="", tenant_id="")
#: characters of an object's name; callers choose it
_SHOWN = 200


@dataclass(slots=True)
class _Act:
    log: AuditLog
    action: str
    object: str
    detail: str = ""


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
        request.state.audit = _Act(request.app.state.audit, self.action, named[:_SHOWN])


def audited(action: str, *resource: str) -> Any:
    """What a route puts into its `dependencies`, before its scope: so refusals are noted too."""
    return Depends(Audited(action, resource))


def add_detail(request: Request, detail: str) -> None:
    """Says more of what is done, e.g. which way a person decided. Never content."""
    request.state.audit.detail = detail


async def noted(state: MutableMapping[str, Any], status: int) -> None:
    """Writes what a request did. Args: state: of the request. status: of its answer."""
    act: _Act = state.pop("audit")
    caller: CallerContext = state.get("caller", _NOBODY)
    await act_noted(act.log, caller, Entry(act.action, act.object, outcome_of(status), act.detail))


async def act_noted(log: AuditLog, caller: CallerContext, entry: Entry) -> None:
    """Notes what a caller did; in a thread, as it is written to disk.

    Who is nobody is only logged: it did nothing, and could fill the disk with that.
    """
    key = str((caller.metadata or {}).get("key_id", ""))
    entry = entry._replace(principal=caller.user_id, tenant=caller.tenant_id, key=key)
    await asyncio.to_thread(log.note if caller.user_id else log.say, entry)


def outcome_of(status: int) -> str:
    """`done`, `refused` or `failed`."""
    if status < 400:
        return "done"
    return "refused" if status < 500 else "failed"
