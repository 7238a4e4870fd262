"""What scopes allow, and which ones a key may be given."""

from __future__ import annotations

import re

import pytest

from astromesh.access.scopes import (
    DEFAULT_SCOPES,
    SCOPES,
    limit_to_agents,
    permits,
    permits_any,
    principal_of,
    require_scope,
)
from astromesh.errors import Forbidden, InvalidInput
from astromesh.types import CallerContext


@pytest.mark.parametrize(
    ("granted", "scope", "resource", "allowed"),
    [
        ({"admin"}, "sessions:any", "", True),
        ({"agents:run"}, "agents:run", "support", True),
        ({"agents:*"}, "agents:run", "support", True),
        ({"agents:run:support"}, "agents:run", "support", True),
        ({"agents:run:support"}, "agents:run", "billing", False),
        ({"agents:run:support"}, "agents:run", "", False),
        ({"agents:read"}, "agents:run", "support", False),
        ({"sessions:*"}, "agents:run", "", False),
        ({"agents"}, "agents:run", "", False),
        (set(), "agents:run", "", False),
    ],
)
def test_scopes_cover_themselves_their_family_and_one_resource(
    granted: set[str], scope: str, resource: str, allowed: bool
) -> None:
    assert permits(frozenset(granted), scope, resource) is allowed


def test_a_scope_for_some_resource_is_not_one_for_all() -> None:
    assert permits_any({"agents:run:support"}, "agents:run")
    assert not permits_any({"agents:running"}, "agents:run")


def test_a_key_without_wishes_gets_what_an_application_needs() -> None:
    assert limit_to_agents((), ()) == frozenset(DEFAULT_SCOPES)
    assert not permits(limit_to_agents((), ()), "sessions:any")


def test_named_agents_replace_the_right_to_run_all() -> None:
    scopes = limit_to_agents(("agents:run", "agents:read"), ("support",))
    assert scopes == {"agents:read", "agents:run:support"}


@pytest.mark.parametrize("broad", [("admin",), ("agents:*",), ("admin", "agents:*")])
def test_a_scope_that_runs_every_agent_contradicts_named_agents(broad: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=f"scope {re.escape(', '.join(broad))} can run every agent"):
        limit_to_agents((*broad, "agents:read"), ("support",))


def test_a_request_without_its_scope_is_forbidden_and_says_which_it_needs() -> None:
    require_scope({"agents:run:support"}, "agents:run", "support")
    require_scope({"runs:read"}, "runs:read")
    with pytest.raises(Forbidden, match="the scope 'agents:run:billing'"):
        require_scope({"agents:run:support"}, "agents:run", "billing")
    with pytest.raises(Forbidden, match="the scope 'runs:read'"):
        require_scope({"agents:run"}, "runs:read")


def test_a_run_without_a_caller_belongs_to_the_local_one() -> None:
    assert principal_of(None) == principal_of(CallerContext())
    assert principal_of(CallerContext("ana", "acme")) == ("acme", "ana")


@pytest.mark.parametrize("scope", [*SCOPES, "sessions:*", "agents:run:support"])
def test_known_scopes_are_taken(scope: str) -> None:
    assert limit_to_agents((scope,), ()) == {scope}


@pytest.mark.parametrize("scope", ["agents:rum", "agents", "*", "agents:run:", "nothing:*", "", "Admin"])
def test_unknown_scopes_are_refused_with_the_known_ones(scope: str) -> None:
    with pytest.raises(InvalidInput, match=r"Did you mean|Known: agents:run"):
        limit_to_agents((scope,), ())
