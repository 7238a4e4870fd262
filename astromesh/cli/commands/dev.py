"""`astromesh dev`: the server for development, which reloads what is saved."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from typing import Annotated

import typer

from astromesh.cli.commands.serve import Agents, Host, Port, Settings, start
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, DevEnvFile, folders_of
from astromesh.logs import PRETTY

#: variables of a desktop session
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def dev(
    agents: Agents = None,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    host: Host = "",
    port: Port = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the console.")] = False,
    env_file: DevEnvFile = None,
) -> None:
    """Serve the agents for development.

    Saved files reach the next run, plain runs are recorded, the file .env is read, and each run is one line
    with its cost. The console opens where there is a display.
    """
    opens = not no_open and has_display(os.environ, sys.platform)
    settings = Settings(
        agents or (), host, port, records=True, reloads=True, log_format=PRETTY,
        ready=_open_console if opens else lambda url: None,
    )  # fmt: skip
    start(folders_of(config, data), settings)


def has_display(env: Mapping[str, str], platform: str) -> bool:
    """Whether a browser can open a window for the person at this terminal."""
    if platform == "darwin":
        return "SSH_CONNECTION" not in env
    return any(env.get(name) for name in _DISPLAYS)


def _open_console(url: str) -> None:
    """Opens the console in a thread: some browsers block until their window is closed."""
    threading.Thread(target=webbrowser.open, args=(f"{url}/console/",), daemon=True).start()
