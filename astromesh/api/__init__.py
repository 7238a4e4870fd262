"""HTTP and WebSocket (docs/api.md)."""
