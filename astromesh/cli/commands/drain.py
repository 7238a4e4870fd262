"""`astromesh drain`: the processes of a data folder take no new work, end what runs, and stay."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import orjson
import typer

from astromesh.cli.options import DATA_FOLDER, Data, Json
from astromesh.cli.shutdown import processes_of
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.types import JsonObject

_POLL_SECONDS = 0.1


def drain(
    data: Data = DATA_FOLDER,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for what runs.")] = 30.0,
    json: Json = False,
) -> None:
    """Let the servers and workers of a data folder end their work, and take no more."""
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
