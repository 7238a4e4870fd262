"""What callers say about a run, by HTTP or in Python: the limits of its metadata and tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from astromesh.errors import InvalidInput
from astromesh.runtime.records import RunRequest
from astromesh.text import SINGLE_LINE

#: keys and bytes as JSON of the metadata of a run; its tags and their characters
MAX_KEYS, MAX_BYTES, MAX_TAGS, MAX_TAG_LENGTH = 32, 4096, 16, 64
_TAG = re.compile(SINGLE_LINE)


def metadata_fault(metadata: Mapping[str, Any]) -> str:
    """Returns what is wrong with the metadata of a run; empty if nothing is."""
    if len(metadata) > MAX_KEYS:
        return f"it must have at most {MAX_KEYS} keys"
    try:
        text = orjson.dumps(dict(metadata))
    except TypeError as error:
        return f"it must be JSON: {error}"
    if len(text) > MAX_BYTES:
        return f"it must have at most {MAX_BYTES // 1024} KiB as JSON"
    if b"\\u0000" in text.replace(b"\\\\", b""):  # PostgreSQL cannot search it
        return "it must not contain NUL"
    return ""


def tags_fault(tags: Sequence[Any]) -> str:
    """Returns what is wrong with the tags of a run; empty if nothing is."""
    if len(tags) > MAX_TAGS:
        return f"there may be at most {MAX_TAGS}"
    if all(isinstance(tag, str) and len(tag) <= MAX_TAG_LENGTH and _TAG.fullmatch(tag) for tag in tags):
        return ""
    return f"each must be a text of 1 to {MAX_TAG_LENGTH} characters on one line"


def require_valid(request: RunRequest) -> None:
    """Raises: InvalidInput: the metadata or the tags of a request are not valid."""
    if request.metadata and (fault := metadata_fault(request.metadata)):
        raise InvalidInput(f"The metadata of a run is not valid: {fault}.", param="metadata")
    if request.tags and (fault := tags_fault(request.tags)):
        raise InvalidInput(f"The tags of a run are not valid: {fault}.", param="tags")
