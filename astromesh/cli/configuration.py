"""The configuration as commands see it: read once, its faults told all at once."""

from __future__ import annotations

from pathlib import Path

from astromesh.cli.output import note
from astromesh.config.configuration import Configuration
from astromesh.errors import InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.bootstrap import load_configuration


def sound(folder: Path, *, strict: bool = False) -> Configuration:
    """A configuration that can run; warnings and broken agents go to stderr.

    Args:
        strict: broken agents are faults.

    Raises:
        InvalidConfiguration: every fault that stands in the way.
    """
    configuration = load_configuration(folder, Plugins())
    configuration.require_sound(strict=strict)
    tell(configuration)
    return configuration


def tell(configuration: Configuration) -> None:
    """Prints what does not stand in the way but deserves a look: once, where many places say the same."""
    alike: dict[str, list[InvalidManifest]] = {}
    for warning in configuration.warnings:
        alike.setdefault(warning.message, []).append(warning)
    for warning, *more in alike.values():
        others = f" (and {len(more)} more such places: 'astromesh validate' lists them)" if more else ""
        note(f"warning: {warning}{others}", "yellow")
    for name, faults in configuration.broken.items():
        note(f"warning: the agent {name!r} is broken and answers 503:", "yellow")
        for fault in faults:
            note(f"  {fault}", "yellow")
