"""`callback` of agents and workflows, and the rules that callbacks of requests have, too."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field
from yarl import URL

from astromesh.config.records import Record, Secret

CallbackEvent: TypeAlias = Literal["completed", "failed", "cancelled", "waiting"]
ALL_EVENTS: tuple[CallbackEvent, ...] = ("completed", "failed", "cancelled", "waiting")
MAX_HEADERS = 16
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,4096}")
#: what the signature and the transport set
_OWN_HEADERS = ("webhook-", "host", "content-", "transfer-encoding", "connection")


def _is_header(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("must be the name of an HTTP header, at most 64 characters")
    if name.lower().startswith(_OWN_HEADERS):
        raise ValueError("is a header that the server sets")
    return name


def _is_value(value: Secret) -> Secret:
    if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
        raise ValueError("must be the value of an HTTP header, at most 4096 characters")
    return value


def is_called(url: str) -> str:
    try:
        parts = URL(url)
    except ValueError:
        parts = URL()
    if parts.scheme not in ("http", "https") or not parts.host or len(url.split()) != 1:
        raise ValueError("must be an http or https URL with a host")
    if parts.user is not None or parts.password is not None:
        raise ValueError("must have no user and password; send them in `headers`, which are stored encrypted")
    return url


CallbackHeader = Annotated[str, AfterValidator(_is_header)]
CalledUrl = Annotated[str, Field(max_length=2048), AfterValidator(is_called)]


class CallbackSpec(Record):
    """Whom the server calls when a run or Task ends or waits."""

    url: CalledUrl = Field(description="Address that is called, over http or https.")
    events: Annotated[tuple[CallbackEvent, ...], Field(min_length=1, max_length=len(ALL_EVENTS))] = Field(
        ALL_EVENTS, description="What is told."
    )
    headers: Annotated[
        dict[CallbackHeader, Annotated[Secret, AfterValidator(_is_value)]], Field(max_length=MAX_HEADERS)
    ] = Field(default_factory=dict, description="Headers of every call; their values are secret.")
