"""The outside: HTTP and WebSocket (api.md sections 1 and 2)."""
