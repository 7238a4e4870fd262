"""Records the recordings of the sample workflow again, through its router, from a scripted model.

To be run when prompts, patterns or the sample itself have changed:

    python scripts/record_workflows.py
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import orjson

from astromesh.access.scopes import Viewer
from astromesh.evaluation.base import golden_record
from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import TaskRequest
from astromesh.runtime.task_view import outcome_of
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import CompletionRequest, ToolCall

SAMPLE = Path(__file__).parents[1] / "config" / "workflows" / "contract_review"
#: name of the recording → input
CONTRACTS = {
    "simple_contract": "One page NDA",
    "complex_contract": (
        "1. Liability is limited.\n2. Termination at any time.\n3. Confidential matters stay so."
    ),
    "rejected_contract": "1. Liability is excluded.\n2. Payment in advance, for ever.",
}


def lawyer(request: CompletionRequest) -> Any:
    """Says what a sensible model would: the class of a contract, a finding, a verdict."""
    system, asked = request.messages[0].content, request.messages[1].content
    if system.startswith("Classify"):
        contract = orjson.loads(asked)
        edge = "complex" if "\n" in contract["text"] else "simple"
        return orjson.dumps({"selected_edge": edge, "output": contract}).decode()
    if system.startswith("Review"):
        if request.tools and request.messages[-1].role == "user":
            return ToolCall("call_law", "law_lookup", orjson.dumps({"query": asked}).decode())
        risk = int("for ever" in asked)
        return orjson.dumps({"risk": risk, "summary": f"NDA: a clause of {len(asked)} characters"}).decode()
    verdict = "reject" if '"risk": 1' in asked else "accept"
    return orjson.dumps({"verdict": verdict}).decode()


async def main() -> None:
    plugins = Plugins({"providers": {"openai": plugin_of(ScriptedProvider(lawyer, repeat=True))}})
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "config"
        shutil.copytree(SAMPLE, config / "workflows" / SAMPLE.name, ignore=shutil.ignore_patterns(".state"))
        env = {"LLM_API_KEY": "recorded"}
        async with AgentRuntime(config, data_dir=Path(place) / "data", plugins=plugins, env=env) as runtime:
            for name, text in CONTRACTS.items():
                result = await runtime.workflows.run(SAMPLE.name, TaskRequest({"text": text}))
                recording = await runtime.workflows.tasks.recording(result.task_id, Viewer("default", None))
                recording.write(SAMPLE / "evals" / f"{name}.cassette.json")
                option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
                golden = SAMPLE / "evals" / f"{name}.golden.json"
                golden.write_bytes(orjson.dumps(golden_record(outcome_of(result)), option=option))
                print(name, result.status, " → ".join(result.path))


if __name__ == "__main__":
    asyncio.run(main())
