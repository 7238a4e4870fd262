"""Every benchmark, one after the other, as one table.

    python scripts/bench.py [--quick] [--only graph,durable]

The machine, the versions and the load stand above the table. Takes about fifteen minutes; --quick a few.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import HEAD

import astromesh

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv" / "peers" / "bin" / "python"
LIBRARIES = ("fastapi", "uvicorn", "uvloop", "aiohttp", "pydantic", "orjson", "asyncpg")
RIVALS = ("agno", "langgraph", "langchain-openai", "fastapi")
#: arguments of each script, and those of a quick look
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "server": ([], ["--seconds", "2"]),
    "streams": ([], ["--rounds", "5", "--sockets", "200", "--unread", "20000"]),
    "graph": ([], []),
    "workflow": ([], []),
    "memory": (["--postgres", "start"], ["--postgres", "start", "--sizes", "2000", "--turns", "1000"]),
    "rag": (["--postgres", "start", "--chunks", "20000"], ["--chunks", "2000", "--queries", "20"]),
    "durable": ([], ["--runs", "60", "--waiting", "500"]),
    "fleet": ([], ["--runs", "400", "--queued", "10000"]),
    "overload": ([], ["--seconds", "4"]),
    "webhook": ([], ["--webhooks", "100", "--at-once", "2", "--per-second", "40"]),
}
BESIDE_PEERS = ("server", "graph")


def head() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = [
        f"astromesh {astromesh.__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"{_processor()}, {cores} cores, load {', '.join(f'{n:.1f}' for n in os.getloadavg())} at the start",
        ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
    ]
    if PEERS.exists():
        code = f"from importlib.metadata import version; print(*((n, version(n)) for n in {RIVALS}))"
        lines.append("beside " + subprocess.check_output([str(PEERS), "-c", code], text=True).strip())
    else:
        lines.append("nothing beside it: make bench installs LangGraph and AgentOS")
    return "\n".join(lines)


def _processor() -> str:
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(": ", 1)[1] for line in told if line.startswith("model name")), platform.processor()
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # the part under way ends, too
    started, failed = time.monotonic(), []
    print(f"{head()}\n\n{HEAD}", flush=True)
    for part in args.only.split(","):
        argv = [sys.executable, str(HERE / f"bench_{part}.py"), *PARTS[part][args.quick]]
        if part in BESIDE_PEERS and PEERS.exists():
            argv += ["--peers", str(PEERS)]
        if subprocess.run(argv, check=False).returncode:
            failed.append(part)
    print(f"\n{time.monotonic() - started:.0f} seconds; load {os.getloadavg()[0]:.1f} at the end")
    if failed:
        print(f"these did not end well: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
