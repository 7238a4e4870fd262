"""What an idle server takes: memory, a share of a core, and how often it wakes up.

    python scripts/bench_idle.py [--config config] [--seconds 60]

Starts `astromesh serve` with the sample configuration, waits until it has come to rest, and reads /proc. A
wake-up is a voluntary switch of context of any of its threads.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from tests.platform.astromesh import ServerProcess  # noqa: E402

#: seconds after which what a start leaves behind has ended
REST_SECONDS = 10


class Use(NamedTuple):
    """What a process and its children have used so far.

    Args:
        seconds: of processor.
        wakes: voluntary switches of context.
    """

    seconds: float
    wakes: int


def use(pids: list[int]) -> Use:
    seconds, wakes = 0.0, 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            wakes += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return Use(seconds, wakes)


def family(pid: int) -> list[int]:
    """The process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def resident(pids: list[int]) -> float:
    """MiB."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=ROOT / "config")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        server = ServerProcess(Path(home), args.config, {"PYTHONPATH": ""})
        try:
            started = time.monotonic()
            server.start()
            show(Figure("idle", "sample configuration: ready after", time.monotonic() - started, "s"))
            time.sleep(REST_SECONDS)
            pids = family(server.pid)
            before, started = use(pids), time.monotonic()
            time.sleep(args.seconds)
            after, took = use(pids), time.monotonic() - started
            core = 100 * (after.seconds - before.seconds) / took
            wakes = (after.wakes - before.wakes) / took
            show(Figure("idle", "sample configuration: memory", resident(pids), "MiB", None, "≤ 90 MiB"))
            show(Figure("idle", "sample configuration: share of a core", core, "%", None, "≤ 0.2 %"))
            show(Figure("idle", "sample configuration: wake-ups", wakes, "per second", None, "≤ 10"))
        finally:
            server.close()


if __name__ == "__main__":
    main()
