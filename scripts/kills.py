"""Kills servers at random places of durable runs, and tells what came of the runs.

    python scripts/kills.py [--kills 20] [--stores sqlite,postgres] [--kinds agent,graph,workflow] [--seed 1]
                            [--flat-out] [--engine in_process|restate]

Each time: a server that will die at the N-th passing of a named place accepts runs with three charges each,
until it is dead; over PostgreSQL a second server is alive. An agent charges by a tool, a graph by functions,
behind a function that takes one of two ways at random. Then every run that was accepted must come to rest. A
run is lost where it does not, or where it completes without each of its charges; a duplicate is a charge that
must not be repeated and was made twice by one run; a run diverges where it takes both ways. Two runs each
share a session, and are out of order where the second one charges before the first one has ended. A workflow
charges by an operation with an idempotency key and by the tool of an agent, whose open questions are denied
here; it takes one of two ways at random behind the merge.

With --engine restate, a Restate server places the runs of three workers over PostgreSQL, and it is killed at
a random time as well, and started again. The Tasks of workflows stay with their workers.

With --flat-out, clients send without a pause until the server is killed at a random time, and all that was
accepted must come to rest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from itertools import count, pairwise, product
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import yaml  # noqa: E402 (the folders are not on the path before)

from astromesh.durable.failpoints import (  # noqa: E402 (the folders are not on the path before)
    GRAPH_PLACES,
    PLACES,
    TOOL_DONE,
    TOOL_INTENT,
    VARIABLE,
)
from astromesh.durable.tasks import ENDED_TASK_STATUSES  # noqa: E402
from astromesh.runtime import task_log  # noqa: E402
from tests.platform.astromesh import ServerProcess  # noqa: E402
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url  # noqa: E402
from tests.platform.processes import free_port  # noqa: E402
from tests.platform.restate import RestateServer  # noqa: E402
from tests.reliability.calls import call, events_of  # noqa: E402
from tests.reliability.payment_agent import LEASE, config, graph_config  # noqa: E402
from tests.reliability.payment_workflow import workflow_config  # noqa: E402

RUNS, PATIENCE = 8, 60.0
#: clients of --flat-out, and seconds until all that they had accepted must rest
CLIENTS, FLAT_OUT_PATIENCE = 4, 300.0
#: processes that execute runs with --engine restate, and seconds for which its server is away
WORKERS, AWAY = 3, (0.2, 2.0)
#: seconds at most to both kills: a server that executes some of the runs alone may not pass its place
BOTH_DEAD = 1.0


class Tally:
    """What came of all kills over one store."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.kills = self.accepted = self.lost = self.duplicates = self.divergent = self.disordered = 0
        self.seconds: list[float] = []

    def line(self, store: str) -> str:
        slow = sorted(self.seconds)
        middle = f"{slow[len(slow) // 2]:.1f} s, at most {slow[-1]:.1f} s" if slow else "none"
        return (
            f"| {store} | {self.kills} | {self.accepted} | {self.lost} | {self.duplicates} | "
            f"{self.divergent} | {self.disordered} | {self.ended['waiting']} | {middle} |"
        )


def send(url: str, kind: str, n: int) -> str:
    """Id of a run or Task, once it is accepted."""
    if kind == "workflow":
        return str(call(f"{url}/v1/workflows/pay/runs", {"input": {"n": n}})["task_id"])
    body = {"query": f"Charge {n}.", "session_id": f"s-{n // 2}"}
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


class Engine:
    """A Restate server that is killed once, at a random time, or nothing.

    Attributes:
        seconds: to the kill of the server that accepts the runs; None: it dies by itself.
    """

    def __init__(self, chance: Random, restate: RestateServer | None) -> None:
        self.server = restate
        self.seconds = chance.uniform(0.0, BOTH_DEAD) if restate else None
        times = (chance.uniform(0.0, BOTH_DEAD), chance.uniform(*AWAY)) if restate else ()
        self._killer, self._port = Thread(target=self._kill, args=times), free_port()

    @property
    def durable(self) -> dict[str, Any] | None:
        """The block `durable` of runtime.yaml."""
        if self.server is None:
            return None
        own = {"listen": f"127.0.0.1:{self._port}", "admin_url": self.server.admin_url}
        return {"backend": "restate", "url": self.server.url, "restate": own}

    def begin(self) -> None:
        if self.server is not None:
            self._killer.start()

    def end(self) -> None:
        if self.server is not None:
            self._killer.join()

    def _kill(self, after: float, away: float) -> None:
        assert self.server is not None
        time.sleep(after)
        self.server.kill()
        time.sleep(away)
        self.server.start()


def started(
    chance: Random, folder: Path, database: str, model: str, kind: str, flat_out: bool, engine: Engine
) -> list[ServerProcess]:
    """Servers that are about to start; the first one is to die."""
    place = f"{chance.choice(places(kind))}:{chance.randint(1, RUNS)}"
    made = _CONFIGS[kind](folder / "config", model, database)
    if engine.durable:
        runtime = yaml.safe_load((made / "runtime.yaml").read_text())
        runtime["spec"]["durable"] = engine.durable
        (made / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    env = {"EFFECTS": str(folder / "effects"), **LEASE}
    others = (WORKERS if engine.durable else 2) - 1 if database else 0
    servers = [ServerProcess(folder / "dies", made, env if flat_out else {**env, variable_of(kind): place})]
    servers += [ServerProcess(folder / f"lives {n}", made, env) for n in range(others)]
    for server in servers:
        server.home.mkdir()
    return servers


def variable_of(kind: str) -> str:
    return task_log.VARIABLE if kind == "workflow" else VARIABLE


def kill(
    tally: Tally, folder: Path, servers: list[ServerProcess], kind: str, seconds: float, engine: Engine
) -> None:
    """Args: seconds: of --flat-out, until the kill; else 0."""
    effects = folder / "effects"
    effects.touch()
    try:
        for server in servers:
            server.start()
        engine.begin()
        if seconds:
            accepted = accept_flat_out(servers[0], kind, seconds)
        else:
            accepted = accept(servers[0].url, kind, range(RUNS), Event())
            die(servers[0], engine.seconds)
        died = time.monotonic()
        if len(servers) == 1:
            servers[0].disarm(variable_of(kind))
            servers[0].start()
        asked: set[str] = set()
        ended = rest(servers[-1].url, kind, accepted, FLAT_OUT_PATIENCE if seconds else PATIENCE, asked)
        tally.seconds.append(time.monotonic() - died)
        tally.ended["waiting"] += len(asked)
        weigh(tally, servers[-1].url, kind, ended, asked, effects.read_text().splitlines())
        if not seconds and kind != "workflow":
            waited = asked | {run_id for run_id, status in ended.items() if status == "waiting"}
            tally.disordered += disorder(servers[-1].url, accepted, waited, effects.read_text().splitlines())
    finally:
        engine.end()
        for server in servers:
            server.close()


def weigh(
    tally: Tally, url: str, kind: str, ended: dict[str, str], asked: set[str], lines: list[str]
) -> None:
    """Counts what came of the accepted runs."""
    note(tally, ended, operations_once(lines))
    done = {run_id for run_id, status in ended.items() if status in ("completed", "success")}
    # a denied charge did not happen, or did and its outcome is unknown
    tally.lost += sum(not effects_of(lines, run_id) >= CHARGES for run_id in done - asked)
    if kind == "workflow":
        tally.divergent += sum({"pa", "pb"} <= effects_of(lines, task_id) for task_id in ended)
        tally.lost += sum("post" not in effects_of(lines, task_id) for task_id in done)
    else:
        tally.divergent += sum(ways(url, run_id) > 1 for run_id in done)


def disorder(url: str, accepted: list[str], waited: set[str], lines: list[str]) -> int:
    """How many runs charged before an older one of their session had ended, unless that one waited."""
    sessions: dict[str, list[str]] = {}
    for run_id in accepted:
        sessions.setdefault(str(call(f"{url}/v1/runs/{run_id}")["session_id"]), []).append(run_id)
    whose = [line.rpartition(" ")[2] for line in lines]
    pairs = [pair for runs in sessions.values() for pair in pairwise(runs) if not waited & {*pair}]
    return sum(
        max(n for n, run in enumerate(whose) if run == first)
        > min(n for n, run in enumerate(whose) if run == second)
        for first, second in pairs
        if {first, second} <= {*whose}
    )


def die(server: ServerProcess, seconds: float | None) -> None:
    """Waits until the server has died, or kills it after so many seconds."""
    if seconds is None:
        server.wait(PATIENCE)
        return
    with suppress(subprocess.TimeoutExpired):
        server.wait(seconds)
    server.kill()


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
    parser.add_argument("--engine", choices=("in_process", "restate"), default="in_process")
    parser.add_argument("--flat-out", action="store_true", help="clients that send until the kill")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance, postgres = Random(args.seed), PostgresServer()
    restate = RestateServer() if args.engine == "restate" else None
    stores = "postgres" if restate else args.stores
    failed = False
    print(
        "| runs, store | kills | accepted | lost | duplicates | divergent | out of order | asked a person | "
        "until all rest |"
    )
    with tempfile.TemporaryDirectory() as home:
        model = MockModel(Path(home))
        model.start()
        postgres.start()
        if restate:
            restate.start()
        try:
            for kind, store in product(args.kinds.split(","), stores.split(",")):
                tally = Tally()
                for _ in range(args.kills):
                    name = f"kills_{uuid4().hex}"
                    postgres.execute(f"create database {name}")
                    database = database_url(postgres.url, name) if store == "postgres" else ""
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                        engine, home_of = Engine(chance, restate), Path(folder)
                        servers = started(chance, home_of, database, model.url, kind, args.flat_out, engine)
                        seconds = chance.uniform(0.5, 2.0) if args.flat_out else 0.0
                        kill(tally, home_of, servers, kind, seconds, engine)
                print(tally.line(f"{kind}, {'restate' if restate else store}"), flush=True)
                failed = failed or bool(tally.lost or tally.duplicates or tally.divergent or tally.disordered)
        finally:
            if restate:
                restate.close()
            postgres.close()
            model.close()
    sys.exit(failed)


if __name__ == "__main__":
    main()
