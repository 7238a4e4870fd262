"""docs/operations.md names every metric, configuration key, command and file as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.cli.main import complete_app
from astromesh.config.runtime import RuntimeSpec
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write(tmp_path_factory.mktemp("config"), manifest())
    with TestClient(create_app(runtime_of(folder, ScriptedProvider("ok")))) as client:
        return client.get("/metrics").text


def test_every_metric_stands_there_with_its_kind(metrics: str) -> None:
    there = dict(re.findall(r"^# TYPE (\S+) (\w+)$", metrics, re.M))
    documented = dict(re.findall(r"^\| `(astromesh_\w+)` \| (\w+) \|", PAGE, re.M))
    assert len(there) > 10
    assert documented == there


def test_every_key_of_runtime_yaml_that_is_named_exists() -> None:
    named = set(re.findall(r"spec\.(api)\.(\w+)", PAGE))
    assert named
    for section, key in named:
        block = RuntimeSpec.model_fields[section].annotation
        assert block is not None
        assert key in block.model_fields


def test_every_command_and_option_that_is_named_exists() -> None:
    group = typer.main.get_command(complete_app())
    named = set(re.findall(r"astromesh (serve|worker|keys|audit|validate|doctor|[a-z]+)\b(?= )", PAGE))
    known = set(group.commands)  # type: ignore[attr-defined]
    assert {"serve", "worker", "keys", "audit", "validate", "doctor"} <= known
    assert {name for name in named if re.search(rf"^\s*(?:\S+=\S+ )*astromesh {name} ", PAGE, re.M)} <= known


def test_every_file_that_is_named_exists() -> None:
    made = {"docker/secrets"}  # by docker/secrets.sh
    named = set(re.findall(r"\b((?:docker|scripts)/[\w./-]*\w)", PAGE))
    missing = [n for n in sorted(named) if not (ROOT / n).exists() and not any(n.startswith(m) for m in made)]
    assert named
    assert missing == []


def test_every_link_leads_to_a_file() -> None:
    for page in ("operations.md", "security.md"):
        for link in re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / page).read_text()):
            assert (Path(ROOT / "docs") / link).exists(), link
