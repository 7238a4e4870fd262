"""What FastAPI routes declare: their scope, whether they are audited, and parameters that several share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Query

from astromesh.api.auth import RequiredScope
from astromesh.api.middleware.audit import Audited
from astromesh.api.requests import MAX_SEQ
from astromesh.types import JsonObject

Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=1000)]
#: of lists that are long only where a program makes them so
LongLimit = Annotated[int, Query(ge=1, le=10_000)]
After = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$", description="`next` of the page before.")]
#: of lists whose cursors are names that have no bound
LongAfter = Annotated[
    str, Query(max_length=1024, pattern=r"^[^\x00]*$", description="`next` of the page before.")
]
NextStep = Annotated[int, Query(ge=0, le=MAX_SEQ, description="`next` of the page before.")]
LastEventId = Annotated[int, Header(ge=0, le=MAX_SEQ, description="Resume after this event.")]


def page(
    items: Sequence[Item], key: Callable[[Item], str], limit: int, after: str
) -> tuple[list[Item], str | None]:
    """Returns the items of a page by their keys, and `after` of the next page.

    Args:
        key: of an item; it is unique, and orders the items.
    """
    found = sorted((one for one in items if key(one) > after), key=key)
    return found[:limit], key(found[limit - 1]) if len(found) > limit else None


def steps_page(steps: Sequence[JsonObject], limit: int, after: int) -> JsonObject:
    """Returns `steps` and `next` of a page of numbered steps, which are in order."""
    found = [one for one in steps if one["step"] > after]
    listed = found[:limit]
    return {"steps": listed, "next": listed[-1]["step"] if len(found) > limit else None}


def scope(name: str, resource: str = "", *, any_resource: bool = False) -> Any:
    """See `RequiredScope`."""
    return Depends(RequiredScope(name, resource, any_resource))


def audited(action: str, *resource: str) -> Any:
    """See `Audited`. Declare it before the scope, so that refusals are recorded too."""
    return Depends(Audited(action, resource))
