"""R16: a run goes on in a server of another version: its record is what counts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from astromesh.durable.failpoints import TOOL_DONE, VARIABLE
from tests.platform.astromesh import CHILD, ROOT
from tests.platform.processes import spawned
from tests.reliability.calls import PATIENCE, call, events_of, until
from tests.reliability.payment_agent import LEASE, charges, config


def another_package(folder: Path) -> Path:
    """A copy of astromesh with another version."""
    shutil.copytree(ROOT / "astromesh", folder / "astromesh")
    changed(folder / "astromesh" / "__init__.py", r'__version__ = ".*"', '__version__ = "99.0.0"')
    return folder


def changed(file: Path, pattern: str, text: str) -> None:
    before = file.read_text()
    after = re.sub(pattern, text, before)
    assert after != before
    file.write_text(after)


def test_a_run_that_one_version_began_is_ended_by_the_next(tmp_path, mock_llm, forked_server, server_process):
    """Killed behind its first tool; each tool is called once, and the answer is whole."""
    folder = config(tmp_path / "config", mock_llm.url, "write")
    env = {
        "EFFECTS": str(tmp_path / "effects"),
        "ASTROMESH_DATA_DIR": str(tmp_path / "data"),
        **LEASE,
    }
    old = forked_server(folder, env={**env, VARIABLE: TOOL_DONE})
    run_id = call(f"{old.url}/v1/agents/teller/runs", {"query": "Charge.", "session_id": "s-1"})["run_id"]
    old.wait(PATIENCE)
    package = another_package(tmp_path / "package")
    new = server_process(folder, env={**env, "PYTHONPATH": f"{CHILD}:{package}:{ROOT}"}, spawn=spawned)
    assert call(f"{new.url}/health/live")["version"] == "99.0.0"

    def ended() -> bool:
        return call(f"{new.url}/v1/runs/{run_id}")["status"] == "completed"

    until(ended, "the run did not complete")
    assert sorted(charges(tmp_path / "effects")) == ["round 0", "round 1", "round 2"]
    events = events_of(new.url, run_id)
    assert [seq for seq, _, _ in events] == list(range(1, len(events) + 1))
