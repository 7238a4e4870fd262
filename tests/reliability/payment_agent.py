"""The agent of these tests, whose tool notes each time that it is really called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

#: a dead process is found out sooner than in real life; the same for all processes of a test
LEASE = {"ASTROMESH_LEASE_SECONDS": "3"}
#: what the tool of these tests does: a line in a file for each time it is really called
EFFECTS = '''
import os

def charge(query: str) -> str:
    """Charges somebody."""
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(query + "\\n")
    return f"charged {query}"
'''


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
