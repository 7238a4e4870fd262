"""Where the configuration and the data are unless options or the environment name other folders."""

from __future__ import annotations

from pathlib import Path

CONFIG, DATA = Path("config"), Path(".astromesh")
