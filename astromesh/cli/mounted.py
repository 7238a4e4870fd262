"""Secrets from files: each file of `ASTROMESH_SECRETS_DIR` is a variable of its name.

Containers get secrets as files (`/run/secrets/openai_api_key`), because environments are shown to everybody
who may look at a container. YAML and keys name variables: `OPENAI_API_KEY` is then what that file holds.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from astromesh.errors import ConfigError

VARIABLE = "ASTROMESH_SECRETS_DIR"


def take_in(env: MutableMapping[str, str]) -> None:
    """Adds the files' contents, but for empty ones; what the environment holds already goes before.

    Raises:
        ConfigError: the folder or a file of it cannot be read.
    """
    folder = Path(env[VARIABLE])
    try:
        for file in sorted(folder.iterdir()):
            content = file.read_text(encoding="utf-8").strip() if _is_secret(file) else ""
            if content:
                env.setdefault(file.name.upper(), content)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{VARIABLE}: what is in {folder} cannot be read as secrets: {error}.") from error


def _is_secret(file: Path) -> bool:
    """Mounted folders hold hidden folders of their own beside the files."""
    return file.is_file() and not file.name.startswith(".")
