"""The cases pass from the recording, and fail where the agent is another one."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from astromesh import Agent
from astromesh.agents.evaluation import AgentTarget
from astromesh.evaluation.base import Options
from astromesh.evaluation.dataset import agent_cases
from astromesh.evaluation.evaluate import run_cases

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("prompt", "passed"), [("Refuse everything else", True), ("Answer everything", False)]
)
def test_the_cases_notice_another_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, passed: bool
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder = shutil.copytree(HERE, tmp_path / "tutor")
    file = folder / "config" / "agents" / "tutor.agent.yaml"
    file.write_text(file.read_text().replace("Refuse everything else", prompt))

    async def main() -> None:
        agent = Agent.from_yaml(file, on_error="return", data_dir=tmp_path / "data")
        cases = agent_cases(folder / "config", "tutor")
        assert (await run_cases(AgentTarget(agent), cases, Options())).passed is passed

    asyncio.run(main())
