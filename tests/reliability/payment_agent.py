"""The agents and workflow of these tests, whose charges are noted each time that they really happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

#: a dead process is found out sooner than in real life; the same for all processes of a test
LEASE = {"ASTROMESH_LEASE_SECONDS": "3"}
#: what the tool and functions of these tests do: a line in a file for each time it is really called, and by
#: which run
EFFECTS = '''
import os, random
from astromesh.tools.base import ToolContext

def pick(state):
    """Takes one of two ways."""
    return random.choice(["pa", "pb"])

async def charge0(state, config):
    return charged("round 0", config.scope)

async def charge1(state, config):
    return charged("round 1", config.scope)

async def charge2(state, config):
    return charged("round 2", config.scope)

def charge(query: str, context: ToolContext) -> str:
    """Charges somebody."""
    return charged(query, context)

def charged(query, run):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{query} {run.run_id}\\n")
    return f"charged {query}"
'''


def charges(effects: Path) -> list[str]:
    """The charges that really happened, in order, without their runs."""
    return [line.rpartition(" ")[0] for line in effects.read_text().splitlines()]


def agent(endpoint: str, effect: str, backend: str) -> dict[str, Any]:
    tool = {"name": "charge", "type": "internal", "function": "reliability_effects:charge", "effect": effect}
    model = {"provider": "openai", "model": "mock+tools=3", "endpoint": endpoint, "api_key": "none"}
    return {
        "apiVersion": "astromesh/v1",
        "kind": "Agent",
        "metadata": {"name": "teller"},
        "spec": {
            "model": {"primary": model},
            "prompts": {"system": "You are {{ agent_name }}."},
            "tools": [tool],
            "memory": {"conversational": {"backend": backend}},
        },
    }


def graph() -> dict[str, Any]:
    """A graph that goes one of two ways, charges three times and answers."""

    def function(name: str, **keys: Any) -> dict[str, Any]:
        return {
            "name": name,
            "kind": "function",
            "function": {"python": f"reliability_effects:{name}"},
            **keys,
        }

    nodes = [
        function("pick", inline=True, transitions={"pa": "pa", "pb": "pb"}),
        *({"name": name, "kind": "prompt"} for name in ("pa", "pb", "say")),
        *(function(f"charge{n}", effect="write") for n in range(3)),
    ]
    ways = ("pa charge0", "pb charge0", "charge0 charge1", "charge1 charge2", "charge2 say")
    edges = [dict(zip(("from", "to"), way.split(), strict=True)) for way in ways]
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "pay"}}
    return {**head, "spec": {"nodes": nodes, "edges": edges}}


def graph_config(folder: Path, endpoint: str, url: str = "") -> Path:
    """The configuration of `config`, whose agent runs the graph."""
    config(folder, endpoint, "write", url)
    manifest = agent(endpoint, "write", "postgres" if url else "sqlite")
    spec = manifest["spec"]
    spec |= {"tools": [], "orchestration": {"pattern": "graph", "graph": "pay"}}
    spec["model"]["primary"]["model"] = "mock"
    (folder / "agents" / "teller.agent.yaml").write_text(yaml.safe_dump(manifest))
    (folder / "graphs").mkdir()
    (folder / "graphs" / "pay.graph.yaml").write_text(yaml.safe_dump(graph()))
    return folder


def config(folder: Path, endpoint: str, effect: str, url: str = "") -> Path:
    backend = "postgres" if url else "sqlite"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "teller.agent.yaml").write_text(yaml.safe_dump(agent(endpoint, effect, backend)))
    (folder / "reliability_effects.py").write_text(EFFECTS)
    if url:
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        spec = {"storage": {"url": url}}
        (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))
    return folder
