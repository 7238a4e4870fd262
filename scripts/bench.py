"""Measures every part, round after round; writes docs/benchmarks.json, docs/benchmarks.md and its pictures.

    python scripts/bench.py [--quick] [--only graph,durable] [--rounds 5]

Parts with several rounds take turns, so that a machine that changes its speed hits all of them; the page has
medians. What --only leaves out keeps its figures. A part that fails keeps its old figures and is named at the
end. --quick takes about ten minutes, everything about forty.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from figures import HEAD, RECORDS, Figure, Row

import astromesh

HERE = Path(__file__).parent
FILE = HERE.parent / "docs" / "benchmarks.json"
PEERS = Path(sys.prefix) / "peers" / "bin" / "python"
LIBRARIES = ("fastapi", "uvicorn", "uvloop", "aiohttp", "pydantic", "orjson", "asyncpg")
RIVALS = ("agno", "langgraph", "langchain-openai", "fastapi")


class Part(NamedTuple):
    """What one script measures.

    Args:
        arguments: of the script.
        quick: those of a quick look.
        rounds: how often it is measured; half as often, rounded up, in a quick look.
        script: bench_SCRIPT.py, where it is not the part's name.
        beside: whether LangGraph and AgentOS take part.
    """

    arguments: str = ""
    quick: str = ""
    rounds: int = 1
    script: str = ""
    beside: bool = False


PARTS = {
    "server": Part("", "--seconds 2", 5),
    "peers": Part("--rows plain,tools,stream", "--rows plain,tools,stream --seconds 2", 1, "server", True),
    "idle": Part("--seconds 60", "--seconds 20"),
    "steps": Part("", "--runs 100 --only-shares"),
    "unused": Part("", "--seconds 2 --rounds 2"),
    "streams": Part("", "--rounds 5 --sockets 200 --unread 20000"),
    "graph": Part("", "--rounds 60", 5, beside=True),
    "workflow": Part("", "", 5),
    "durable": Part("--runs 600", "--runs 400 --waiting 2000", 5),
    "memory": Part("--postgres start", "--postgres start --sizes 2000 --turns 1000"),
    "knowledge": Part("--postgres start", "--postgres start --chunks 2000 --queries 20", 1, "rag"),
    "model": Part("--model", "--model", 1, "rag"),
    "fleet": Part("", "--runs 400 --queued 10000"),
    "overload": Part("", "--seconds 4"),
    "webhook": Part("", "--webhooks 100 --at-once 2 --per-second 40"),
}


def conditions() -> dict[str, Any]:
    """The machine and the versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
        "python": platform.python_version(),
        "astromesh": astromesh.__version__,
        "libraries": {name: version(name) for name in LIBRARIES},
    }


def rivals() -> dict[str, str]:
    """The versions of the peers; empty where they are not installed."""
    if not PEERS.exists():
        return {}
    code = f"from importlib.metadata import version; print(*(version(n) for n in {RIVALS}))"
    versions = subprocess.check_output([str(PEERS), "-c", code], text=True).split()
    return dict(zip(RIVALS, versions, strict=True))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def measured(name: str, quick: bool, records: Path) -> list[Figure] | None:
    """Returns the figures of one round of a part, None where its script fails."""
    part = PARTS[name]
    argv = [sys.executable, str(HERE / f"bench_{part.script or name}.py")]
    argv += (part.quick if quick else part.arguments).split()
    if part.beside and PEERS.exists():
        argv += ["--peers", str(PEERS)]
    records.write_text("")
    with subprocess.Popen(argv, env={**os.environ, RECORDS: str(records)}) as process:
        try:
            status = process.wait()
        except BaseException:
            process.terminate()  # it ends the servers that it has started
            raise
    lines = records.read_text().splitlines()
    return None if status else [Figure(**json.loads(line)) for line in lines]


def rounds_of(name: str, args: argparse.Namespace) -> int:
    most = PARTS[name].rounds
    return min(most, args.rounds) if args.rounds else (most + 1) // 2 if args.quick else most


class Results:
    """What the parts gave so far.

    Attributes:
        rounds: figures of each round, by part.
        failed: parts whose script failed.
        seconds: that each part took.
    """

    def __init__(self) -> None:
        self.rounds = defaultdict[str, list[list[Figure]]](list)
        self.failed = list[str]()
        self.seconds = defaultdict[str, float](float)

    def measure(self, names: list[str], args: argparse.Namespace) -> None:
        """All parts in turn, then those of several rounds again."""
        with tempfile.TemporaryDirectory() as folder:
            for nth in range(max(rounds_of(name, args) for name in names)):
                for name in names:
                    if nth < rounds_of(name, args) and name not in self.failed:
                        self._measure(name, args.quick, Path(folder) / "figures")

    def _measure(self, name: str, quick: bool, records: Path) -> None:
        started = time.monotonic()
        figures = measured(name, quick, records)
        self.seconds[name] += time.monotonic() - started
        if figures is None:
            self.failed.append(name)
        else:
            self.rounds[name].append(figures)


def rows(rounds: list[list[Figure]]) -> list[Row]:
    """One for each name, in the order of the first round that has it."""
    by_name = defaultdict[tuple[str, str], list[Figure]](list)
    for figures in rounds:
        for figure in figures:
            by_name[figure.part, figure.name].append(figure)
    return [Row.of(figures) for figures in by_name.values()]


def save(results: Results, loads: list[float]) -> None:
    """Replaces the figures of the parts that were measured."""
    stored: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    around = {**conditions(), "load": [round(load, 1) for load in sorted(loads)]}
    for name, by_round in results.rounds.items():
        if name not in results.failed:
            more = {"peers": rivals()} if PARTS[name].beside else {}
            figures = [row.record() for row in rows(by_round)]
            stored[name] = {"conditions": {**around, **more, "rounds": len(by_round)}, "figures": figures}
    parts = [f"{dumped(name)}: {laid_out(stored[name])}" for name in PARTS if name in stored]
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def laid_out(part: dict[str, Any]) -> str:
    """A line for each figure, so that a change of one is read easily."""
    figures = ",\n".join(f"  {dumped(figure)}" for figure in part["figures"])
    return f'{{"conditions": {dumped(part["conditions"])},\n "figures": [\n{figures}\n ]}}'


def dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def head() -> str:
    around, beside = conditions(), rivals()
    libraries = ", ".join(f"{name} {number}" for name, number in around["libraries"].items())
    lines = [
        f"astromesh {around['astromesh']}, Python {around['python']}, {platform.platform()}",
        f"{around['processor']}, {around['cores']} cores, load {os.getloadavg()[0]:.1f} at the start",
        libraries,
        "beside " + ", ".join(f"{name} {number}" for name, number in beside.items())
        if beside
        else "nothing beside it: make bench installs LangGraph and AgentOS",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS")
    parser.add_argument("--rounds", type=int, default=0, help="at most so many of each part")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - PARTS.keys():
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    names = args.only.split(",")
    if "peers" in names and not PEERS.exists():
        print(
            "LangGraph and AgentOS are not installed, so `peers` keeps its figures: make bench",
            file=sys.stderr,
        )
        names.remove("peers")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # the part under way ends, too
    results, loads = Results(), [os.getloadavg()[0]]
    print(f"{head()}\n\n{HEAD}", flush=True)
    try:
        results.measure(names, args)
    finally:  # what was measured counts, whatever comes in between
        save(results, [*loads, os.getloadavg()[0]])
        subprocess.run([sys.executable, str(HERE / "bench_page.py")], check=True)
    each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in results.seconds.items())
    print(f"\n{sum(results.seconds.values()):.0f} seconds ({each}); load {os.getloadavg()[0]:.1f} at the end")
    if results.failed:
        print(f"these failed and keep their old figures: {', '.join(results.failed)}", file=sys.stderr)
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
