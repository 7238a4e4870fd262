"""A run goes with its end: nothing of it waits for the garbage collector, which looks seldom."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import AstromeshError, ProviderUnauthorized
from astromesh.runtime.run import Run
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write

TOOL = {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
BLOCKS = {"type": "content_filter", "action": "block", "forbidden_keywords": ["forbidden", "go"]}
PIPELINE = {"pattern": "pipeline", "stages": [{"name": "draft", "prompt": "Write."}]}


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def runs() -> list[Run]:
    return [one for one in gc.get_objects() if isinstance(one, Run)]


def refuses(request: CompletionRequest) -> Any:
    raise ProviderUnauthorized("The key is wrong.")


def always_calls(request: CompletionRequest) -> Any:
    return [ToolCall("c1", "lookup", '{"query": "x"}')]


def calls_once(request: CompletionRequest) -> Any:
    return "done" if request.messages[-1].role == "tool" else always_calls(request)


async def left_by(folder: Path, says: Any, **spec: Any) -> tuple[str, int]:
    """How a run ended, and how many runs are in memory after three of them."""
    write(folder, manifest(**spec))
    gc.freeze()  # runs of earlier tests are not looked at
    end = ""
    async with runtime_of(folder, ScriptedProvider(says, repeat=True)) as runtime:
        for n in range(3):
            try:
                answer = await runtime.run("helper", "go", f"s-{n}")
                end = answer.metadata["stop_reason"]
            except AstromeshError as error:
                end = error.code
        return end, len(runs())


@pytest.mark.parametrize(
    ("says", "spec", "end"),
    [
        ("fine", {}, "completed"),
        (calls_once, {"tools": [TOOL]}, "completed"),
        (always_calls, {"tools": [TOOL]}, "max_iterations"),
        (refuses, {}, "all_providers_failed"),
        ("forbidden", {"guardrails": {"output": [BLOCKS]}}, "completed"),
        ("fine", {"guardrails": {"input": [BLOCKS]}}, "guardrail_blocked"),
    ],
)
async def test_a_run_leaves_nothing_however_it_ends(
    tmp_path: Path, says: Any, spec: dict[str, Any], end: str
) -> None:
    assert await left_by(tmp_path, says, **spec) == (end, 0)


@pytest.mark.parametrize("orchestration", [{"pattern": "plan_and_execute"}, PIPELINE])
async def test_a_run_that_fails_deep_inside_leaves_nothing(
    tmp_path: Path, orchestration: dict[str, Any]
) -> None:
    """What it failed with knows the frames that it came through, and they know the run."""
    assert await left_by(tmp_path, refuses, orchestration=orchestration) == ("all_providers_failed", 0)
