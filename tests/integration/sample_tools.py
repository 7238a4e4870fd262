"""Functions that tests offer as tools."""

from __future__ import annotations


async def lookup(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for.
    """
    return f"found: {query}"


def price(item: str) -> str:
    """Says what an item costs."""
    return f"price of {item}"


def explode() -> str:
    """Fails."""
    raise RuntimeError("boom")


def novel(pages: int) -> str:
    """Tells a long story, page by page.

    Args:
        pages: how many, of 1000 characters each.
    """
    return "".join(f"{page:06d}" + "é" * 994 for page in range(pages))
