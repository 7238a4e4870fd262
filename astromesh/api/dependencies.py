"""What FastAPI routes declare: their scope, whether they are audited, and parameters that several share."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from fastapi import Depends, Header, Query, Request

from astromesh.api.auth import RequiredScope
from astromesh.api.middleware.audit import Audited
from astromesh.api.requests import MAX_SEQ
from astromesh.errors import InvalidCursor
from astromesh.types import JsonObject

Item = TypeVar("Item")
Numbers = TypeVar("Numbers", bound=tuple[float, ...])
_MARK_BYTES = 6
#: where a page has the place behind it, by the parameter that takes the place
_NEXT = {"cursor": "nextCursor", "pageToken": "nextPageToken"}
After = Annotated[
    str,
    Query(description="`next` of the page before.", json_schema_extra={"pattern": "^[A-Za-z0-9_-]*$"}),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
#: of lists that are long only where a program makes them so
LongLimit = Annotated[int, Query(ge=1, le=10_000)]
LastEventId = Annotated[int, Header(ge=0, le=MAX_SEQ, description="Resume after this event.")]


class Cursor(NamedTuple):
    """A place in a list.

    Args:
        path: of the list.
        after: the key of the last item of the page before; empty: there is none.
    """

    path: str
    after: str = ""

    @property
    def number(self) -> int:
        """The key of a list whose items have numbers; 0: there is none. Raises: InvalidCursor: it is none."""
        return self.numbers(lambda text: (int(text),))[0] if self.after else 0

    def numbers(self, parse: Callable[[str], Numbers]) -> Numbers:
        """Returns the key of a list whose items are ordered by numbers.

        Raises: InvalidCursor: `parse` refuses it, or it has a number that no store has.
        """
        with suppress(ValueError):
            key = parse(self.after)
            if all(abs(one) <= MAX_SEQ for one in key):
                return key
        raise _no_place(self.after, "after")

    def next(self, key: str | int | None) -> str | None:
        """Returns `after` of the next page. Args: key: of the last item of this page; None: there is none."""
        if key is None:
            return None
        place = str(key).encode()
        return urlsafe_b64encode(_mark(self.path, place) + place).decode().rstrip("=")

    def page(
        self, found: Sequence[Item], limit: int, key: Callable[[Item], str | int]
    ) -> tuple[Sequence[Item], str | None]:
        """Returns the items of a page, and `after` of the next page.

        Args:
            found: the items behind this place, in their order; more than `limit` if there is a next page.
        """
        listed = found[:limit]
        return listed, self.next(key(listed[-1]) if len(found) > limit else None)

    @classmethod
    def of(cls, path: str, text: str, param: str = "after") -> Self:
        """Returns a place.

        Args:
            text: `next` of the page before; empty: the beginning of the list.
            param: how the protocol names it.

        Raises: InvalidCursor: this list has not given it.
        """
        if not text:
            return cls(path)
        with suppress(ValueError):
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            mark, place = data[:_MARK_BYTES], data[_MARK_BYTES:]
            if mark == _mark(path, place) and b"\0" not in place:  # PostgreSQL has no text with it
                return cls(path, place.decode())
        raise _no_place(text, param)


def _no_place(text: str, param: str) -> InvalidCursor:
    return InvalidCursor(
        f"{param}: {text[:64]!r} is not a place in this list. Send `{_NEXT.get(param, 'next')}` of the page "
        f"before as it is, or begin without `{param}`.",
        param=param,
    )


def _mark(path: str, place: bytes) -> bytes:
    return sha256(path.encode() + b"\0" + place).digest()[:_MARK_BYTES]


async def _cursor(request: Request, after: After = "") -> Cursor:
    return Cursor.of(request.scope["path"], after)


#: where a page of a list begins, of the query parameter `after`
PageCursor = Annotated[Cursor, Depends(_cursor)]


def page(
    items: Sequence[Item], key: Callable[[Item], str], limit: int, cursor: Cursor
) -> tuple[Sequence[Item], str | None]:
    """Returns the items of a page by their keys, and `after` of the next page.

    Args:
        key: of an item; it is unique, and orders the items.
    """
    found = sorted((one for one in items if key(one) > cursor.after), key=key)
    return cursor.page(found, limit, key)


def page_behind(
    items: Sequence[Item], key: Callable[[Item], str], limit: int, cursor: Cursor
) -> tuple[Sequence[Item], str | None]:
    """Returns what `page` does, of reports in another order than that of their keys.

    Raises: InvalidCursor: the last report of the page before was deleted.
    """
    if cursor.after:
        places = [place for place, one in enumerate(items, 1) if key(one) == cursor.after]
        if not places:
            raise InvalidCursor("after: the report was deleted. Begin without `after`.", param="after")
        items = items[places[0] :]
    return cursor.page(items, limit, key)


def steps_page(steps: Sequence[JsonObject], limit: int, cursor: Cursor) -> JsonObject:
    """Returns `steps` and `next` of a page of numbered steps, which are in order."""
    found = [one for one in steps if one["step"] > cursor.number]
    listed, more = cursor.page(found, limit, lambda one: int(one["step"]))
    return {"steps": listed, "next": more}


def scope(name: str, resource: str = "", *, any_resource: bool = False) -> Any:
    """See `RequiredScope`."""
    return Depends(RequiredScope(name, resource, any_resource))


def audited(action: str, *resource: str) -> Any:
    """See `Audited`. Declare it before the scope, so that refusals are recorded too."""
    return Depends(Audited(action, resource))
