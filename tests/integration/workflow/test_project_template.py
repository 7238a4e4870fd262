"""`astromesh new --template workflow`: a project that validates, runs, evaluates and packs itself at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from astromesh import __version__
from astromesh.cli.commands import new as command
from astromesh.cli.commands import validate as validating
from astromesh.cli.commands import workflow
from astromesh.cli.commands import workflow as workflow_command
from astromesh.errors import InvalidInput


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "made"
    command.new(folder, "sorter", "workflow")
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def test_it_validates_runs_and_evaluates_at_once(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a key; neither a fault nor a warning."""
    places = (project / "config", tmp_path / "data")
    capsys.readouterr()
    assert workflow_command.report_faults(places[0], "sorter", as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"faults": [], "warnings": []}
    asked = '{"text": "The site is down!"}'
    workflow_command.run("sorter", asked, *places, json=True)
    assert json.loads(capsys.readouterr().out)["output"]["team"] == "operations"
    workflow.evaluate("sorter", *places, tag="ci", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] and [case["case"] for case in told["cases"]] == ["calm", "urgent"]


def test_its_files_name_the_schemas_that_accept_them(project: Path) -> None:
    """One of them is an agent node with its agents.yaml."""
    files = list((project / "config" / "workflows" / "sorter").glob("*.yaml"))
    assert {"workflow.yaml", "agents.yaml", "providers.yaml", "tools.yaml"} <= {f.name for f in files}
    for file in files:
        schema = file.parent / file.read_text().splitlines()[0].partition("$schema=")[2]
        jsonschema_rs.validate(json.loads(schema.read_text()), yaml.safe_load(file.read_text()))
    nodes = yaml.safe_load((project / "config/workflows/sorter/workflow.yaml").read_text())["nodes"]
    assert [node["agent"] for node in nodes if node["kind"] == "agent"] == ["helper"]


def test_it_packs_the_same_bytes_for_the_same_files(project: Path) -> None:
    (project / "config/workflows/sorter/.state").mkdir()
    (project / "config/workflows/sorter/.state/left.db").write_text("of a run")
    digests = []
    for when in (1, 2):
        os.utime(project / "README.md", (when, when))
        ran = subprocess.run(
            [sys.executable, "package.py", "dist/it.zip"], cwd=project, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        digests.append(ran.stdout.split()[-1])
    assert digests[0] == digests[1]
    assert b".state" not in (project / "dist" / "it.zip").read_bytes()


def test_it_names_its_version_and_leaves_no_place_unfilled(project: Path) -> None:
    assert (project / "requirements.txt").read_text() == f"astromesh=={__version__}\n"
    for file in (f for f in project.rglob("*") if f.is_file() and "schemas" not in f.parts):
        assert "AGENT" not in file.read_text() and "AGENT" not in str(file)


def test_both_of_its_server_settings_are_sound(project: Path) -> None:
    """That of the container listens on every address, and therefore with authentication."""
    inside = yaml.safe_load((project / "docker" / "runtime.yaml").read_text())["spec"]
    assert (inside["api"]["host"], inside["auth"]["mode"]) == ("0.0.0.0", "api_key")
    (project / "config" / "runtime.yaml").write_text((project / "docker" / "runtime.yaml").read_text())
    assert validating.report_faults(project / "config", output=validating.Format.JSON) == 0


def test_a_template_or_name_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Known: agent, workflow"):
        command.new(tmp_path / "a", "", "graph")
    with pytest.raises(InvalidInput, match="is not a valid name of a workflow"):
        command.new(tmp_path / "b", "a.b", "workflow")
