"""The files of the project for its contributors: what they name exists."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import yaml

from tests.platform.astromesh import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def test_the_workflow_calls_targets_of_the_makefile() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    called = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert {"make test", "make release"} <= set(called)
    for command in called:
        program, target = command.split()
        assert (program, bool(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE))) == ("make", True)


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


def _release() -> Any:
    spec = spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
