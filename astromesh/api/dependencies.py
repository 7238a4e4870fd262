"""What a route of FastAPI declares in its `dependencies`: its scope, and whether it is audited."""

from __future__ import annotations

from typing import Any

from fastapi import Depends

from astromesh.api.auth import RequiredScope
from astromesh.api.middleware.audit import Audited


def scope(name: str, resource: str = "", *, any_resource: bool = False) -> Any:
    """See `RequiredScope`."""
    return Depends(RequiredScope(name, resource, any_resource))


def audited(action: str, *resource: str) -> Any:
    """See `Audited`; before the scope, so that refusals are noted too."""
    return Depends(Audited(action, resource))
