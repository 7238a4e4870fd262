"""Security headers on every answer (OWASP REST Security Cheat Sheet)."""

from __future__ import annotations

#: answers are data: no page may frame, sniff or keep them (OWASP, REST Security Cheat Sheet)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)


#: only where the route does not say it itself
_DEFAULTS: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


def add_security_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those that protect it."""
    said = dict(headers)
    return [*headers, *_HEADERS, *[pair for pair in _DEFAULTS if pair[0] not in said]]
