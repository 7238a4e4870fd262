"""Configuration folders with workflows, and runtimes whose models are scripted, for tests of Tasks."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx

from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider, plugin_of
from tests.integration.workflow.test_sample_project import SAMPLE, lawyer

#: operations that wait for a file: a test lets a stage go on by making it
OPS = """
import asyncio, pathlib

def double(input, context, tools):
    return input * 2

async def wait(input, context, tools):
    while not pathlib.Path(input["go"]).exists():
        await asyncio.sleep(0.01)
    return input

def named(input, context, tools):
    numbers = [context.random.random() for _ in range(2)]
    return [context.task_id, context.idempotency_key, context.now, numbers]

def fail(input, context, tools):
    raise ValueError("as told")
"""


def small(config: Path, name: str = "small", op: str = "double", extra: str = "", **files: str) -> Path:
    """A workflow `s → x → e` without any model; answers the configuration folder.

    Args:
        op: of the stage x.
        extra: further lines of workflow.yaml.
        files: further manifests by their stem.
    """
    folder = config / "workflows" / name
    folder.mkdir(parents=True)
    (folder / "ops.py").write_text(OPS)
    (folder / "workflow.yaml").write_text(
        f"version: 1\nworkflow: {name}\nnodes:\n"
        "  - {id: s, kind: deterministic, role: start, default: true, context: none}\n"
        f"  - {{id: x, kind: deterministic, role: linear, context: none, op: 'ops:{op}'}}\n"
        "  - {id: e, kind: deterministic, role: exit, context: none}\n"
        f"edges:\n  - {{from: s, to: x}}\n  - {{from: x, to: e}}\n{extra}"
    )
    for stem, text in files.items():
        (folder / f"{stem}.yaml").write_text(text)
    return config


def sample(config: Path) -> Path:
    """A copy of the sample project; answers the configuration folder."""
    copy = config / "workflows" / "contract_review"
    shutil.copytree(SAMPLE, copy, ignore=shutil.ignore_patterns(".state", "__pycache__"))
    return config


def runtime_with(config: Path, model: Any = lawyer, **more: Any) -> AgentRuntime:
    """A runtime whose every model is this script."""
    provider = ScriptedProvider(model, repeat=True)
    plugins = Plugins({"providers": {name: plugin_of(provider) for name in ("openai", "scripted")}})
    data = more.pop("data_dir", config.parent / "data")
    return AgentRuntime(config, data_dir=data, plugins=plugins, env={"LLM_API_KEY": "k"}, **more)


async def until(client: httpx.AsyncClient, task_id: str, *wanted: str) -> dict[str, Any]:
    """The Task as soon as its status is one of these."""
    async with asyncio.timeout(60):
        while (task := (await client.get(f"/v1/tasks/{task_id}")).json())["status"] not in wanted:
            await asyncio.sleep(0.01)
    found: dict[str, Any] = task
    return found


async def idle(runtime: AgentRuntime) -> None:
    """Returns when every Task of this process waits with all of it."""
    live = runtime.workflows.records.live
    async with asyncio.timeout(60):
        while not all(task.is_idle for task in live.values()):
            await asyncio.sleep(0.01)


def events_of(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Server-sent events as (id, event, data)."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


ENDED = ("success", "failure", "partial")
