"""Dispatching over DBOS: a queue in the database, from which every process of it takes what is due.

One workflow of DBOS is the dispatch of one segment; it does nothing but call, in the runtime's own event
loop, and has no steps: what happened in a run is in the run's own log. DBOS is one for a process, so that of
several runtimes in one process only the first can use it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from typing import Any, ClassVar, Self

import structlog
from dbos import DBOS, DBOSConfig, Queue, SetEnqueueOptions, SetWorkflowID
from dbos import error as faults
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError

from astromesh.abc.deps import Deps
from astromesh.abc.durable import RunRow, RunSegment
from astromesh.errors import ConfigError, StoreUnavailable
from astromesh.storage.folder import private_file, private_folder

#: a constant: DBOS keeps workflows of other versions waiting, and what a segment does is in the run's record
VERSION = "1"
QUEUE, WORKFLOW, SCHEMA = "astromesh", "astromesh.segment", "astromesh_dbos"
#: seconds between two looks for messages of workflows: there are none, and a shutdown waits for the last look
_NO_MESSAGES = 0.2
#: finished dispatches that are kept before they are deleted together
_KEPT = 200
#: DBOS wants a lower number to come first, from 1
_MIDDLE = 1 << 20

_FAULTS = (faults.DBOSException, SQLAlchemyError)

log = structlog.get_logger("astromesh.durable")


class DbosBackend:
    """A DurableBackend over the queue of DBOS.

    Args:
        url: SQLAlchemy URL of the database that the queue is in.
        concurrency: segments that this process runs at once.
        polling: seconds between two looks into the queue, where what other processes have no room for is.
    """

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        concurrency: int = Field(64, ge=1, description="Runs that one process works on at once.")
        polling_seconds: float = Field(0.5, gt=0, description="Between two looks into the queue.")

    name: ClassVar[str] = "dbos"

    def __init__(self, url: str, concurrency: int = 64, polling: float = 0.5) -> None:
        self._url, self._concurrency, self._polling = url, concurrency, polling
        self._work: RunSegment | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: Queue | None = None
        self._done: deque[str] = deque()
        self._open = True

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Self:
        """Raises: ConfigError: another runtime of this process dispatches already."""
        if _Process.backend is not None:
            raise ConfigError("DBOS is one for a process, and another runtime in it has it.")
        url = deps.storage_url
        if not url.startswith("postgres"):
            private_folder(deps.data_dir)
            private_file(deps.data_dir / "dispatch.db")
            url = f"sqlite:///{deps.data_dir.absolute() / 'dispatch.db'}"
        backend = cls(
            url.replace("postgres://", "postgresql://", 1), options.concurrency, options.polling_seconds
        )
        _Process.backend = backend
        return backend

    async def start(self, work: RunSegment) -> None:
        self._work, self._loop = work, asyncio.get_running_loop()
        launching = asyncio.create_task(asyncio.to_thread(self._launch))
        try:
            await asyncio.shield(launching)
        except asyncio.CancelledError:  # a thread cannot be stopped: what it has begun is closed behind it
            await asyncio.wait([launching])
            raise
        except _FAULTS as error:
            raise StoreUnavailable(f"The queue of runs cannot be reached: {type(error).__name__}.") from error

    def _launch(self) -> None:
        logging.getLogger("dbos").addHandler(logging.NullHandler())
        config: DBOSConfig = {
            "name": "astromesh",
            "system_database_url": self._url,
            "dbos_system_schema": SCHEMA,
            "application_version": VERSION,
            "executor_id": f"{os.getpid()}-{secrets.token_hex(6)}",
            "log_level": "CRITICAL",
            "enable_otlp": False,
            "use_listen_notify": False,
            "notification_listener_polling_interval_sec": _NO_MESSAGES,
        }
        try:
            DBOS(config=config)
            DBOS.launch()
            self._queue = DBOS.register_queue(
                QUEUE, worker_concurrency=self._concurrency, polling_interval_sec=self._polling
            )
        except BaseException:
            DBOS.destroy()
            raise

    async def dispatch(self, run: RunRow) -> None:
        if self._queue is None or not self._open:
            return
        # a claim of the segment decides who works: a second dispatch does no harm, a lost one would
        name = f"{run.run_id}/{run.segment}/{secrets.token_hex(4)}"
        try:
            with SetWorkflowID(name), SetEnqueueOptions(priority=max(1, _MIDDLE + run.priority)):
                await self._queue.enqueue_async(_segment, run.run_id, run.segment)
        except _FAULTS as error:
            raise StoreUnavailable(f"The queue of runs cannot be reached: {type(error).__name__}.") from error

    async def drain(self) -> None:
        self._open = False

    async def close(self) -> None:
        self._open = False
        try:
            if self._queue is not None:
                await asyncio.to_thread(DBOS.destroy, destroy_registry=False)
                self._queue = None
        finally:
            if _Process.backend is self:
                _Process.backend = None

    async def run(self, run_id: str, segment: int, name: str) -> None:
        """One segment, in the runtime's loop."""
        if self._work is not None and self._open:
            await self._work(run_id, segment)
        self._done.append(name)
        if len(self._done) >= _KEPT:
            await self._forget()

    async def _forget(self) -> None:
        """The runs' own rows hold what was dispatched; the newest may still be ending."""
        names = [self._done.popleft() for _ in range(_KEPT // 2)]
        try:
            await asyncio.to_thread(DBOS.delete_workflows, names)
        except _FAULTS as error:
            log.warning("dispatches_not_deleted", error=type(error).__name__)


class _Process:
    """Who has DBOS in this process."""

    backend: DbosBackend | None = None


@DBOS.workflow(name=WORKFLOW)
async def _segment(run_id: str, segment: int) -> None:
    backend = _Process.backend
    if backend is None or backend._loop is None:  # noqa: SLF001 (a workflow is a function of the module)
        return
    name: Any = DBOS.workflow_id
    work = asyncio.run_coroutine_threadsafe(backend.run(run_id, segment, str(name)), backend._loop)  # noqa: SLF001
    await asyncio.wrap_future(work)
