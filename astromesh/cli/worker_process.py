"""What each process of `astromesh serve --workers N` makes for itself, from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.types import ASGIApp

from astromesh.cli import startup


def app() -> ASGIApp:
    """The app, whose lifespan opens its runtime. The parent has checked the configuration already."""
    startup.prepare_imports()
    from astromesh.cli.commands.serve import TALLIES_VARIABLE, application
    from astromesh.plugins import Plugins
    from astromesh.runtime.config_loader import load_configuration
    from astromesh.telemetry.logs import configure_logging

    places = Path(os.environ["ASTROMESH_CONFIG_DIR"]), Path(os.environ["ASTROMESH_DATA_DIR"])
    spec = load_configuration(places[0], Plugins()).runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    made = application(places, spec, Path(os.environ[TALLIES_VARIABLE]))
    startup.freeze_memory()
    return made
