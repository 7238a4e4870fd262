"""Options are refused where their value cannot be meant."""

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


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_there_is_not_is_refused(port: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--port", port, "--config", "/nowhere"])
    assert (done.exit_code, "--port" in done.output) == (2, True)


def test_the_help_of_serve_names_the_ports_that_there_are() -> None:
    assert "0<=x<=65535" in CliRunner().invoke(app, ["serve", "--help"]).output
