"""Who calls a tool of a guarded server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astromesh.abc.tool import ToolContext
from astromesh.types import CallerContext


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The caller, as its token says; `subject` is empty for one without a token.

    Args:
        claims: all of the token's.
    """

    subject: str = ""
    tenant: str = ""
    roles: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict)

    @property
    def authenticated(self) -> bool:
        return bool(self.subject)


NOBODY = ClientContext()


@dataclass(frozen=True, slots=True)
class RequestContext(ToolContext):
    """What a handler gets in the parameter that it annotates with this class; hidden from models."""

    client: ClientContext = NOBODY


def client_of(caller: CallerContext) -> ClientContext:
    """The client that a checked token stands for."""
    return ClientContext(
        caller.user_id, caller.tenant_id, caller.roles, caller.scopes, caller.metadata.get("claims", {})
    )
