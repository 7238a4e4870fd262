"""Manifests as they were when a run was accepted, so that it ends under those it began with (R16).

A snapshot is `{"source": text of the agent's file, "agents": {…}, "graphs": {…}}`: with the agents that the
run may start, and the graphs that all of these run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from astromesh.config.folder import Configuration, load
from astromesh.core.templates import check_template
from astromesh.errors import InvalidManifest
from astromesh.plugins import Plugins
from astromesh.types import JsonObject

#: a literal key; a name of the environment is none
_API_KEY = re.compile(r"""(\bapi_key["']?\s*:\s*)(?!["']?\$\{)("[^"]*"|'[^']*'|[^\s,}#]+)""")


def snapshot_of(known: Configuration, name: str) -> JsonObject:
    """What a run of an agent needs to end as it began."""
    below = _below(known, name)
    graphs = {str(dict(known.agents[n].spec.orchestration.options).get("graph")) for n in (name, *below)}
    kept = {
        "agents": {n: _text_of(known.agents[n].file) for n in below},
        "graphs": {n: _text_of(known.graphs[n].file) for n in sorted(graphs & known.graphs.keys())},
    }
    return {
        "source": _text_of(known.agents[name].file),
        **{key: texts for key, texts in kept.items() if texts},
    }


def _below(known: Configuration, name: str) -> list[str]:
    """The agents that an agent may call, and those that these may call."""
    found: set[str] = set()
    asked = [name]
    while asked:
        called = set(known.edges.get(asked.pop(), ())) & known.agents.keys() - found - {name}
        found |= called
        asked += called
    return sorted(found)


def _text_of(file: Path) -> str:
    """A manifest as it was written, variables unresolved, literal keys struck out."""
    try:
        text = file.read_text("utf-8-sig")
    except OSError:  # it was there a moment ago: runs of this agent cannot be taken up under another one
        return ""
    return _API_KEY.sub(r'\1"***"', text)


def load_snapshot(
    folder: Path,
    name: str,
    kept: JsonObject,
    env: Mapping[str, str],
    plugins: Plugins,
    graphs: Iterable[str] = (),
) -> Configuration:
    """The configuration of a snapshot, with the folder's other files as they are now.

    Args:
        name: of the agent that is asked for.
        graphs: names of graphs that there are, those made in Python among them.

    Raises:
        InvalidManifest: it does not fit them.
    """
    agents = {**kept.get("agents", {}), name: kept["source"]}
    texts = {("Agent", n): _with_keys(text, folder, n) for n, text in agents.items()}
    texts |= {("Graph", n): text for n, text in kept.get("graphs", {}).items()}
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
            graphs=graphs,
        )
    if faults := found.broken.get(name):
        raise InvalidManifest(f"The run's own manifest of {name!r} does not work any more: {faults[0]}")
    return found


def _with_keys(source: str, folder: Path, name: str) -> str:
    """A text with the literal keys that the agent's present file has, in their order."""
    file = folder / "agents" / f"{name}.agent.yaml"
    keys = [found[1] for found in _API_KEY.findall(file.read_text("utf-8-sig"))] if file.exists() else []
    if not keys or len(keys) != len(_API_KEY.findall(source)):
        return source
    return _API_KEY.sub(lambda found: found[1] + keys.pop(0), source)
