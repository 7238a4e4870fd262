"""What webhooks hold: JSON of any shape, of which only what is as documented is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from astromesh.errors import InvalidInput

#: characters of any text that a webhook brings; messengers' own bounds are 4,096, those of captions 1,024
MOST_TEXT, MOST_NAME = 16_384, 256


def object_in(body: bytes) -> dict[str, Any]:
    """The object that a webhook is.

    Raises:
        InvalidInput: it is none.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The webhook is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidInput("The webhook is not a JSON object.")
    return found


def of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def list_of(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(data: Mapping[str, Any], key: str, most: int = MOST_TEXT) -> str:
    value = data.get(key)
    return value[:most] if isinstance(value, str) else ""


def place_of(data: Mapping[str, Any]) -> tuple[float, float] | None:
    """Latitude and longitude in degrees, where both are there."""
    place = data.get("latitude"), data.get("longitude")
    known = all(isinstance(n, int | float) and not isinstance(n, bool) for n in place)
    return place if known else None  # type: ignore[return-value]
