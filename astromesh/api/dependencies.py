"""What FastAPI routes declare: their scope, whether they are audited, and parameters that several share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Header, Query

from astromesh.api.auth import RequiredScope
from astromesh.api.middleware.audit import Audited
from astromesh.api.requests import MAX_SEQ

Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$", description="`next` of the page before.")]
LastEventId = Annotated[int, Header(ge=0, le=MAX_SEQ, description="Resume after this event.")]


def scope(name: str, resource: str = "", *, any_resource: bool = False) -> Any:
    """See `RequiredScope`."""
    return Depends(RequiredScope(name, resource, any_resource))


def audited(action: str, *resource: str) -> Any:
    """See `Audited`. Declare it before the scope, so that refusals are recorded too."""
    return Depends(Audited(action, resource))
