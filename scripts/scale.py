"""The arithmetic of docs/scale.md: from what a run costs to what a day of sessions needs.

python scripts/scale.py             writes the tables of docs/scale.md
python scripts/scale.py --check     reports whether they are up to date
python scripts/scale.py --measure   measures what a run costs on this machine, in a minute
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

DAY, GIB, TIB = 86_400, 1 << 30, 1 << 40


class Costs(NamedTuple):
    """What was measured (`--measure`), of a durable run with two model calls and a tool over PostgreSQL.

    Args:
        run_ms: processor time of astromesh.
        run_bytes: in the database after its end, indexes included.
        run_commits, run_wal: transactions, and bytes of the write-ahead log.
        token_bytes, token_wal, token_ms: of a token of its answer, in addition.
        queued_bytes: of a run that waits (scripts/bench_fleet.py).
    """

    run_ms: float
    run_bytes: int
    run_commits: float
    run_wal: int
    token_bytes: int
    token_wal: int
    token_ms: float
    queued_bytes: int = 1_060


class Load(NamedTuple):
    """What is assumed of the sessions."""

    runs_per_session: int = 6
    tokens_per_run: int = 300
    peak: float = 4.0
    model_seconds: float = 8.0
    kept_days: int = 30


#: the values of a measurement on two shared cores
MEASURED = Costs(3.89, 14_684, 1.8, 21_708, 252, 373, 0.0039)
LOAD = Load()
SESSIONS = (10_000, 1_000_000, 10_000_000, 100_000_000)
#: what one PostgreSQL of 16 cores with NVMe is planned with: a half of what such machines do
COMMITS_PER_SECOND, WAL_PER_SECOND, DATABASE_BYTES = 20_000, 200 << 20, 8 * TIB
#: runs at once in one process (`limits.max_concurrent_runs`), and the share of a core that is planned
SLOTS, CORE_SHARE = 128, 0.6


def run_cost(costs: Costs, load: Load) -> tuple[float, float, float]:
    """Returns the milliseconds, stored bytes and log bytes of a run with its tokens."""
    tokens = load.tokens_per_run
    return (
        costs.run_ms + tokens * costs.token_ms,
        costs.run_bytes + tokens * costs.token_bytes,
        costs.run_wal + tokens * costs.token_wal,
    )


def needs(sessions: int, costs: Costs = MEASURED, load: Load = LOAD) -> dict[str, float]:
    """Returns what so many sessions a day need."""
    milliseconds, stored, wal = run_cost(costs, load)
    runs = sessions * load.runs_per_session / DAY * load.peak
    under_way = runs * load.model_seconds
    cores = runs * milliseconds / 1000 / CORE_SHARE
    per_day = sessions * load.runs_per_session * stored
    return {
        "runs": runs,
        "under_way": under_way,
        "processes": max(cores, under_way / SLOTS, 1),
        "commits": runs * costs.run_commits,
        "wal": runs * wal,
        "stored": per_day * load.kept_days,
        "databases": max(
            runs * costs.run_commits / COMMITS_PER_SECOND,
            runs * wal / WAL_PER_SECOND,
            per_day * load.kept_days / DATABASE_BYTES,
        ),
    }


def bottleneck(found: dict[str, float]) -> str:
    """Returns what one PostgreSQL runs out of first, and how much of that it uses."""
    shares = {
        "disk": found["stored"] / DATABASE_BYTES,
        "write-ahead log": found["wal"] / WAL_PER_SECOND,
        "commits": found["commits"] / COMMITS_PER_SECOND,
    }
    name = max(shares, key=lambda one: shares[one])
    return f"{name}, {100 * shares[name]:,.1f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:" for _ in head[1:]]], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables() -> dict[str, str]:
    milliseconds, stored, wal = run_cost(MEASURED, LOAD)
    one = MEASURED
    costs = [
        ("processor time", f"{one.run_ms:.2f} ms", f"{one.token_ms:.4f} ms", f"{milliseconds:.1f} ms"),
        ("in the database", f"{one.run_bytes:,} B", f"{one.token_bytes:,} B", f"{stored / 1024:,.0f} KiB"),
        ("write-ahead log", f"{one.run_wal:,} B", f"{one.token_wal:,} B", f"{wal / 1024:,.0f} KiB"),
        ("commits", f"{one.run_commits:.1f}", "", f"{one.run_commits:.1f}"),
    ]
    found = [(sessions, needs(sessions)) for sessions in SESSIONS]
    days = [
        (
            f"{sessions:,}",
            f"{one['runs']:,.0f}",
            f"{one['under_way']:,.0f}",
            f"{-(-one['processes'] // 1):,.0f}",
            f"{one['commits']:,.0f}",
            f"{one['wal'] / (1 << 20):,.1f} MiB",
            f"{one['stored'] / TIB:,.2f} TiB",
        )
        for sessions, one in found
    ]
    first = [(f"{n:,}", bottleneck(one), f"{-(-one['databases'] // 1):,.0f}") for n, one in found]
    return {
        "costs": table(("", "a run", "a token more", f"a run with {LOAD.tokens_per_run} tokens"), costs),
        "days": table(
            ("sessions a day", "runs/s", "under way", "processes", "commits/s", "log/s", "stored"), days
        ),
        "bottlenecks": table(("sessions a day", "one PostgreSQL is full by", "cells"), first),
    }


def written(text: str) -> str:
    """Returns the page with its tables as they are now."""
    for name, lines in tables().items():
        mark = f"<!-- {name} -->"
        text = re.sub(f"{mark}\n.*?{mark}", lambda _, m=mark, t=lines: f"{m}\n{t}\n{m}", text, flags=re.S)
    return text


# -- measuring ---------------------------------------------------------------------------------------------

_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'astromesh' AND c.relkind = 'r'"
)
_LOG = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_RUNS, _TOKENS = 400, 200


async def _measured(folder: Path, url: str, tokens: int) -> list[float]:
    """Returns milliseconds, bytes, commits and log of a run."""
    import asyncpg
    from bench_durable import says, settle

    from astromesh.plugins import Plugins
    from astromesh.runtime.engine import AgentRuntime
    from astromesh.testing import ScriptedProvider, plugin_of

    def answer(request):  # type: ignore[no-untyped-def]
        said = says(request)
        return "word " * tokens if isinstance(said, str) and tokens else said

    provider = ScriptedProvider(answer, repeat=True)
    plugins = Plugins({"providers": {"scripted": plugin_of(provider)}})
    async with AgentRuntime(folder, data_dir=folder / "data", plugins=plugins, env={}) as runtime:
        await settle(runtime, "steps", 40)
        connection = await asyncpg.connect(url)

        async def now() -> list[float]:
            await asyncio.sleep(3)  # the statistics of the server are late
            return [float(await connection.fetchval(query)) for query in (_SIZE, _COMMITS, _LOG)]

        before, busy = await now(), time.process_time()
        await settle(runtime, "steps", _RUNS)
        busy = time.process_time() - busy
        after = await now()
        await connection.close()
    return [1000 * busy / _RUNS, *((b - a) / _RUNS for a, b in zip(before, after, strict=True))]


def measure() -> None:
    from bench_durable import place

    from astromesh.logs import configure_logging
    from tests.platform.postgres import PostgresServer

    configure_logging("error", "json")
    server = PostgresServer()
    server.start()
    try:
        found = []
        for tokens in (0, _TOKENS):
            with place("postgres", server.url) as folder:
                url = (folder / "runtime.yaml").read_text().split("url: ")[1].split()[0]
                found.append(asyncio.run(_measured(folder, url, tokens)))
    finally:
        server.close()
    (ms, size, commits, log), (more_ms, more_size, _, more_log) = found
    each = [(b - a) / _TOKENS for a, b in ((size, more_size), (log, more_log), (ms, more_ms))]
    print(
        f"Costs({ms:.2f}, {size:.0f}, {commits:.1f}, {log:.0f}, {each[0]:.0f}, {each[1]:.0f}, {each[2]:.4f})"
    )


def main() -> int:
    if "--measure" in sys.argv:
        measure()
        return 0
    before = PAGE.read_text("utf-8")
    if "--check" in sys.argv:
        return int(written(before) != before)
    PAGE.write_text(written(before), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
