"""ASGI middleware around every request, one module each."""
