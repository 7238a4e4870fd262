"""Roles of models: a name that no model has is an error before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from astromesh import build_agent
from astromesh.errors import InvalidGraph
from astromesh.graph import AutonomousNode, PromptGraph, PromptGraphEngine, PromptNode, SubgraphNode
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult
from tests.integration.agents_folder import manifest, runtime_of, write


class ModelWithRoles(ScriptedProvider):
    """A model that has another one for the role `poet`."""

    roles: Mapping[str, Any] = {"poet": None}


def line(role: str) -> PromptGraph:
    return PromptGraph("made", nodes=[PromptNode("p", model_override=role)])


NESTED = {
    "node": line,
    "subgraph": lambda role: PromptGraph("made", nodes=[SubgraphNode("s", line(role))]),
    "pool": lambda role: PromptGraph(
        "made", nodes=[AutonomousNode("a", [PromptNode("p", model_override=role)])]
    ),
}


@pytest.mark.parametrize("place", NESTED)
async def test_a_model_override_of_an_unknown_name_is_refused(place: str) -> None:
    model = ScriptedProvider("ok")
    with pytest.raises(InvalidGraph, match=r"'p': model_override: there is no role 'juge'. Did you mean"):
        await PromptGraphEngine(NESTED[place]("juge"), model).ainvoke("q")
    assert not model.requests


async def test_a_lightweight_model_of_an_unknown_name_is_refused() -> None:
    engine = PromptGraphEngine(line("planner"), ScriptedProvider("ok"), lightweight_model="tiny")
    with pytest.raises(InvalidGraph, match="lightweight_model: there is no role 'tiny'"):
        await engine.ainvoke("q")


async def test_standard_roles_and_those_of_the_model_are_known() -> None:
    for role in ("planner", "judge", "worker", "critic", "lightweight", "poet"):
        result = await PromptGraphEngine(line(role), ModelWithRoles("ok"), lightweight_model="poet").ainvoke(
            "q"
        )
        assert result.output == "ok"


async def test_a_built_agent_refuses_an_unknown_role() -> None:
    async def model(request: CompletionRequest) -> CompletionResult:
        return CompletionResult("ok")

    result = await build_agent(model, pattern=line("juge")).ainvoke("q")
    assert "there is no role 'juge'" in result.report.error


@pytest.mark.parametrize("known", [False, True])
async def test_a_graph_made_in_python_may_name_the_roles_of_its_agent(tmp_path: Path, known: bool) -> None:
    """As one from YAML: an agent without the role cannot run, and says why."""
    block: dict[str, Any] = {"primary": {"provider": "scripted", "model": "test-model"}}
    if known:
        block["roles"] = {"poet": {"primary": {"provider": "scripted", "model": "test-model"}}}
    write(tmp_path, manifest(model=block, orchestration={"pattern": "graph", "graph": "made"}))
    runtime = runtime_of(tmp_path, ScriptedProvider("ok", "ok"), graphs={"made": line("poet")})
    async with runtime as running:
        if known:
            assert (await running.run("helper", "q", "s")).response == "ok"
        else:
            assert "there is no role 'poet'" in str(running.broken["helper"][0])
