"""Kills servers at random places of durable runs, and tells what came of the runs.

    python scripts/kills.py [--kills 20] [--stores sqlite,postgres] [--kinds agent,graph,workflow] [--seed 1]
                            [--flat-out]

Each time: a server that will die at the N-th passing of a named place accepts runs with three charges each,
until it is dead; over PostgreSQL a second server is alive. An agent charges by a tool, a graph by functions,
behind a function that takes one of two ways at random. Then every run that was accepted must come to rest. A
run is lost where it does not, or where it completes without each of its charges; a duplicate is a charge that
must not be repeated and was made twice by one run; a run diverges where it takes both ways. A workflow
charges by an operation with an idempotency key and by the tool of an agent, whose open questions are denied
here; it takes one of two ways at random behind the merge.

With --flat-out, clients send without a pause until the server is killed at a random time, and all that was
accepted must come to rest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.error
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import count, product
from pathlib import Path
from random import Random
from threading import Event
from uuid import uuid4

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from astromesh.durable.base import ENDED_TASK_STATUSES  # noqa: E402
from astromesh.durable.failpoints import (  # noqa: E402 (the folders are not on the path before)
    GRAPH_PLACES,
    PLACES,
    TOOL_DONE,
    TOOL_INTENT,
    VARIABLE,
)
from astromesh.runtime import task_log  # noqa: E402
from tests.platform.astromesh import ServerProcess  # noqa: E402
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url  # noqa: E402
from tests.reliability.calls import call, events_of  # noqa: E402
from tests.reliability.payment_agent import LEASE, config, graph_config  # noqa: E402
from tests.reliability.payment_workflow import workflow_config  # noqa: E402

RUNS, PATIENCE = 8, 60.0
#: clients of --flat-out, and seconds until all that they had accepted must rest
CLIENTS, FLAT_OUT_PATIENCE = 4, 300.0


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


def send(url: str, kind: str, n: int) -> str:
    """Id of a run or Task, once it is accepted."""
    if kind == "workflow":
        return str(call(f"{url}/v1/workflows/pay/runs", {"input": {"n": n}})["task_id"])
    body = {"query": f"Charge {n}.", "session_id": f"s-{n}"}
    return str(call(f"{url}/v1/agents/teller/runs", body)["run_id"])


def accept(url: str, kind: str, numbers: Iterable[int], begun: Event) -> list[str]:
    """Ids of the runs whose acceptance was answered before the server died. Sets `begun` at the first one."""
    accepted = []
    for n in numbers:
        try:
            accepted.append(send(url, kind, n))
            begun.set()
        except urllib.error.HTTPError:
            time.sleep(0.05)  # it has too much to do
        except (OSError, HTTPException):  # also in the middle of its answer
            break
    return accepted


def accept_flat_out(server: ServerProcess, kind: str, seconds: float) -> list[str]:
    """Ids of all runs that clients without a pause had accepted until the server was killed.

    Args:
        seconds: From the first acceptance to the kill.
    """
    begun = Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(accept, server.url, kind, count(k, CLIENTS), begun) for k in range(CLIENTS)]
        begun.wait(PATIENCE)
        time.sleep(seconds)
        server.kill()
        return [run_id for client in clients for run_id in client.result()]


def status_of(url: str, kind: str, run_id: str, asked: set[str]) -> str:
    """Status of a run, or of a Task, whose open questions are denied. Empty while it is active."""
    if kind != "workflow":
        status = str(call(f"{url}/v1/runs/{run_id}")["status"])
        return "" if status in ("queued", "running") else status
    task = call(f"{url}/v1/tasks/{run_id}")
    for question in task.get("waiting_for") or ():
        asked.add(run_id)
        call(f"{url}/v1/tasks/{run_id}/decide", {"decision": "deny", "question": question["id"]})
    return str(task["status"]) if task["status"] in ENDED_TASK_STATUSES else ""


def rest(url: str, kind: str, accepted: list[str], seconds: float, asked: set[str]) -> dict[str, str]:
    """What became of each run; `lost` where nothing did in time."""
    ended: dict[str, str] = {}
    end = time.monotonic() + seconds
    while len(ended) < len(accepted) and time.monotonic() < end:
        for run_id in set(accepted) - set(ended):
            if status := status_of(url, kind, run_id, asked):
                ended[run_id] = status
        time.sleep(0.1)
    if left := sorted(set(accepted) - set(ended)):
        print(f"not settled after {seconds:g} s: {' '.join(left)}", file=sys.stderr)
    return {run_id: ended.get(run_id, "lost") for run_id in accepted}


def places(kind: str) -> list[str]:
    """The places that a run of this kind passes."""
    if kind == "workflow":
        return list(task_log.PLACES)
    return [
        p for p in (*PLACES, *GRAPH_PLACES) if p not in (_ONLY_GRAPHS if kind == "agent" else _ONLY_TOOLS)
    ]


_ONLY_GRAPHS, _ONLY_TOOLS = GRAPH_PLACES, (TOOL_INTENT, TOOL_DONE)


_CONFIGS = {
    "agent": lambda folder, model, database: config(folder, model, "write", database),
    "graph": graph_config,
    "workflow": workflow_config,
}


def kill(
    tally: Tally, chance: Random, folder: Path, database: str, model: str, kind: str, flat_out: bool
) -> None:
    effects = folder / "effects"
    effects.touch()
    place = f"{chance.choice(places(kind))}:{chance.randint(1, RUNS)}"
    made = _CONFIGS[kind](folder / "config", model, database)
    env = {"EFFECTS": str(effects), **LEASE}
    variable = task_log.VARIABLE if kind == "workflow" else VARIABLE
    servers = [ServerProcess(folder / "dies", made, env if flat_out else {**env, variable: place})]
    if database:
        servers.append(ServerProcess(folder / "lives", made, env))
    for home in ("dies", "lives"):
        (folder / home).mkdir()
    try:
        for server in servers:
            server.start()
        if flat_out:
            accepted = accept_flat_out(servers[0], kind, chance.uniform(0.5, 2.0))
        else:
            accepted = accept(servers[0].url, kind, range(RUNS), Event())
            servers[0].wait(PATIENCE)
        died = time.monotonic()
        if not database:
            servers[0].disarm(variable)
            servers[0].start()
        asked: set[str] = set()
        patience = FLAT_OUT_PATIENCE if flat_out else PATIENCE
        ended = rest(servers[-1].url, kind, accepted, patience, asked)
        tally.seconds.append(time.monotonic() - died)
        tally.ended["waiting"] += len(asked)
        lines = effects.read_text().splitlines()
        note(tally, ended, operations_once(lines))
        done = {run_id for run_id, status in ended.items() if status in ("completed", "success")}
        # a denied charge did not happen, or did and its outcome is unknown
        tally.lost += sum(not effects_of(lines, run_id) >= CHARGES for run_id in done - asked)
        if kind == "workflow":
            tally.divergent += sum({"pa", "pb"} <= effects_of(lines, task_id) for task_id in ended)
            tally.lost += sum("post" not in effects_of(lines, task_id) for task_id in done)
        else:
            tally.divergent += sum(ways(servers[-1].url, run_id) > 1 for run_id in done)
    finally:
        for server in servers:
            server.close()


#: what each run or Task charges
CHARGES = {"round 0", "round 1", "round 2"}
#: the operations of a workflow, whose lines end in an idempotency key
_OPERATIONS = ("post ", "pa ", "pb ")


def operations_once(lines: list[str]) -> list[str]:
    """The effects as `WHAT RUN`; those of an operation with one idempotency key are one."""
    keyed = {line for line in lines if line.startswith(_OPERATIONS)}
    return [line for line in lines if line not in keyed] + [line.rpartition(" ")[0] for line in keyed]


def effects_of(lines: list[str], run_id: str) -> set[str]:
    """The effects of one run, or of one Task and its branches."""
    pairs = (line.rpartition(" ") for line in operations_once(lines))
    return {what for what, _, whose in pairs if whose.partition("/")[0] == run_id}


def ways(url: str, run_id: str) -> int:
    """How many of the two ways a run has taken, by its events."""
    started = {data["node"] for _, name, data in events_of(url, run_id) if name == "node.started"}
    return len(started & {"pa", "pb"})


def note(tally: Tally, ended: dict[str, str], effects: list[str]) -> None:
    """Each run has each effect once: also a run whose acceptance was not answered."""
    tally.kills += 1
    tally.accepted += len(ended)
    tally.lost += sum(status in ("lost", "failed", "failure", "cancelled") for status in ended.values())
    tally.ended.update(ended.values())
    tally.duplicates += sum(times - 1 for times in Counter(effects).values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="over each store")
    parser.add_argument("--stores", default="sqlite,postgres")
    parser.add_argument("--kinds", default="agent,graph,workflow")
    parser.add_argument("--flat-out", action="store_true", help="clients that send until the kill")
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
                        kill(tally, chance, Path(folder), database, model.url, kind, args.flat_out)
                print(tally.line(f"{kind}, {store}"), flush=True)
                failed = failed or bool(tally.lost or tally.duplicates or tally.divergent)
        finally:
            postgres.close()
            model.close()
    sys.exit(failed)


if __name__ == "__main__":
    main()
