"""`astromesh worker` and `drain`: processes that execute durable work, and processes that take no more of it.

A worker executes durable runs and Tasks of the servers on one database. A process that drains ends what runs,
takes no new work, and stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import orjson
import typer
import uvloop

from astromesh.cli.commands.validate import load_valid
from astromesh.cli.errors import require_data_folder
from astromesh.cli.event_loop import EventLoop
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.shutdown import drained_on_request, exit_within, processes_of
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.config.folder import Configuration
from astromesh.durable.writer import retry_while_unavailable
from astromesh.logs import configure_logging
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import JsonObject

#: seconds that active runs get after SIGTERM; then another worker takes them over
GRACE = 30.0
#: seconds between two looks at the processes that drain
_POLL_SECONDS = 0.1


def worker(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Execute durable runs of the servers on the same database. SIGTERM or Ctrl-C ends it."""
    folders = folders_of(config, data)
    configuration = load_valid(folders[0], strict=False)
    spec = configuration.runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    require_data_folder(folders[1])
    uvloop.run(_run_worker(folders, configuration), loop_factory=EventLoop)


async def _run_worker(folders: tuple[Path, Path], configuration: Configuration) -> None:
    runtime, ended = AgentRuntime(folders[0], data_dir=folders[1]), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await runtime.bootstrap(configuration)
    try:
        starting = asyncio.ensure_future(retry_while_unavailable(runtime.durable.start))
        ending = asyncio.ensure_future(ended.wait())
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # the store is unavailable
            starting.cancel()
            return
        await starting
        if runtime.has_workflows:
            runtime.workflows.resume_left()
        runtime.schedules.start()
        note(f"astromesh executes durable runs as {runtime.durable.worker}  (Ctrl-C stops it)")
        with drained_on_request(runtime):
            await ending
        await runtime.drain(GRACE)
    finally:
        await runtime.close(GRACE)
        exit_within()


def drain(
    data: Data = DATA_FOLDER,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait for what runs.")] = 30.0,
    json: Json = False,
) -> None:
    """Let servers and workers end their work, and take no more.

    It asks all those of the data folder that run on this machine. They stay until SIGTERM.
    """
    waiting, ends = set(_requested(data)), time.monotonic() + timeout
    found: dict[int, JsonObject] = {pid: {"pid": pid, "state": "draining", "active": 0} for pid in waiting}
    while waiting:
        now = _reports(data)
        for pid in waiting:
            found[pid] = now.get(pid, {"pid": pid, "state": "ended", "active": 0})
        waiting = {pid for pid in waiting if found[pid]["state"] not in ("drained", "ended")}
        if time.monotonic() >= ends:
            break
        time.sleep(_POLL_SECONDS)
    lines = [found[pid] for pid in sorted(found)]
    if json:
        print_json(lines)
    elif lines:
        rows = ((str(one["pid"]), one["state"], str(one["active"])) for one in lines)
        print_table(("PID", "STATE", "ACTIVE"), rows)
    else:
        note("No server or worker of this data folder runs on this machine.")
    if waiting:
        raise typer.Exit(1)


def _requested(data: Path) -> list[int]:
    """Returns the processes that were asked to drain."""
    pids = list(_reports(data))
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    return pids


def _reports(data: Path) -> dict[int, JsonObject]:
    """Returns what the live processes report, by their ids."""
    found = (text for text in processes_of(data).reports().values() if text)
    return {one["pid"]: one for one in map(orjson.loads, found)}
