"""MCP: a client for servers whose tools agents use, and a server for your own tools and agents."""
