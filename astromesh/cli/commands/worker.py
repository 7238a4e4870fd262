"""`astromesh worker`: executes durable runs and Tasks of the servers on one database."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import uvloop

from astromesh.cli.commands.validate import load_valid
from astromesh.cli.event_loop import EventLoop
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, folders_of
from astromesh.cli.shutdown import drained_on_request, exit_within
from astromesh.cli.terminal import note
from astromesh.config.folder import Configuration
from astromesh.durable.writer import retry_while_unavailable
from astromesh.logs import configure_logging
from astromesh.runtime.engine import AgentRuntime

#: seconds that active runs get after SIGTERM; then another worker takes them over
GRACE = 30.0


def worker(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Execute durable runs of the servers on the same database. SIGTERM or Ctrl-C ends it."""
    folders = folders_of(config, data)
    configuration = load_valid(folders[0], strict=False)
    spec = configuration.runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    uvloop.run(_run_worker(folders, configuration), loop_factory=EventLoop)


async def _run_worker(folders: tuple[Path, Path], configuration: Configuration) -> None:
    runtime, ended = AgentRuntime(folders[0], data_dir=folders[1]), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await runtime.bootstrap(configuration)
    try:
        await retry_while_unavailable(runtime.durable.start)
        if runtime.has_workflows:
            runtime.workflows.resume_left()
        runtime.schedules.start()
        note(f"astromesh executes durable runs as {runtime.durable.worker}  (Ctrl-C stops it)")
        with drained_on_request(runtime):
            await ended.wait()
        await runtime.drain(GRACE)
    finally:
        await runtime.close(GRACE)
        exit_within()
