"""MCP: servers whose tools agents use (`client`, `tools`), and serving tools to others (`server`, `publish`).

The SDK (extra `mcp`) is loaded by the first configuration that names a server.
"""
