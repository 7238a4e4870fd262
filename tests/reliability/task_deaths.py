"""Kills a process at one side of every stage boundary of the sample workflow; run by `test_task_deaths`.

Each death and each recovery is a process of its own, forked from this one, which only imports. Prints for
every death what the models were asked before and behind it, and how the Task ended, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

from astromesh.access.scopes import Viewer
from astromesh.durable import sqlite
from astromesh.durable.failpoints import parse_failpoint
from astromesh.durable.tasks import ENDED_TASK_STATUSES
from astromesh.orchestration import patterns
from astromesh.runtime import task_log
from astromesh.runtime.records import TaskRequest
from astromesh.storage.sqlite import FILE
from astromesh.types import CompletionRequest
from tests.integration.workflow.folders import runtime_with
from tests.integration.workflow.test_sample_project import CONTRACT, lawyer

#: what each process would import by and by, imported once for all
WARM = (sqlite, patterns)
ANYBODY = Viewer("default", None)


async def work(
    config: Path, data: Path, name: str, accepts: bool, replays: bool, calls: Path
) -> dict[str, Any]:
    """One process: takes a Task up, or accepts one; answers how it ended, and whether it replays."""

    def model(request: CompletionRequest) -> Any:
        with calls.open("a") as file:
            file.write(request.messages[0].content[:8] + "\n")
        return lawyer(request)

    async with runtime_with(config, model, data_dir=data) as runtime:
        workflows = runtime.workflows
        if accepts:
            await workflows.accept(name, TaskRequest({"text": CONTRACT}))
        else:
            workflows.resume_left()
        while (task := (await workflows.tasks.list(ANYBODY))[0])["status"] not in ENDED_TASK_STATUSES:
            await asyncio.sleep(0.005)
        trace = await workflows.tasks.trace(task["task_id"], ANYBODY)
        replay = await workflows.replays.replay(task["task_id"], ANYBODY) if replays else {}
        return {
            "status": task["status"],
            "output": task["output"],
            "path": [entry["stage_id"] for entry in trace["trace"]],
            "same": replay.get("same"),
        }


def forked(
    config: Path, data: Path, name: str, accepts: bool, place: str = "", replays: bool = False
) -> tuple[int, dict[str, Any]]:
    """The signal that a process died of, 0 for none, and what it told."""
    told, calls = data.with_suffix(".told"), data.with_suffix(".calls")
    child = os.fork()
    if child == 0:
        try:
            if place:
                task_log.reach = parse_failpoint(place, task_log.PLACES)
            told.write_text(json.dumps(asyncio.run(work(config, data, name, accepts, replays, calls))))
            os._exit(0)
        except BaseException:  # noqa: BLE001 (told to the parent process by the exit code)
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"a process failed at {place or 'no place'}")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, (
        json.loads(told.read_text()) if told.exists() else {}
    )


def asked(data: Path) -> list[str]:
    file = data.with_suffix(".calls")
    return file.read_text().splitlines() if file.exists() else []


def stages_in(file: Path) -> int:
    """How many stages are on disk."""
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute(
            "SELECT count(*) FROM task_records WHERE json_extract(record, '$.type') = 'stage'"
        )
        return int(rows.fetchone()[0])


def main(config: Path, folder: Path, name: str, place: str) -> None:
    """Dies at every third boundary, at all of them where ASTROMESH_EVERY_CUT says so."""
    _, whole = forked(config, folder / "whole", name, True)
    deaths: list[dict[str, Any]] = []
    step = 1 if os.environ.get("ASTROMESH_EVERY_CUT") else 3
    for n in range(1, len(whole["path"]) + 1, step):
        data = folder / f"{place}-{n}"
        signal, _ = forked(config, data, name, True, f"{place}:{n}")
        before, kept = asked(data), stages_in(data / FILE)
        _, found = forked(config, data, name, False, replays=len(deaths) == 3)
        deaths.append(
            {
                "place": place,
                "n": n,
                "signal": signal,
                "before": before,
                "kept": kept,
                "all": asked(data),
                **found,
            }
        )
    print(json.dumps({"whole": {**whole, "all": asked(folder / "whole")}, "deaths": deaths}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
