"""Guards: rules that a client must pass before a tool's handler is called."""

from __future__ import annotations

from typing import Protocol

from astromesh.errors import ConfigError
from astromesh.mcp.server.client_context import ClientContext


class Guard(Protocol):
    """One rule."""

    def refusal(self, client: ClientContext) -> str:
        """Why this client may not, as a sentence; empty where it may."""


class RequireAuth:
    """Passes clients with a token."""

    def refusal(self, client: ClientContext) -> str:
        return "" if client.authenticated else "This tool needs a token."


class _Named:
    def __init__(self, *names: str) -> None:
        if not names or not all(names):
            raise ConfigError(f"{type(self).__name__} needs one or more names.")
        self.names = names


class HasRole(_Named):
    """Passes clients with one of these roles."""

    def refusal(self, client: ClientContext) -> str:
        if client.roles.intersection(self.names):
            return ""
        return f"This tool needs the role {' or '.join(self.names)}."


class HasAllRoles(_Named):
    """Passes clients with every one of these roles."""

    def refusal(self, client: ClientContext) -> str:
        missing = [name for name in self.names if name not in client.roles]
        return f"This tool needs the roles {', '.join(self.names)}." if missing else ""


class HasScope(_Named):
    """Passes clients with every one of these scopes."""

    def refusal(self, client: ClientContext) -> str:
        missing = [name for name in self.names if name not in client.scopes]
        return f"This tool needs the scope {' and '.join(self.names)}." if missing else ""
