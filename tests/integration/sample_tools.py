"""Functions that tests offer as tools."""

from __future__ import annotations


async def lookup(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for.
    """
    return f"found: {query}"


def explode() -> str:
    """Fails."""
    raise RuntimeError("boom")
