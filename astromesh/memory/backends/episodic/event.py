"""What all episodic stores share."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import InvalidInput
from astromesh.types import JsonObject


class EpisodicOptions(BaseModel):
    """Options that all episodic stores share."""

    model_config = ConfigDict(extra="forbid")

    ttl: int = Field(0, ge=0, description="Seconds until an event is deleted; 0 never.")
    keep: int = Field(1000, ge=1, description="Events kept of one session; beyond, the oldest go.")


def packed(events: Sequence[JsonObject]) -> list[str]:
    """Events as JSON.

    Raises:
        InvalidInput: a text holds half of a surrogate pair, or something that has no JSON form.
    """
    try:
        return [orjson.dumps(event).decode() for event in events]
    except orjson.JSONEncodeError as error:
        raise InvalidInput(f"An event has no JSON form: {error}") from error
