"""Builds what a release has, and tries it: `make release` (docs/operations.md, Release).

The wheel and the source distribution go to dist/, with an SBOM (CycloneDX) of the wheel's environment and the
checksums of all. The wheel is installed into an empty environment, where every command is called, a project
is made and asked, and a server is started.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST, PLACE = ROOT / "dist", ROOT / "build" / "release"
UV = Path(sys.executable).parent / "uv"
#: seconds that one command, and the start of the server, may take
TIMEOUT = 120


def run(words: Sequence[object], folder: Path = ROOT) -> str:
    """Runs a command and returns what it prints. Ends the script if it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> Path:
    """Builds both distributions and returns the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run([UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", DIST])
    (DIST / ".gitignore").unlink(missing_ok=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def install(wheel: Path) -> Path:
    """Installs the wheel with the pinned packages into an empty environment; returns its programs."""
    shutil.rmtree(PLACE, ignore_errors=True)
    run([UV, "venv", "--quiet", "--python", sys.executable, PLACE / "venv"])
    python = PLACE / "venv" / "bin" / "python"
    pins = ROOT / "requirements" / "runtime.txt"
    run([UV, "pip", "install", "--quiet", "--python", python, "--constraints", pins, wheel])
    return python.parent


def commands(program: Path) -> Iterator[tuple[str, ...]]:
    """Yields every command of the installed program, as its help lists them."""
    listing = (
        "import typer\nfrom astromesh.cli.main import complete_app\n"
        "def names(group, before=()):\n"
        "    for name, one in getattr(group, 'commands', {}).items():\n"
        "        yield (*before, name)\n"
        "        yield from names(one, (*before, name))\n"
        "print(*(' '.join(one) for one in names(typer.main.get_command(complete_app()))), sep='\\n')\n"
    )
    for line in run([program.parent / "python", "-c", listing], PLACE).splitlines():
        yield tuple(line.split())


def smoke(program: Path) -> None:
    """Calls every command, makes a project, asks it, and starts a server."""
    version = run([program, "--version"], PLACE).split()[-1]
    count = 0
    for words in commands(program):
        assert "Usage:" in run([program, *words, "--help"], PLACE), words
        count += 1
    run([program, "new", "shop", "--name", "clerk"], PLACE)
    shop = PLACE / "shop"
    run([program, "validate"], shop)
    answer = json.loads(run([program, "run", "clerk", "How do I add a tool?", "--json"], shop))
    assert answer["response"], answer
    live = health(program, shop)
    if live.get("version") != version:
        sys.exit(f"astromesh --version says {version}, and /health/live {live}.")
    print(f"{count} commands, a project and a server of astromesh {version} work")


def health(program: Path, folder: Path) -> dict[str, object]:
    """Starts a server and returns what /health/live says."""
    process = subprocess.Popen(
        [str(program), "serve", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[3]
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health/live", timeout=TIMEOUT) as response:
                    found: dict[str, object] = json.load(response)
                    return found
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(1)
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def bill_of_materials(wheel: Path, programs: Path) -> None:
    """Writes the packages of the environment as CycloneDX."""
    name = "-".join(wheel.name.split("-")[:2])
    tool = Path(sys.executable).parent / "cyclonedx-py"
    place = DIST / f"{name}.cdx.json"
    run([tool, "environment", "--output-format", "JSON", "--output-file", place, programs / "python"])


def checksums(folder: Path) -> str:
    """Returns the lines of SHA256SUMS, as sha256sum writes them."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != "SHA256SUMS")
    return "".join(f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def main() -> None:
    wheel = build()
    programs = install(wheel)
    bill_of_materials(wheel, programs)
    smoke(programs / "astromesh")
    (DIST / "SHA256SUMS").write_text(checksums(DIST))
    print(*sorted(file.name for file in DIST.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
