"""A workflow whose operations and agent charge; each charge that really happens is a line in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.reliability.payment_agent import config

OPS = '''
import os, random
from astromesh.workflow.journal import current_calls

def note(line):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(line + "\\n")

def charge(query: str) -> str:
    """Charges somebody."""
    note(f"{query} {current_calls().journal.run_id}")
    return f"charged {query}"

def post(input, context, tools):
    note(f"post {context.task_id} {context.idempotency_key}")
    return "posted"

def pick(input, context, tools):
    return {"selected_edge": random.choice(["pa", "pb"]), "output": input}

def pa(input, context, tools):
    note(f"pa {context.task_id} {context.idempotency_key}")
    return input

def pb(input, context, tools):
    note(f"pb {context.task_id} {context.idempotency_key}")
    return input
'''


def workflow_config(folder: Path, endpoint: str, url: str = "") -> Path:
    """An operation beside an agent that charges three times, a merge, and one of two ways at random."""
    config(folder, endpoint, "write", url)
    home = folder / "workflows" / "pay"
    home.mkdir(parents=True)
    (home / "ops.py").write_text(OPS)

    def node(name: str, role: str, **keys: Any) -> dict[str, Any]:
        return {"kind": "deterministic", "id": name, "role": role, "context": "none", **keys}

    nodes = [
        node("start", "start", default=True),
        node("fork", "branch"),
        node("post", "linear", op="ops:post"),
        node("pay", "linear", kind="agent", agent="payer", tools=["charge"]),
        node("join", "merge", merge={"strategy": "list"}),
        node("pick", "decision", op="ops:pick"),
        node("pa", "linear", op="ops:pa"),
        node("pb", "linear", op="ops:pb"),
        node("done", "exit"),
    ]  # fmt: skip
    ways = ("start fork", "fork post", "fork pay", "post join", "pay join", "join pick", "pa done", "pb done")
    edges = [dict(zip(("from", "to"), way.split(), strict=True)) for way in ways]
    edges += [{"from": "pick", "to": way, "label": way} for way in ("pa", "pb")]
    arguments = {"type": "object", "properties": {"query": {"type": "string"}}}
    tool = {
        "id": "charge",
        "type": "python",
        "entrypoint": "ops:charge",
        "effect": "write",
        "description": "Charges.",
    }
    model = {
        "id": "m",
        "kind": "llm",
        "adapter": "openai_compat",
        "model": "mock+tools=3",
        "base_url": endpoint,
    }
    agent = {"id": "payer", "model": "m", "system_prompt": "Pay.", "context": "none", "tools": ["charge"]}
    files: dict[str, Any] = {
        "workflow": {"version": 1, "workflow": "pay", "nodes": nodes, "edges": edges},
        "tools": {"tools": [{**tool, "schema_in": arguments}]},
        "providers": {"providers": [model]},
        "agents": {"agents": [agent]},
    }  # fmt: skip
    for name, content in files.items():
        (home / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder
