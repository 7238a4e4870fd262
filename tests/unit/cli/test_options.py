"""Options are refused where their value cannot be meant."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from astromesh.cli.main import app_for, complete_app


@pytest.mark.parametrize("session", ["a\nb", "a\x7f", "a\x9b2J", "a" * 257, "caf\udce9"])
@pytest.mark.parametrize("command", [("run", "helper", "hi"), ("chat", "helper")])
def test_a_session_that_http_refuses_is_refused(command: tuple[str, ...], session: str) -> None:
    done = CliRunner().invoke(complete_app(), [*command, "--session", session])
    assert done.exit_code == 2
    assert "no control characters" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_there_is_not_is_refused(port: str) -> None:
    done = CliRunner().invoke(complete_app(), ["serve", "--port", port, "--config", "/nowhere"])
    assert (done.exit_code, "--port" in done.output) == (2, True)


def test_the_help_of_serve_names_the_ports_that_there_are() -> None:
    assert "0<=x<=65535" in CliRunner().invoke(complete_app(), ["serve", "--help"]).output


def test_the_list_of_commands_shows_what_the_commands_say_of_themselves() -> None:
    """It stands in a table, so that `astromesh --help` does not load every command."""
    listed = typer.main.get_command(app_for(["--help"]))
    loaded = typer.main.get_command(complete_app())
    assert isinstance(listed, typer.core.TyperGroup) and isinstance(loaded, typer.core.TyperGroup)
    assert list(listed.commands) == list(loaded.commands)
    for name, command in loaded.commands.items():
        text = listed.commands[name].help
        assert text and (command.help or "").startswith(text), name


def test_a_command_that_there_is_not_is_refused() -> None:
    done = CliRunner().invoke(app_for(["serv"]), ["serv"])
    assert (done.exit_code, "No such command 'serv'" in done.output) == (2, True)


def test_a_group_without_a_command_lists_its_commands() -> None:
    done = CliRunner().invoke(app_for(["keys"]), ["keys"])
    assert "create" in done.output and "revoke" in done.output
