"""What `make mutants` changes and runs exists, and docs/mutants.md speaks of nothing else."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.platform.astromesh import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
PAGE = (ROOT / "docs" / "mutants.md").read_text()


@pytest.mark.parametrize(
    "key", ["source_paths", "only_mutate", "also_copy", "pytest_add_cli_args_test_selection"]
)
def test_everything_that_is_named_exists(key: str) -> None:
    """mutmut ends at once where a test file is gone."""
    assert [path for path in SETTINGS[key] if not any(ROOT.glob(path))] == []


def test_the_page_has_figures_of_modules_that_take_part_alone() -> None:
    mutated = {str(p.relative_to(ROOT)) for path in SETTINGS["only_mutate"] for p in ROOT.glob(path)}
    measured = re.findall(r"^\| `(astromesh/\S+)` \|", PAGE, re.M)
    assert measured
    assert len(measured) == len(set(measured))
    assert set(measured) <= mutated
