"""Headers of requests, read once."""

from __future__ import annotations

from starlette.types import Scope

from astromesh.api.requests import headers_of


def test_the_first_of_several_headers_of_one_name_counts() -> None:
    scope: Scope = {"headers": [(b"origin", b"first"), (b"host", b"there"), (b"origin", b"second")]}
    assert headers_of(scope) == {"host": "there", "origin": "first"}


def test_the_lines_of_a_list_are_one_list() -> None:
    """RFC 9110, 5.3; what is no list stays as its first line has it."""
    lines = [
        (b"accept", b"text/html"),
        (b"host", b"a"),
        (b"accept", b""),
        (b"accept", b"a/b;q=0"),
        (b"host", b"b"),
    ]
    assert headers_of({"headers": lines}) == {"accept": "text/html, , a/b;q=0", "host": "a"}


def test_of_credentials_and_names_the_first_line_counts() -> None:
    names = (b"authorization", b"x-api-key", b"cookie", b"idempotency-key", b"traceparent", b"content-length")
    scope: Scope = {"headers": [(name, value) for value in (b"1", b"2") for name in names]}
    assert set(headers_of(scope).values()) == {"1"}


def test_bytes_beyond_ascii_are_latin_1() -> None:
    assert headers_of({"headers": ((b"x-name", b"Andr\xe9"),)}) == {"x-name": "André"}


def test_headers_are_read_once() -> None:
    scope: Scope = {"headers": iter([(b"host", b"there")])}
    assert headers_of(scope) is headers_of(scope)
