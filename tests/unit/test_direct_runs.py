"""Which requests are runs that need no routing, and which are left to the routes."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.api.direct import asked_agent


@pytest.mark.parametrize(
    ("scope", "agent"),
    [
        ({}, "helper"),
        ({"path": "/v1/agents/a b/run"}, "a b"),
        ({"path": "/v1/agents/run/run"}, "run"),
        ({"path": "/v1/agents//run"}, ""),
        ({"path": "/v1/agents/run"}, ""),
        ({"path": "/v1/agents/a/b/run"}, ""),
        ({"path": "/v1/agents/helper/runs"}, ""),
        ({"path": "/v1/agents/helper/run/"}, ""),
        ({"path": "/v2/agents/helper/run"}, ""),
        ({"method": "GET"}, ""),
        ({"method": "OPTIONS"}, ""),
        ({"type": "websocket"}, ""),
        ({"root_path": "/behind", "path": "/behind/v1/agents/helper/run"}, ""),
        ({"root_path": "/behind"}, ""),
    ],
)
def test_a_post_to_an_agents_run_asks_for_it_and_nothing_else_does(scope: dict[str, Any], agent: str) -> None:
    plain = {"type": "http", "method": "POST", "path": "/v1/agents/helper/run", "root_path": ""}
    assert asked_agent({**plain, **scope}) == agent
