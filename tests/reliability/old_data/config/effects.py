def charge(query: str) -> str:
    """Charges somebody."""
    return f"charged {query}"
