"""Hosts, origins and URLs of runtime.yaml: what is none is told at load, and not by the first run.

Each check answers its text, or raises ValueError with what is wrong and what to write. URLs may hold
passwords: no message repeats one.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import AfterValidator

from astromesh.config.fields import Secret

_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?|[\w](?:[\w-]{0,61}[\w])?"
_NAME = re.compile(rf"(?:{_LABEL})(?:\.(?:{_LABEL}))*\.?")
_NUMBERS = re.compile(r"[\d.]+")
_PORT = re.compile(r"(.+):\d+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PATH_IN_SQLITE = "sqlite:///"
_STORES = ("sqlite", "postgresql", "postgres")
_REDIS = ("redis", "rediss", "unix")


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_name(text: str) -> bool:
    """Whether a host may be called this; four numbers that are no address are none."""
    return bool(_NAME.fullmatch(text)) and not _NUMBERS.fullmatch(text)


def listening(text: str) -> str:
    """An address to listen on: a name or an IP address."""
    if _is_address(text) or _is_name(text):
        return text
    if not text:
        raise ValueError("must not be empty")
    if "://" in text:
        raise ValueError("is a URL: write the host alone, e.g. localhost")
    if text.startswith("[") and text.endswith("]"):
        raise ValueError("is an address in brackets: write it without them")
    if (port := _PORT.fullmatch(text)) and (_is_address(port[1].strip("[]")) or _is_name(port[1])):
        raise ValueError("holds a port: write the host alone, e.g. localhost")
    raise ValueError("is no host name and no IP address")


def allowed(text: str) -> str:
    """An entry of `network.allow_hosts`: a name, `*.suffix`, an address or a network."""
    entry = text.strip().lower().rstrip(".")
    if "://" not in entry and "/" in entry:
        _network(entry)
    elif entry.startswith("*."):
        if not _is_name(entry[2:]):
            raise ValueError("must have a name behind '*.', e.g. *.corp.local")
    elif "*" in entry:
        raise ValueError("may have a '*' only at its beginning and before a dot, e.g. *.corp.local")
    elif "%" in entry:
        raise ValueError("is no host name, *.suffix, address or network, e.g. wiki.local or 10.1.0.0/16")
    elif not _is_address(entry.strip("[]")):
        listening(entry)
    return text


def _network(entry: str) -> None:
    try:
        network = ip_network(entry, strict=False)
    except ValueError:
        raise ValueError("is no network: write one as ADDRESS/BITS, e.g. 10.1.0.0/16") from None
    if network.network_address != ip_address(entry.partition("/")[0]):
        raise ValueError(f"is an address within a network: write {network}, or the address alone")


def origin(text: str) -> str:
    """An entry of `api.cors_origins`, as browsers send it: `https://app.example.com`, or `*`."""
    if text in ("*", "null"):
        return text
    parts = _split(text, "must be an origin, e.g. https://app.example.com")
    if not (parts.scheme and _SCHEME.fullmatch(parts.scheme) and parts.hostname):
        raise ValueError("must be an origin, e.g. https://app.example.com")
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    port = f":{parts.port}" if parts.port not in (None, usual) else ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if text != (sent := f"{parts.scheme}://{host}{port}"):
        raise ValueError(f"is not as browsers send it: write {sent}")
    return text


def http(text: str) -> str:
    """A URL over HTTP, or nothing."""
    if not text:
        return text
    parts = _split(text, "must be a URL http://… or https://…")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL http://… or https://…")
    return text


def store(url: Secret) -> Secret:
    """`sqlite:///PATH`, `postgresql://…`, or nothing."""
    text = url.get_secret_value()
    if not text:
        return url
    parts = _split(text, "must be a URL sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    if parts.scheme not in _STORES:
        raise ValueError("must be a URL sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    if parts.scheme == "sqlite":
        if not text.startswith(_PATH_IN_SQLITE) or text == _PATH_IN_SQLITE:
            raise ValueError("must have three slashes and a path, e.g. sqlite:///.astromesh/astromesh.db")
        return url
    if not parts.path.strip("/"):
        raise ValueError("names no database: write postgresql://USER@HOST/DATABASE")
    query = dict(parse_qsl(parts.query))
    for key, least in (("pool_size", 1), ("statement_cache", 0)):
        if key in query and not (query[key].isdecimal() and int(query[key]) >= least):
            raise ValueError(f"must have a number from {least} on as {key}")
    return url


def redis(url: Secret) -> Secret:
    """`redis://HOST:PORT/NUMBER`, `rediss://…`, `unix://PATH`, or nothing."""
    text = url.get_secret_value()
    if not text:
        return url
    parts = _split(text, "must be a URL redis://HOST:PORT/NUMBER")
    if parts.scheme not in _REDIS:
        raise ValueError("must be a URL redis://HOST:PORT/NUMBER, rediss://… or unix://PATH")
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ValueError("must have a path, e.g. unix:///run/redis.sock")
    elif (number := parts.path.strip("/")) and not number.isdecimal():
        raise ValueError("must name its database by a number, e.g. redis://localhost:6379/0")
    return url


def _split(text: str, otherwise: str) -> SplitResult:
    """The parts of a URL. What the library says of a wrong one repeats it, password and all."""
    if text != text.strip() or any(sign in text for sign in "\t\r\n"):
        raise ValueError("has blanks around it or breaks within")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(otherwise) from None
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(
            "must have a number up to 65535 as its port; in a password write / ? # as %2F %3F %23"
        ) from None
    return parts


ListenHost = Annotated[str, AfterValidator(listening)]
AllowedHost = Annotated[str, AfterValidator(allowed)]
Origin = Annotated[str, AfterValidator(origin)]
HttpUrl = Annotated[str, AfterValidator(http)]
StoreUrl = Annotated[Secret, AfterValidator(store)]
RedisUrl = Annotated[Secret, AfterValidator(redis)]
