"""Builds what a release has, and tries it: `make release` (docs/operations.md, Release).

The source distribution and the wheel that is built from it go to dist/, with an SBOM (CycloneDX) of the
wheel's environment and the checksums of all. The wheel is installed into an empty environment. There every
command shows its help and does its work in new projects (`CALLS`), and servers and workers start and stop.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST, PLACE = ROOT / "dist", ROOT / "build" / "release"
UV = Path(sys.executable).parent / "uv"
#: seconds that one command, and the start of the server, may take
TIMEOUT = 120


@dataclass(frozen=True)
class Call:
    """A command, where it is called, and what must come of it."""

    words: str
    said: str = ""
    folder: str = "shop"
    code: int = 0
    typed: str = ""

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.words)


#: in this order; `shop` is a new project with an agent, `flow` one with a workflow
CALLS = (
    Call("new shop --name clerk", "clerk", folder="."),
    Call("new flow --template workflow --name triage", "triage", folder="."),
    Call("init old --name helper", "helper", folder="."),
    Call("validate", "fine"),
    Call("doctor --json", "clerk: embedded"),
    Call("schema agent", '"$schema"'),
    Call("graph clerk", "flowchart"),
    Call("migrate", "up to date"),
    Call("run clerk 'How do I add a tool?' --json", "project_tools"),
    Call("chat clerk --session s", "project_tools", typed="How do I add a tool?\n/history\n"),
    Call("tools list", "search_knowledge"),
    Call('tools call days_between \'{"start": "2026-01-01", "end": "2026-01-03"}\' --agent clerk', "2"),
    Call("rag ingest knowledge", "unchanged"),
    Call("rag query knowledge 'add a tool'", "project_tools"),
    Call("rag list knowledge --of sources", "changing-this-agent.md"),
    Call("rag delete knowledge no-document", "0 removed"),
    Call("rag eval knowledge --questions questions.txt", "questions 1"),
    Call("rag questions knowledge --agent clerk", "no question", code=2),  # no language model
    Call("keys create website", "am_"),
    Call("keys list", "website"),
    Call("keys revoke no-key", "no key", code=2),
    Call("keys encrypt --key-env ASTROMESH_NO_KEY", "ASTROMESH_NO_KEY", code=2),
    Call("audit --action key.create", "key.create"),
    Call("runs list", "completed"),
    Call("runs show run_x", "no run", code=2),
    Call("runs cancel run_x", "no run", code=2),
    Call("runs resume run_x approve", "no run", code=2),
    Call("eval run clerk", "passed"),
    Call("eval add run_x", "no run", code=2),
    Call("mcp", "astromesh[mcp]", code=2),  # the extra is not installed
    Call("mcp login no-server", "no server", code=2),
    Call("mcp logout no-server", "no server", code=2),
    Call("workflow validate triage", "fine", folder="flow"),
    Call("workflow graph triage", "flowchart", folder="flow"),
    Call('workflow run triage \'{"text": "help"}\'', "success", folder="flow"),
    Call('workflow record triage \'{"text": "help"}\' --out tape.json', "success", folder="flow"),
    Call("workflow replay triage tape.json", folder="flow"),
    Call("workflow eval triage", "passed", folder="flow"),
    Call('workflow inspect triage \'{"text": "help"}\'', folder="flow", typed="continue\n" * 9),
    Call("workflow repl triage", "support", folder="flow", typed='{"text": "help"}\n'),
    Call("drain", "No server"),
)
#: commands that serve until they are ended -> their arguments
SERVERS = {"serve": "--port 0", "dev": "--no-open --port 0", "worker": ""}
#: what the calls read in the project `shop`
FILES = {
    "questions.txt": "How do I add a tool?\n",
    "config/evals/clerk.yaml": (
        "cases:\n"
        "  - {id: tool, input: Add a tool?, assertions: [{type: contains, expected: project_tools}]}\n"
    ),
}


def finished(
    words: Sequence[object], folder: Path = ROOT, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a command without the variables of this environment's Python."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [*map(str, words)], cwd=folder, env=env, input=typed, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip


def run(words: Sequence[object], folder: Path = ROOT) -> str:
    """Runs a command and returns what it prints. Ends the script if it fails."""
    done = finished(words, folder)
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
    """Calls every command of the installed program, and starts what serves."""
    version = run([program, "--version"], PLACE).split()[-1]
    names = set()
    for words in commands(program):
        assert "Usage:" in run([program, *words, "--help"], PLACE), words
        names.add(" ".join(words))
    missing = names - groups(names) - called()
    if missing:
        sys.exit(f"CALLS of {Path(__file__).name} has no call of: {', '.join(sorted(missing))}.")
    (PLACE / "old").mkdir()
    for call in CALLS:
        try_call(program, call)
        if call.argv[0] == "new" and call.argv[1] == "shop":
            write_files(PLACE / "shop")
    for name, options in SERVERS.items():
        live = health(program, [name, *options.split()], PLACE / "shop")
        if live.get("version", version) != version:
            sys.exit(f"astromesh --version says {version}, and /health/live of {name} {live}.")
    print(f"{len(names)} commands, {len(CALLS)} calls and {len(SERVERS)} servers of astromesh {version} work")


def groups(names: set[str]) -> set[str]:
    """Returns the commands that are groups of others, except `mcp`, which also does something itself."""
    return {name for name in names if any(other.startswith(f"{name} ") for other in names)} - {"mcp"}


def called() -> set[str]:
    """Returns the commands that are called, as far as two words name one."""
    words = (call.argv for call in CALLS)
    return {" ".join(argv[:size]) for argv in words for size in (1, 2)} | SERVERS.keys()


def try_call(program: Path, call: Call) -> None:
    """Makes a call. Ends the script if something else comes of it."""
    done = finished([program, *call.argv], PLACE / call.folder, call.typed)
    said = done.stdout + done.stderr
    if done.returncode != call.code or call.said.lower() not in said.lower():
        wanted = f"{call.code} and {call.said!r}"
        sys.exit(f"`astromesh {call.words}` ended with {done.returncode}, not {wanted}:\n{said}")


def write_files(shop: Path) -> None:
    """Writes what the calls read."""
    for name, text in FILES.items():
        place = shop / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def health(program: Path, words: list[str], folder: Path) -> dict[str, object]:
    """Starts a server and returns what /health/live says; of a worker, which has no address, nothing."""
    process = subprocess.Popen(
        [str(program), *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("astromesh ")), "")
        if "listens on" not in line:
            assert "executes durable runs" in line, words
            return {}
        url = line.split()[3]
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
