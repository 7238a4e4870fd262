"""The faults of a loaded configuration, as callers may read them, and the manifests of agents."""

from __future__ import annotations

from typing import Literal, NamedTuple

from astromesh.errors import AgentNotFoundError, InvalidManifest
from astromesh.runtime.bootstrap import relative_fault
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.snapshots import manifest_text
from astromesh.text import did_you_mean


class ListedFault(NamedTuple):
    severity: Literal["error", "warning"]
    fault: InvalidManifest


class ShownManifest(NamedTuple):
    """The manifest of an agent.

    Args:
        file: relative to the folder of the configuration; empty: the agent was declared in Python.
        source: its text as it was loaded, without literal API keys; empty: there is none.
    """

    file: str
    source: str
    faults: tuple[ListedFault, ...]


def configuration_faults(runtime: AgentRuntime) -> list[ListedFault]:
    """Returns the faults of all files by file and place.

    Those of workflows are there only while a changed file has them and its last good version stays in use. A
    file that has changed, and that only a restart applies, is a warning.
    """
    configuration = runtime.state.configuration
    errors = [fault for faults in runtime.broken.values() for fault in faults]
    errors += [fault for faults in configuration.unusable.values() for fault in faults]
    errors += runtime.state.rejected
    found = [ListedFault("error", relative_fault(configuration.folder, fault)) for fault in errors]
    warnings = (*configuration.warnings, *runtime.state.outdated)
    found += [ListedFault("warning", relative_fault(configuration.folder, w)) for w in warnings]
    unique = {str(one.fault): one for one in found}
    return sorted(unique.values(), key=lambda one: (one.fault.file, one.fault.line, one.fault.column))


def agent_manifest(runtime: AgentRuntime, name: str) -> ShownManifest:
    """Raises: AgentNotFoundError: there is no such agent."""
    state = runtime.state
    folder, known = state.configuration.folder, state.configuration.agents.get(name)
    broken = runtime.broken.get(name, ())
    if known is None and not broken:
        raise AgentNotFoundError(name, did_you_mean(name, state.agents) or "GET /v1/agents lists them.")
    file = str(known.file) if known is not None else next((f.file for f in broken if f.file), "")
    file = file.removeprefix(f"{folder}/")
    faults = tuple(one for one in configuration_faults(runtime) if one.fault.file == file)
    source = ""
    if (agent := state.agents.get(name)) is not None:
        source = str(agent.snapshot.get("source", ""))
    elif file:
        source = manifest_text(folder / file)
    return ShownManifest(file if source else "", source, faults)
