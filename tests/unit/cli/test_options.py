"""Options are refused where their value cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from astromesh.cli.commands.serve import has_display
from astromesh.cli.main import app_for, complete_app


@pytest.mark.parametrize("session", ["a\nb", "a\x7f", "a\x9b2J", "a" * 257, "caf\udce9"])
@pytest.mark.parametrize("command", [("run", "helper", "hi"), ("chat", "helper")])
def test_a_session_that_http_refuses_is_refused(command: tuple[str, ...], session: str) -> None:
    done = CliRunner().invoke(complete_app(), [*command, "--session", session])
    assert done.exit_code == 2
    assert "no control characters" in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("env", "platform", "expected"),
    [({}, "linux", False), ({"DISPLAY": ":0"}, "linux", True), ({"WAYLAND_DISPLAY": "w"}, "linux", True),
     ({}, "darwin", True), ({"SSH_CONNECTION": "x"}, "darwin", False)],
)  # fmt: skip
def test_the_console_opens_only_with_a_display(env: dict[str, str], platform: str, expected: bool) -> None:
    assert has_display(env, platform) is expected


def test_serve_reads_the_file_that_it_is_given_before_its_other_options(tmp_path: Path) -> None:
    """The folder of the configuration may stand in it. A file that does not exist is refused."""
    (tmp_path / "own.env").write_text(f"ASTROMESH_CONFIG_DIR={tmp_path}/named-there\n")
    words = ["serve", "--env-file", str(tmp_path / "own.env")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTROMESH_CONFIG_DIR", "x")  # so that it is what it was afterwards
        patch.delenv("ASTROMESH_CONFIG_DIR")
        done = CliRunner().invoke(complete_app(), words)
        assert "named-there" in str(done.exception)
        done = CliRunner().invoke(complete_app(), ["serve", "--env-file", str(tmp_path / "none.env")])
    assert (done.exit_code, "There is no file" in done.output) == (2, True)


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
