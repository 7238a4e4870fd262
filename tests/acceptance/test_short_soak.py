"""R13 in short: a few hundred runs of every kind leave no task and no file behind (`make soak`: 20,000)."""

from __future__ import annotations

from pathlib import Path

from tests.platform.soak import Bounds, Soak, complaints

RUNS, ROUNDS = 240, 8
#: bytes; the records that are kept of the last runs are still filling up
PER_RUN = 128 * 1024


async def test_runs_that_end_or_are_cut_or_cancelled_leave_nothing_behind(tmp_path: Path):
    soak = Soak(tmp_path)
    async with soak.running() as http:
        samples = [await soak.round(http, RUNS // ROUNDS) for _ in range(ROUNDS)]
    assert soak.runs == RUNS
    # a leak of one for each run of a kind would be over twenty; connections come and go meanwhile
    assert complaints(samples, Bounds(PER_RUN, files=16, tasks=12)) == []
    assert soak.server.network_attempts() == []
