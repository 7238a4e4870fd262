"""`--session` names a conversation by the rule that holds over HTTP, too."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from astromesh.cli.main import app


@pytest.mark.parametrize("session", ["a\nb", "a\x7f", "a\x9b2J", "a" * 257, "caf\udce9"])
@pytest.mark.parametrize("command", [("run", "helper", "hi"), ("chat", "helper")])
def test_a_session_that_http_refuses_is_refused(command: tuple[str, ...], session: str) -> None:
    done = CliRunner().invoke(app, [*command, "--session", session])
    assert done.exit_code == 2
    assert "no control characters" in " ".join(done.output.replace("│", " ").split())
