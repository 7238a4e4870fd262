"""The tallies of the processes of one server: each writes its own to a file, and reads those of the others.

A worker that ends leaves its last tally behind, so that counters do not go backwards; the parent empties the
folder when the server starts.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import orjson
import structlog

from astromesh.telemetry.metrics import Metrics
from astromesh.types import JsonObject

#: seconds between two writes
PERIOD = 1.0

log = structlog.get_logger("astromesh.telemetry")


class WorkerTallies:
    """One process's part; started in its event loop.

    Args:
        folder: where all processes of the server write.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}.json"
        self._metrics = Metrics()
        self._told = b""
        self._writing: asyncio.Task[None] | None = None

    def start(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._metrics.others = self._others
        self._writing = asyncio.create_task(self._write())

    async def stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        await asyncio.to_thread(self._put, orjson.dumps(self._metrics.to_json(ended=True)))

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            told = orjson.dumps(self._metrics.to_json())
            if told != self._told:
                self._told = told
                await asyncio.to_thread(self._put, told)

    def _put(self, told: bytes) -> None:
        part = self._file.with_suffix(".part")
        try:
            part.write_bytes(told)
            part.replace(self._file)
        except OSError as error:  # the next write may work
            log.warning("metrics_not_shared", error=str(error))

    def _others(self) -> list[JsonObject]:
        """What the others have written last. Small files of a folder in memory or on the local disk."""
        found = []
        for file in self._file.parent.glob("*.json"):
            if file != self._file:
                try:
                    found.append(self._told_by(file))
                except (OSError, orjson.JSONDecodeError) as error:
                    log.warning("metrics_not_read", file=file.name, error=str(error))
        return found

    def _told_by(self, file: Path) -> JsonObject:
        """Of a process that is gone, however that came about, only what it has counted."""
        told: JsonObject = orjson.loads(file.read_bytes())
        if not _lives(int(file.stem)):
            counting, readings = self._metrics.counting, told["readings"]
            told["readings"] = {name: value for name, value in readings.items() if name in counting}
        return told


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's by now
        return False
    return True
