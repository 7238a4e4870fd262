"""`astromesh migrate`: brings the tables of a configuration's stores up to date before its servers start."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astromesh.cli.commands.validate import load_valid
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, folders_of
from astromesh.cli.terminal import note
from astromesh.config.folder import Configuration
from astromesh.errors import StoreUnavailable
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.inbox import open_inbox_worker


def migrate(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Bring the tables of every store up to date. Servers do it as well when they start."""
    folders = folders_of(config, data)
    asyncio.run(_migrate(folders, load_valid(folders[0], strict=False)))
    note("The tables of all stores are up to date.")


async def _migrate(folders: tuple[Path, Path], configuration: Configuration) -> None:
    """Raises: StoreUnavailable: a database does not answer."""
    runtime = AgentRuntime(folders[0], data_dir=folders[1])
    runtime.durable.executes = False
    await runtime.bootstrap(configuration)
    try:
        if waiting := runtime.state.recovering:
            raise StoreUnavailable(f"The stores of {', '.join(sorted(waiting))} do not answer.")
        for store in (await runtime.durable.open(), await runtime.stores.open_tasks()):
            await store.ping()
        await runtime.stores.open_budgets()
        await open_inbox_worker(runtime)
    finally:
        await runtime.close(0.0)
