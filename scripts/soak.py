"""Runs of every kind against a real server, twenty thousand unless told: what grows, and by how much.

    python scripts/soak.py [--runs 20000] [--minutes 30] [--rounds 40]

A sixth of the runs each: plain, two tool rounds, an event stream, a stream whose client goes away, one that
is cancelled, a WebSocket. Between rounds nothing runs, and the server's memory, files, tasks and the lag of
its loop are noted. Ends with 1 when memory over the second half, files or tasks grow, and when the time is
over before half of the runs are done.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import HEAD, Figure, show  # noqa: E402 (the folders are not on the path before)

from tests.platform.soak import Sample, Soak, complaints, grown, settled, slope  # noqa: E402


async def soak(home: Path, runs: int, rounds: int, minutes: float) -> list[Sample]:
    started, samples = time.monotonic(), []
    subject = Soak(home)
    async with subject.running() as http:
        while subject.runs < runs and time.monotonic() - started < minutes * 60:
            samples.append(await subject.round(http, min(max(1, runs // rounds), runs - subject.runs)))
            last = samples[-1]
            said = (
                f"{last.runs:6} runs {time.monotonic() - started:6.0f} s {last.resident / 2**20:8.1f} MiB"
                f" {last.files:4} files {last.tasks:4} tasks   lag p99 {last.lag * 1000:6.1f} ms"
            )
            print(said, file=sys.stderr, flush=True)
    return samples


def report(samples: list[Sample], runs: int, seconds: float) -> list[str]:
    last, half = samples[-1], settled(samples)
    figures = (
        Figure("soak", "runs", last.runs, "runs", None, f"{runs:,}"),
        Figure("soak", "runs per second, counting included", last.runs / seconds, "runs/s"),
        Figure("soak", "memory at the end", last.resident / 2**20, "MiB", samples[0].resident / 2**20),
        Figure("soak", "each run leaves behind, second half", slope(half), "bytes", None, "about 0"),
        Figure(
            "soak", "open files more than early on", grown(samples, lambda s: s.files), "files", None, "0"
        ),
        Figure("soak", "tasks more than early on", grown(samples, lambda s: s.tasks), "tasks", None, "0"),
        Figure(
            "soak",
            "lag of the loop, worst p99 of a round",
            max(s.lag for s in half) * 1000,
            "ms",
            None,
            "< 50",
        ),
    )
    print(HEAD)
    for figure in figures:
        show(figure)
    short = [f"only {last.runs} of {runs} runs in the time"] if last.runs < runs / 2 else []
    return complaints(samples) + short


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=30.0)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        samples = asyncio.run(soak(Path(home), args.runs, args.rounds, args.minutes))
    if not samples:
        raise SystemExit("no round was finished in the time")
    found = report(samples, args.runs, time.monotonic() - started)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
