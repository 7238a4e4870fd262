"""Drivers, FastAPI, aiohttp, numpy, rich, reasoning and workflows are loaded when needed, and no sooner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_NAMES = {"asyncpg", "astromesh.graph.reasoning", "astromesh.workflow", "fastapi", "numpy", "redis", "rich"}
_NAMES |= {"astromesh.config.workflow"}
_NAMES |= {"aiohttp", "boto3", "botocore", "google.auth", "greenlet", "markdown_it", "onnxruntime"}
_NAMES |= {"phonenumbers", "prometheus_client", "re2", "tokenizers", "watchfiles"}
_SHOWN = f"import sys; print(sorted({_NAMES} & sys.modules.keys()))"
_LEAN = "from astromesh.cli import startup; startup.prepare_imports(); "
_SERVE = _LEAN + "import astromesh.cli.main, astromesh.cli.commands.serve"
_WORK = """
import asyncio, os, tempfile
from astromesh.cli.main import worker_app
async def live(runtime):
    async with runtime:
        runtime.resume_pending()
with tempfile.TemporaryDirectory() as place:
    os.environ.update(ASTROMESH_CONFIG_DIR=place, ASTROMESH_DATA_DIR=place, ASTROMESH_TALLIES=place)
    asyncio.run(live(worker_app().state.runtime))"""
_IDLE = """
import asyncio, markdown_it, os, tempfile  # its documents need markdown_it, sooner or later
from pathlib import Path
from astromesh.cli.commands.serve import application, runtime_of
os.environ.pop("OPENAI_API_KEY", None)
async def rest(folders):
    app = application(folders, runtime_of(folders).load_configuration().runtime.spec)
    async with app.router.lifespan_context(app):
        await asyncio.sleep(1.3)  # longer than the pause after which routes are loaded
with tempfile.TemporaryDirectory() as place:
    asyncio.run(rest((Path({config!r}), Path(place))))"""
#: a configuration with a warning, which is printed
_WARN = """
import os, tempfile
from pathlib import Path
from astromesh.cli.commands.validate import checked
from astromesh.cli.commands.serve import runtime_of
with tempfile.TemporaryDirectory() as place:
    Path(place, "agents").mkdir()
    Path(place, "agents/one.agent.yaml").write_text('''
apiVersion: astromesh/v1
kind: Agent
metadata: {name: one, version: "1.0.0"}
spec:
  model: {primary: {provider: openai, model: m, api_key: sk-plain}}
  prompts: {system: hello}
''')
    assert checked(runtime_of((Path(place), Path(place))).load_configuration()).warnings"""
_SAMPLE = str(Path(__file__).parents[3] / "config")
_LOAD = _LEAN + "from astromesh.plugins import Plugins; Plugins().load({group!r}, {name!r})"


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        (_SERVE, []),
        (_WORK, []),
        (_LEAN + _WARN, []),
        # the sample has an agent that reasons, a workflow and documents
        (
            _LEAN + _IDLE.format(config=_SAMPLE),
            [
                "astromesh.config.workflow",
                "astromesh.graph.reasoning",
                "astromesh.workflow",
                "markdown_it",
            ],
        ),
        (_LEAN + "import astromesh.api.fastapi_app", ["astromesh.config.workflow", "fastapi"]),
        (_LOAD.format(group="conversation_stores", name="sqlite"), []),
        (_LOAD.format(group="conversation_stores", name="in_memory"), []),
        (_LOAD.format(group="episodic_stores", name="sqlite"), []),
        (_LOAD.format(group="embedders", name="hashing"), []),
        (_LOAD.format(group="embedders", name="onnx"), []),
        (_LOAD.format(group="embedders", name="openai"), []),
        (_LOAD.format(group="providers", name="openai"), []),
        (_LOAD.format(group="providers", name="bedrock"), ["botocore"]),
        (_LOAD.format(group="providers", name="vertex"), ["google.auth"]),
        (_LOAD.format(group="patterns", name="react"), []),
        (_LOAD.format(group="patterns", name="reasoning"), ["astromesh.graph.reasoning"]),
        (_LOAD.format(group="conversation_stores", name="postgres"), ["asyncpg"]),
        (_LOAD.format(group="conversation_stores", name="redis"), ["redis"]),
        (_LOAD.format(group="semantic_stores", name="in_memory"), []),
        (_LOAD.format(group="semantic_stores", name="sqlite"), []),
        (_LOAD.format(group="vector_stores", name="sqlite"), []),
        (_LOAD.format(group="pipelines", name="rag"), []),
        (_LOAD.format(group="guardrails", name="pii_detection"), []),
        (_LOAD.format(group="semantic_stores", name="pgvector"), ["asyncpg"]),
    ],
)
def test_only_what_is_named_is_loaded(code: str, loaded: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {_SHOWN}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(loaded)
