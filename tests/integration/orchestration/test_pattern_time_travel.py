"""Forks and replays of every pattern: nothing before a step is executed again, and the answer is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.time_travel import ForkRequest
from astromesh.types import CallerContext
from tests.integration.orchestration.pattern_cases import runtime_for
from tests.integration.orchestration.test_pattern_journals import CUTS, ME, SAFE, accepted, ended, process

CALLER = CallerContext(scopes=frozenset({"admin"}))


async def steps_of(runtime: AgentRuntime, run_id: str) -> list[dict[str, Any]]:
    return await runtime.time_travel.steps(run_id, ME)


@pytest.mark.parametrize("name", sorted(CUTS))
async def test_a_fork_at_any_step_makes_the_rest_of_the_calls_and_has_the_same_answer(
    tmp_path: Path, name: str
) -> None:
    """The model is asked as often as the run has asked it from the step on."""
    case = CUTS[name]
    async with process(tmp_path, case, case.script) as one:
        whole = await ended(one, run_id := await accepted(one))
        steps = await steps_of(one, run_id)
    for step in steps:
        made = sum(s["kind"] == "model" for s in steps if s["step"] < step["step"])
        runtime, provider = runtime_for(
            tmp_path, case, case.script[made:], **({"tools": SAFE} if case.spec else {})
        )
        async with runtime:
            await runtime.durable.start()
            row = await runtime.time_travel.fork(run_id, ME, ForkRequest(step["step"]), CALLER)
            fork = await ended(runtime, row.run_id)
            assert fork["result"]["response"] == whole["result"]["response"], step
            assert len(provider.requests) == len(case.script) - made, step


@pytest.mark.parametrize("name", sorted(CUTS))
async def test_a_replay_reproduces_prompts_requests_arguments_and_answer(tmp_path: Path, name: str) -> None:
    """Without a model: its script is empty."""
    case = CUTS[name]
    async with process(tmp_path, case, case.script) as one:
        await ended(one, run_id := await accepted(one))
        models = sum(step["kind"] == "model" for step in await steps_of(one, run_id))
    async with process(tmp_path, case, ()) as two:
        replay = await two.time_travel.replay(run_id, ME)
        assert replay["divergence"] is None
        assert replay["reproduced"]
        assert replay["compared"] >= models + 2
        assert len(await two.durable.store.steps(run_id)) > models
