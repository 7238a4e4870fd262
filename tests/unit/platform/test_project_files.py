"""The files of the project for its contributors: what they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from astromesh import __version__
from astromesh.cli.main import complete_app
from tests.platform.astromesh import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def test_the_workflow_calls_targets_of_the_makefile_on_every_python_of_the_classifiers() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    called = [
        step["run"].split() for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert {("make", "test"), ("make", "release")} <= {(program, target) for program, target, *_ in called}
    for _, target, *variables in called:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)
        assert set(variables) <= {"PYTHON=python${{", "matrix.python", "}}"}
    pythons = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons
    named = subprocess.run(
        ["make", "-n", "lint", "PYTHON=/opt/python3.13"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ".venv-python3.13/bin/ruff check" in named.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("actionlint", ".github/workflows/ci.yml"),
        (
            "hadolint",
            "--config",
            "docker/hadolint.yaml",
            "Dockerfile",
            "astromesh/cli/project_workflow/Dockerfile",
        ),
        ("pre-commit", "validate-config", ".pre-commit-config.yaml"),
    ],
    ids=lambda command: command[0],
)
def test_linters_of_other_projects_find_nothing(command: tuple[str, ...], tmp_path: Path) -> None:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (tmp_path / "broken").write_text("FROM x\nRUN apt-get install y\non: push\n")
    argv = [str(program), *command[1:-1], str(tmp_path / "broken")]
    refused = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode != 0, "broken" in refused.stdout + refused.stderr) == (True, True)


def test_hooks_and_templates_are_readable_and_their_programs_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "schemas"}
    assert (ROOT / "scripts" / "schemas.py").exists()
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(template.read_text())
    assert (ROOT / ".github" / "pull_request_template.md").exists()
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text()


def test_the_checksums_of_a_release_are_those_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "SHA256SUMS").write_text("old")
    assert _release().checksums(tmp_path) == f"{sha256(b'wheel').hexdigest()}  a.whl\n"


def test_a_release_calls_every_command() -> None:
    release = _release()

    def names(group: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
        for name, command in getattr(group, "commands", {}).items():
            yield " ".join((*before, name))
            yield from names(command, (*before, name))

    found = set(names(typer.main.get_command(complete_app())))
    assert found - release.groups(found) - release.called() == set()
    assert {name for name in release.called() if name in found} >= {"serve", "mcp login", "workflow repl"}


def test_the_version_has_a_place_in_the_changelog_and_the_notes() -> None:
    newest = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest[0] == __version__
    assert f" to {__version__}\n" in (ROOT / "docs" / "upgrading.md").read_text()


def _release() -> Any:
    spec = spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["release"] = module  # its dataclass looks for it there
    spec.loader.exec_module(module)
    return module
