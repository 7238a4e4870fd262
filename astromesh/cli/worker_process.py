"""The application of each process of `astromesh serve --workers N`, made from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.types import ASGIApp

from astromesh.cli import startup


def app() -> ASGIApp:
    """Returns the app, whose lifespan opens its runtime. The parent process has checked the configuration."""
    startup.prepare_imports()
    from astromesh.cli.commands.serve import LINKS_VARIABLE, TALLIES_VARIABLE, application, runtime_of
    from astromesh.logs import configure_logging

    folders = Path(os.environ["ASTROMESH_CONFIG_DIR"]), Path(os.environ["ASTROMESH_DATA_DIR"])
    spec = runtime_of(folders).load_configuration().runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    server = application(folders, spec, Path(os.environ[TALLIES_VARIABLE]))
    server.state.runtime.runner.run_links = os.environ.get(LINKS_VARIABLE, "")
    startup.freeze_memory()
    return server
