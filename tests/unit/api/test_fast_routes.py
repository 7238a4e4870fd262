"""Which requests are answered without routing, and which are left to the routes."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.api.fast_routes import agent_to_run, authorised_metrics, live, monitoring_endpoint, ready


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
    assert agent_to_run({**plain, **scope}) == agent


@pytest.mark.parametrize(
    ("scope", "answered"),
    [
        ({}, live),
        ({"path": "/health/ready"}, ready),
        ({"path": "/health/ready/"}, None),
        ({"path": "/health"}, live),
        ({"path": "/health/"}, None),
        ({"path": "/metrics"}, authorised_metrics),
        ({"path": "/metrics/"}, None),
        ({"method": "HEAD"}, None),
        ({"method": "POST"}, None),
        ({"type": "websocket"}, None),
        ({"root_path": "/behind"}, None),
    ],
)
def test_health_checks_and_metrics_are_answered_and_nothing_else_is(
    scope: dict[str, Any], answered: Any
) -> None:
    plain = {"type": "http", "method": "GET", "path": "/health/live", "root_path": ""}
    assert monitoring_endpoint({**plain, **scope}) is answered
