"""Closed and full standard streams, and folders of no use: one sentence and the documented exit code."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.terminal import environment
from tests.platform.astromesh import PROGRAM

_AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {name: poet}
spec:
  identity: {description: d}
  model: {primary: {provider: embedded}}
  prompts: {system: hi}
  memory: {conversational: {backend: sqlite}}
"""
_FULL = "error: The output cannot be written: No space left on device."
#: what the log says on a busy machine
_HELD = "The event loop was held for "


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("run poet hi >&-", 2, "error: The standard output is closed"),
        ("run poet hi >/dev/full", 1, _FULL),
        ("run poet hi --json >/dev/full", 1, _FULL),
        (
            "run poet hi --stream >/dev/full",
            1,
            _FULL,
        ),
        ("run poet hi --stream --json >/dev/full", 1, _FULL),
        ("chat poet <in >/dev/full", 1, _FULL),
        ("run poet - <&-", 2, "error: The query is empty."),
        ("chat poet <&-", 0, ""),
        (
            "run poet hi --session s --data /proc/nope",
            2,
            "error: The data folder /proc/nope cannot be created",
        ),
        ("serve --port 0 --data /proc/nope", 2, "error: The data folder /proc/nope cannot be created"),
        ("serve --port 0 --workers 2 --data in", 2, "error: The data folder in cannot be written"),
        ("worker --data /proc/nope", 2, "error: The data folder /proc/nope cannot be created"),
        ("keys create me --data /proc/nope", 2, "error: The data folder /proc/nope cannot be created"),
    ],
)
def test_what_is_no_fault_of_ours_is_one_sentence(tmp_path: Path, words: str, code: int, says: str) -> None:
    agents = tmp_path / "config" / "agents"
    agents.mkdir(parents=True)
    (agents / "poet.agent.yaml").write_text(_AGENT)
    (tmp_path / "in").write_text("hi\n")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" {words}', str(PROGRAM)],
        cwd=tmp_path,
        env=environment(tmp_path, None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert "fault of astromesh" not in done.stderr
    assert "Traceback" not in done.stderr
    if "full" in words:  # the sentence alone, and the run has completed
        lines = [line for line in done.stderr.splitlines() if _HELD not in line]
        assert lines[0].startswith(says)
        assert _statuses(tmp_path) == ["completed"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [("validate", 2, "error: The working folder no longer exists"), ('validate "$1"', 0, "")],
)
def test_a_working_folder_that_is_gone_is_one_sentence(
    tmp_path: Path, words: str, code: int, says: str
) -> None:
    """An absolute folder is read all the same."""
    for name in ("config", "gone"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", f'rmdir ../gone && exec "$0" {words}', str(PROGRAM), str(tmp_path / "config")],
        cwd=tmp_path / "gone",
        env=environment(tmp_path, None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith(says)) == (code, True), done.stderr
    assert "fault of astromesh" not in done.stderr


def _statuses(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / ".astromesh" / "astromesh.db")) as connection:
        return [status for (status,) in connection.execute("SELECT status FROM runs")]
