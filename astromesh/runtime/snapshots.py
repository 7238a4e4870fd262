"""Manifests as they were when a run was accepted: a durable run ends under those that it began with.

A snapshot is `{"source": text of the agent's file, "agents": {…}, "graphs": {…}}`, with the agents that the
run may start, and the graphs of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from astromesh.config.environment import hide_api_keys, restore_api_keys
from astromesh.config.folder import Configuration, load
from astromesh.core.templates import check_template
from astromesh.errors import InvalidManifest
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import roles_of_graphs
from astromesh.types import JsonObject


def snapshot_of(
    configuration: Configuration, name: str, texts: Mapping[Path, str] = MappingProxyType({})
) -> JsonObject:
    """Returns the snapshot of an agent. Args: texts: what replaces the present text of files."""
    agents, graphs = configuration.agents, configuration.graphs
    called = _called_agents(configuration, name)
    graph_names = {str(dict(agents[n].spec.orchestration.options).get("graph")) for n in (name, *called)}

    def text(file: Path) -> str:
        return texts[file] if file in texts else manifest_text(file)

    parts = {
        "agents": {n: text(agents[n].file) for n in called},
        "graphs": {n: text(graphs[n].file) for n in sorted(graph_names & graphs.keys())},
    }
    return {"source": text(agents[name].file), **{key: value for key, value in parts.items() if value}}


def _called_agents(configuration: Configuration, name: str) -> list[str]:
    """Returns the agents that an agent may call, those included that they may call."""
    found: set[str] = set()
    open_names = [name]
    while open_names:
        called = set(configuration.edges.get(open_names.pop(), ())) & configuration.agents.keys()
        called -= found | {name}
        found |= called
        open_names += called
    return sorted(found)


def manifest_text(file: Path) -> str:
    """Returns a manifest as it was written, with unresolved variables and without literal API keys."""
    try:
        text = file.read_text("utf-8-sig")
    except OSError:  # it was there a moment ago: runs of this agent cannot resume under another manifest
        return ""
    return hide_api_keys(text)


def load_snapshot(
    folder: Path,
    name: str,
    snapshot: JsonObject,
    env: Mapping[str, str],
    plugins: Plugins,
    graphs: Mapping[str, Any] = MappingProxyType({}),
) -> Configuration:
    """Returns the configuration of a snapshot, with the other files of the folder as they are now.

    Args:
        name: The agent of the snapshot.
        graphs: All present graphs, those made in Python included.

    Raises:
        InvalidManifest: the snapshot does not fit the other files.
    """
    agents = {**snapshot.get("agents", {}), name: snapshot["source"]}
    texts = {("Agent", n): _with_keys(text, folder, n) for n, text in agents.items()}
    texts |= {("Graph", n): text for n, text in snapshot.get("graphs", {}).items()}
    with TemporaryDirectory() as place:
        instead = {}
        for number, (what, text) in enumerate(texts.items()):
            instead[what] = Path(place) / f"{number}.{what[0].lower()}.yaml"
            instead[what].write_text(text, "utf-8")
        found = load(
            folder,
            env=env,
            resolver=plugins,
            check_template=check_template,
            replacements=instead,
            graphs=roles_of_graphs(graphs),
        )
    if faults := found.broken.get(name):
        raise InvalidManifest(
            f"The manifest of {name!r} that the run started with is no longer valid: {faults[0]}"
        )
    return found


def _with_keys(source: str, folder: Path, name: str) -> str:
    """Returns a text with the literal API keys of the agent's present file, in their order."""
    file = folder / "agents" / f"{name}.agent.yaml"
    return restore_api_keys(source, file.read_text("utf-8-sig")) if file.exists() else source
