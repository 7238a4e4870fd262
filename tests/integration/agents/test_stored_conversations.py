"""Conversations of agents from Python in PostgreSQL and Redis: `memory="postgres://…"`, `memory="redis://…"`."""

from __future__ import annotations

import pytest

from astromesh import Agent
from astromesh.testing import ScriptedProvider


@pytest.mark.parametrize("server", ["postgres_database", "redis_url"])
def test_a_conversation_outlives_its_program(server: str, request: pytest.FixtureRequest) -> None:
    """Another agent of the name finds the turns, in another event loop; another session does not."""
    url: str = request.getfixturevalue(server)
    first = Agent(ScriptedProvider("Hello, Ada."), name="clerk", memory=url)
    first.run_sync("I am Ada.", session_id="ada")

    model = ScriptedProvider("Ada.", "Nobody.")
    second = Agent(model, name="clerk", memory=url)
    assert second.run_sync("Who am I?", session_id="ada").output == "Ada."
    assert second.run_sync("Who am I?", session_id="eve").output == "Nobody."
    known, unknown = ([m.content for m in one.messages] for one in model.requests)
    assert known == ["I am Ada.", "Hello, Ada.", "Who am I?"]
    assert unknown == ["Who am I?"]
