"""Agents by the names under which Python imports them, as `astromesh serve MODULE:NAME` has them."""

from __future__ import annotations

import pytest

from astromesh import Agent
from astromesh.agents.agent import load_agents
from astromesh.errors import ConfigError
from astromesh.testing import ScriptedProvider

poet = Agent(ScriptedProvider(), name="poet")
critics = (Agent(ScriptedProvider(), name="mild"), Agent(ScriptedProvider(), name="strict"))
nobody: list[Agent] = []
mixed = [poet, "poet"]


def test_a_name_stands_for_an_agent_or_for_several() -> None:
    assert load_agents([f"{__name__}:critics", f"{__name__}:poet"]) == [*critics, poet]
    assert load_agents([]) == []


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (__name__, "Write MODULE:NAME"),
        (f"{__name__}:", "Write MODULE:NAME"),
        (f"{__name__}:poets", "poets' is not an agent. Did you mean `poet`"),
        (f"{__name__}:x", r"x' is not an agent. Its agents: poet\.$"),
        (f"{__name__}:nobody", "nobody' is not an agent"),
        (f"{__name__}:mixed", "mixed' is not an agent"),
        (f"{__name__}:pytest", "pytest' is not an agent"),
        ("nowhere_at_all:poet", "no module 'nowhere_at_all'.* folder of nowhere_at_all.py"),
        ("astromesh.nowhere.at_all:poet", "no module 'astromesh.nowhere'"),
        ("json:poet", "'json:poet' is not an agent.$"),
    ],
)
def test_what_is_no_agent_is_said(reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_agents([reference])
