"""The shipped support agent, as it is configured: answers from the knowledge folder, new files too."""

from __future__ import annotations

import shutil
from pathlib import Path

from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ManualClock

CONFIG = Path(__file__).parents[2] / "config"


async def test_the_support_agent_answers_from_the_knowledge_folder(tmp_path):
    """Without keys: quoted from the file, with its name; a file that is added counts at the next question."""
    shutil.copytree(CONFIG, tmp_path / "config")
    clock = ManualClock()
    async with AgentRuntime(tmp_path / "config", data_dir=tmp_path / "data", env={}, clock=clock) as runtime:
        assert runtime.broken == {}
        answer = await runtime.run("support-agent", "How do I reset my password?", "s1")
        assert "Settings > Security > Reset password" in answer.response
        assert "account-and-password.md" in answer.response
        assert answer.metadata["tools_called"] == ["search_knowledge_base"]
        (tmp_path / "config" / "knowledge" / "teapot.md").write_text(
            "# Teapot\n\n## Descale the teapot\n\nFill the teapot with vinegar and wait an hour.\n"
        )
        clock.advance(2.0)
        answer = await runtime.run("support-agent", "How do I descale the teapot?", "s2")
        assert "vinegar" in answer.response
        assert "teapot.md" in answer.response
