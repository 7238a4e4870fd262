"""`docs/architecture.md` against the code: its packages, the arrows between them, and the files it names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "astromesh"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
#: what is drawn as one box: the heads of packages, and the modules at the top
GROUND = "base"


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """A name that Mermaid reserves is drawn with an underscore behind it."""
    found = re.findall(r"^    (\w+) --> (\w+)", PAGE, re.MULTILINE)
    return frozenset((source.removesuffix("_"), target.removesuffix("_")) for source, target in found)


@cache
def imports() -> frozenset[tuple[str, str]]:
    """Pairs of packages of which the first imports the second; all modules of the ground count as one."""
    found = set()
    for path in PACKAGE.rglob("*/**/*.py"):
        package = path.relative_to(PACKAGE).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("astromesh."):
                _, other, *rest = (node.module or "").split(".")
                on_ground = rest[:1] == [GROUND] or (PACKAGE / f"{other}.py").exists()
                found.add((package, GROUND if on_ground else other))
    return frozenset(found)


def test_every_package_is_drawn() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == {name for arrow in arrows() for name in arrow} - {GROUND}


def test_every_arrow_is_an_import() -> None:
    assert sorted(arrows() - imports()) == []


def test_no_import_points_up() -> None:
    below: dict[str, set[str]] = {}

    def reached(package: str) -> set[str]:
        if package not in below:
            below[package] = set()
            for source, target in arrows():
                if source == package:
                    below[package] |= {target, *reached(target)}
        return below[package]

    upward = [(source, target) for source, target in imports() if source in reached(target)]
    assert sorted(upward) == []


def test_every_module_it_names_exists() -> None:
    named = re.findall(r"`(?:astromesh/)?([a-z]+/[\w/.]+)`", PAGE)
    missing = [
        name
        for name in named
        if not any((root / name).exists() for root in (PACKAGE, ROOT, PACKAGE / "durable"))
    ]
    assert (bool(named), missing) == (True, [])
