"""Agents whose graph has nodes with models of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh import Agent
from astromesh.errors import ConfigError
from astromesh.graph import LoopNode, PromptGraph, PromptNode
from astromesh.plugins import Plugins
from astromesh.testing import ScriptedProvider, plugin_of, record


def graph(model: object) -> PromptGraph:
    return PromptGraph("made", nodes=[PromptNode("p", model_override=model)])


async def test_a_node_of_an_agent_asks_the_model_that_it_names() -> None:
    own = ScriptedProvider("own", repeat=True)
    plugins = Plugins({"providers": {"scripted": plugin_of(own)}})
    for pattern in (graph("scripted:small"), graph(own)):
        agent = Agent(ScriptedProvider("not asked"), pattern=pattern, plugins=plugins)
        async with agent:
            assert (await agent.run("Hello")).output == "own"
    assert len(own.requests) == 2


async def test_a_test_replaces_the_models_that_nodes_name() -> None:
    """Roles of the agent, too."""
    by_role = {"poet": "openai:gpt-4o"}
    for agent in (
        Agent("openai:gpt-4o-mini", pattern=graph("openai:gpt-4o")),
        Agent("openai:gpt-4o-mini", pattern=graph("poet"), roles=by_role),
    ):
        with agent.override(model=ScriptedProvider("scripted")):
            assert (await agent.run("Hello")).output == "scripted"


async def test_a_test_replaces_the_models_that_nodes_have_as_objects() -> None:
    """Those of nodes inside nodes, too."""
    own = ScriptedProvider("not asked", repeat=True)
    loop = LoopNode("l", PromptNode("p", model_override=own), until=lambda state: True)
    for pattern in (graph(own), PromptGraph("outer", nodes=[loop])):
        agent = Agent("openai:gpt-4o-mini", pattern=pattern)
        with agent.override(model=ScriptedProvider("scripted")):
            assert (await agent.run("Hello")).output == "scripted"
    assert not own.requests


async def test_a_recording_has_the_calls_of_models_that_nodes_have_as_objects(tmp_path: Path) -> None:
    own = ScriptedProvider("own")
    agent = Agent(ScriptedProvider(), pattern=graph(own))
    for _ in range(2):
        with record(agent, tmp_path / "recording.json"):
            assert (await agent.run("Hello")).output == "own"
    assert len(own.requests) == 1


async def test_an_unknown_model_of_a_node_says_how_to_write_it() -> None:
    with pytest.raises(ConfigError, match="Write 'openai:gpt-4o'"):
        await Agent(ScriptedProvider("a"), pattern=graph("gpt-4o")).run("Hello")


async def test_the_key_of_a_nodes_model_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        await Agent(ScriptedProvider("a"), pattern=graph("openai:gpt-4o")).run("Hello")
