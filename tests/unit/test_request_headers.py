"""Headers of requests, read once."""

from __future__ import annotations

from starlette.types import Scope

from astromesh.api.headers import headers_of


def test_the_first_of_several_headers_of_one_name_counts() -> None:
    scope: Scope = {"headers": [(b"origin", b"first"), (b"host", b"there"), (b"origin", b"second")]}
    assert headers_of(scope) == {"host": "there", "origin": "first"}


def test_bytes_beyond_ascii_are_latin_1() -> None:
    assert headers_of({"headers": ((b"x-name", b"Andr\xe9"),)}) == {"x-name": "André"}


def test_headers_are_read_once() -> None:
    scope: Scope = {"headers": iter([(b"host", b"there")])}
    assert headers_of(scope) is headers_of(scope)
