"""Agents that run a graph of their folder: what its flags and models do inside the runtime."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.testing import ScriptedProvider, plugin_of
from tests.integration.agents_folder import manifest, runtime_of, write

#: the first node names a model of its own, the second is light, the third neither
THREE: list[dict[str, Any]] = [
    {"name": "ponder", "kind": "think", "model_override": "careful"},
    {"name": "sort", "kind": "prompt", "flags": ["lightweight"], "role": "sorter"},
    {"name": "answer", "kind": "prompt"},
]


def with_graph(folder: Path, nodes: list[dict[str, Any]], **models: str) -> Path:
    """Agent `helper` runs these nodes one after another; `models` are its roles by provider."""
    names = [node["name"] for node in nodes]
    edges = [{"from": one, "to": other} for one, other in pairwise(names)]
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "steps"}}
    (folder / "graphs").mkdir()
    graph = {**head, "spec": {"nodes": nodes, "edges": edges}}
    (folder / "graphs" / "steps.graph.yaml").write_text(yaml.safe_dump(graph))
    roles = {role: {"primary": {"provider": name, "model": "m"}} for role, name in models.items()}
    model = {"primary": {"provider": "scripted", "model": "m"}, "roles": roles}
    return write(folder, manifest(orchestration={"pattern": "graph", "graph": "steps"}, model=model))


@pytest.mark.parametrize(
    ("roles", "asked"),
    [
        ({}, ["scripted", "scripted", "scripted"]),
        ({"careful": "large"}, ["large", "scripted", "scripted"]),
        ({"careful": "large", "lightweight": "small"}, ["large", "small", "scripted"]),
    ],
)
async def test_lightweight_nodes_of_a_yaml_graph_ask_the_role_of_that_name(
    tmp_path: Path, roles: dict[str, str], asked: list[str]
) -> None:
    """LIGHTWEIGHT swaps to `model.roles.lightweight` where there is one and the node names no model."""
    order: list[str] = []

    def provider(name: str) -> ScriptedProvider:
        def say(request: Any) -> str:
            order.append(name)
            return f"{name} says"

        return ScriptedProvider(say, repeat=True, name=f"{name}/m")

    models = {name: provider(name) for name in ("scripted", "large", "small")}
    plugins = {"providers": {name: plugin_of(model) for name, model in models.items()}}
    folder = with_graph(tmp_path, THREE, **roles)
    async with runtime_of(folder, models["scripted"], plugins=plugins) as runtime:
        assert runtime.broken == {}
        answer = await runtime.run("helper", "Why?", "s")
    assert (answer.response, order) == ("scripted says", asked)
