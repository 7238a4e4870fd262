"""Kills servers at random places of durable runs, and tells what came of the runs.

    python scripts/kills.py [--kills 20] [--stores sqlite,postgres] [--kinds agent,graph] [--seed 1]

Each time: a server that will die at the N-th passing of a named place accepts runs with three charges each,
until it is dead; over PostgreSQL a second server is alive. An agent charges by a tool, a graph by functions,
behind a function that takes one of two ways at random. Then every run that was accepted must come to rest. A
run is lost where it does not; a duplicate is a charge that must not be repeated and was made twice; a run
diverges where it takes both ways.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from uuid import uuid4

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from astromesh.durable.failpoints import (  # noqa: E402 (the folders are not on the path before)
    GRAPH_PLACES,
    PLACES,
    TOOL_DONE,
    TOOL_INTENT,
    VARIABLE,
)
from tests.platform.astromesh import ServerProcess  # noqa: E402
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url  # noqa: E402
from tests.reliability.calls import call, events_of  # noqa: E402
from tests.reliability.payment_agent import LEASE, config, graph_config  # noqa: E402

RUNS, PATIENCE = 8, 60.0


class Tally:
    """What came of all kills over one store."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.kills = self.accepted = self.lost = self.duplicates = self.divergent = 0
        self.seconds: list[float] = []

    def line(self, store: str) -> str:
        slow = sorted(self.seconds)
        middle = f"{slow[len(slow) // 2]:.1f} s, at most {slow[-1]:.1f} s" if slow else "none"
        return (
            f"| {store} | {self.kills} | {self.accepted} | {self.lost} | {self.duplicates} | "
            f"{self.divergent} | {self.ended['waiting']} | {middle} |"
        )


def accept(url: str, count: int) -> list[str]:
    """Ids of the runs whose acceptance was answered before the server died."""
    accepted = []
    for n in range(count):
        try:
            body = {"query": f"Charge {n}.", "session_id": f"s-{n}"}
            accepted.append(call(f"{url}/v1/agents/teller/runs", body)["run_id"])
        except OSError:
            break
    return accepted


def rest(url: str, accepted: list[str]) -> dict[str, str]:
    """What became of each run; `lost` where nothing did in time."""
    ended: dict[str, str] = {}
    end = time.monotonic() + PATIENCE
    while len(ended) < len(accepted) and time.monotonic() < end:
        for run_id in set(accepted) - set(ended):
            status = call(f"{url}/v1/runs/{run_id}")["status"]
            if status not in ("queued", "running"):
                ended[run_id] = status
        time.sleep(0.1)
    return {run_id: ended.get(run_id, "lost") for run_id in accepted}


def places(kind: str) -> list[str]:
    """The places that a run of this kind passes."""
    return [
        p for p in (*PLACES, *GRAPH_PLACES) if p not in (_ONLY_GRAPHS if kind == "agent" else _ONLY_TOOLS)
    ]


_ONLY_GRAPHS, _ONLY_TOOLS = GRAPH_PLACES, (TOOL_INTENT, TOOL_DONE)


def kill(tally: Tally, chance: Random, folder: Path, database: str, model: str, kind: str) -> None:
    effects = folder / "effects"
    effects.touch()
    place = f"{chance.choice(places(kind))}:{chance.randint(1, RUNS)}"
    made = (
        config(folder / "config", model, "write", database)
        if kind == "agent"
        else graph_config(folder / "config", model, database)
    )
    env = {"EFFECTS": str(effects), **LEASE}
    servers = [ServerProcess(folder / "dies", made, {**env, VARIABLE: place})]
    if database:
        servers.append(ServerProcess(folder / "lives", made, env))
    for home in ("dies", "lives"):
        (folder / home).mkdir()
    try:
        for server in servers:
            server.start()
        accepted = accept(servers[0].url, RUNS)
        servers[0].wait(PATIENCE)
        died = time.monotonic()
        if not database:
            servers[0].disarm(VARIABLE)
            servers[0].start()
        ended = rest(servers[-1].url, accepted)
        tally.seconds.append(time.monotonic() - died)
        note(tally, ended, effects.read_text().splitlines())
        tally.divergent += sum(
            ways(servers[-1].url, run_id) > 1 for run_id, status in ended.items() if status == "completed"
        )
    finally:
        for server in servers:
            server.close()


def ways(url: str, run_id: str) -> int:
    """How many of the two ways a run has taken, by its events."""
    started = {data["node"] for _, name, data in events_of(url, run_id) if name == "node.started"}
    return len(started & {"pa", "pb"})


def note(tally: Tally, ended: dict[str, str], effects: list[str]) -> None:
    """Each run makes the calls `round 0` to `round 2` once: of each there are as many as runs at most."""
    tally.kills += 1
    tally.accepted += len(ended)
    tally.lost += sum(status in ("lost", "failed", "cancelled") for status in ended.values())
    tally.ended.update(ended.values())
    # the last acceptance may not have been answered: its run is one more
    most = len(ended) + 1
    tally.duplicates += sum(max(count - most, 0) for count in Counter(effects).values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="over each store")
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--kinds", default="agent,graph")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance, postgres = Random(args.seed), PostgresServer()
    failed = False
    print(
        "| runs, store | kills | accepted | lost | duplicates | divergent | asked a person | until all rest |"
    )
    with tempfile.TemporaryDirectory() as home:
        model = MockModel(Path(home))
        model.start()
        postgres.start()
        try:
            for kind, store in product(args.kinds.split(","), args.stores.split(",")):
                tally = Tally()
                for _ in range(args.kills):
                    name = f"kills_{uuid4().hex}"
                    postgres.execute(f"create database {name}")
                    database = database_url(postgres.url, name) if store == "postgres" else ""
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                        kill(tally, chance, Path(folder), database, model.url, kind)
                print(tally.line(f"{kind}, {store}"), flush=True)
                failed = failed or bool(tally.lost or tally.duplicates or tally.divergent)
        finally:
            postgres.close()
            model.close()
    sys.exit(failed)


if __name__ == "__main__":
    main()
