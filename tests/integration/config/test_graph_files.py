"""Files of graphs are looked into when the configuration is read: by `astromesh validate`, and at serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh.cli.commands.validate import report_faults
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

HEAD = "apiVersion: astromesh/v1\nkind: Graph\nmetadata: {name: vo}\nspec:\n"
SOUND = "  nodes:\n    - {name: a, kind: prompt}\n"


def folder_of(place: Path, spec: str, **agent: Any) -> Path:
    """An agent that runs the graph `vo`, on the model that needs nothing."""
    model = {"primary": {"provider": "embedded", "model": "m"}, **agent.pop("model", {})}
    orchestration = {"pattern": "graph", "graph": "vo"}
    write(place, manifest("runs", model=model, orchestration=orchestration, **agent))
    (place / "graphs").mkdir()
    (place / "graphs" / "vo.graph.yaml").write_text(HEAD + spec)
    return place


def test_validate_finds_every_fault_of_a_graph_by_line_and_column(tmp_path, capsys):
    spec = (
        "  nodes:\n"
        "    - 5\n"
        "    - {name: a, kind: promt}\n"
        "    - name: b\n"
        "      instruction: x\n"
        "      default_next: nowhere\n"
        "      timeout: -1\n"
        "    - {name: c, kind: function, function: 'astromesh.errors:nothing'}\n"
        "    - {name: d, default_next: nowhere}\n"
        "  finalizer: gone\n"
    )
    assert report_faults(folder_of(tmp_path, spec)) == 2
    told = capsys.readouterr().out
    for line, column, words in (
        (6, 7, "must be a mapping, not 5"),
        (7, 23, "There is no kind of node 'promt'. Did you mean `prompt`?"),
        (9, 20, "unknown key `instruction`. Did you mean `instructions`?"),
        (11, 16, "timeout must be more than 0 s"),
        (12, 43, "There is no 'nothing' in the module 'astromesh.errors'"),
        (13, 31, "a transition to 'nowhere', which is not a node"),
        (14, 14, "The finalizer 'gone' is not a node"),
    ):
        (found,) = (text for text in told.splitlines() if f"vo.graph.yaml:{line}:{column}:" in text)
        assert words in found


@pytest.mark.parametrize("spec", ["  nodes: []\n", "  nodes: null\n", SOUND + "  edges: null\n"])
def test_an_empty_graph_is_a_fault(tmp_path, capsys, spec):
    assert report_faults(folder_of(tmp_path, spec)) == 2
    assert "vo.graph.yaml:" in capsys.readouterr().out


def test_tools_and_roles_that_the_agent_does_not_have_are_its_faults(tmp_path, capsys):
    spec = "  nodes:\n    - {name: a, kind: prompt, tools: [serch], model_override: carful}\n"
    tools = [{"name": "search", "type": "builtin", "builtin": "current_time"}]
    model = {"roles": {"careful": {"primary": {"provider": "embedded", "model": "m"}}}}
    folder = folder_of(tmp_path, spec, tools=tools, model=model)
    assert report_faults(folder) == 2
    told = capsys.readouterr().out
    assert "uses the tool `serch`" in told
    assert "vo.graph.yaml:6:39" in told
    assert "Did you mean `search`?" in told
    assert "uses the role `carful`" in told
    assert "Did you mean `careful`?" in told


def test_a_sound_graph_is_fine(tmp_path, capsys):
    assert report_faults(folder_of(tmp_path, SOUND)) == 0


async def test_at_serve_the_faults_of_a_graph_are_known_and_its_agent_points_there(tmp_path):
    folder = folder_of(tmp_path, "  nodes:\n    - {name: a, kind: promt}\n")
    async with runtime_of(folder, ScriptedProvider()) as runtime:
        (fault,) = runtime.broken["runs"]
    assert "the graph `vo` has faults" in str(fault)
    assert "vo.graph.yaml:6:23" in str(fault)
