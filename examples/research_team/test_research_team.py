"""The team answers, and both workers were asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astromesh import AgentRuntime

HERE = Path(__file__).parent
QUESTION = "Is a heat pump of 15,000 euros good for an old house? Power is 900 euros a year, for 15 years."


def test_both_workers_are_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with AgentRuntime(HERE / "config", data_dir=tmp_path, env={}) as runtime:
            answer = await runtime.run("lead", QUESTION, "s")
        assert "28,500 euros" in answer.response
        asked = [one["agent"] for one in answer.metadata["delegations"]]
        assert sorted(asked) == ["accountant", "researcher"]

    asyncio.run(main())
