"""`astromesh worker`: durable runs and Tasks, beside the servers of one database, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import uvloop

from astromesh.cli.configuration import sound
from astromesh.cli.ending import end_within
from astromesh.cli.output import note
from astromesh.config.configuration import Configuration
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.writer import surely
from astromesh.telemetry.logs import configure_logging

#: seconds that runs under way get after SIGTERM; then another worker takes them up
GRACE = 30.0


def work(places: tuple[Path, Path]) -> None:
    """Works until SIGTERM or Ctrl-C; then what is not done is handed over.

    Args:
        places: folders of the configuration and of the data.

    Raises:
        ConfigError: faults of the configuration.
    """
    configuration = sound(places[0], strict=False)
    spec = configuration.runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    uvloop.run(_work(places, configuration))


async def _work(places: tuple[Path, Path], configuration: Configuration) -> None:
    runtime, ended = AgentRuntime(places[0], data_dir=places[1]), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await runtime.bootstrap(configuration)
    try:
        await surely(runtime.durable.start)
        if runtime.has_workflows:
            runtime.workflows.take_up()
        note(f"astromesh works on durable runs as {runtime.durable.worker}  (Ctrl-C stops it)")
        await ended.wait()
    finally:
        await runtime.close(GRACE)
        end_within()
