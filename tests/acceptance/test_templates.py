"""`astromesh new` and `init`: from each template to its first answer, offline."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from astromesh.cli.commands.new import TEMPLATES
from astromesh.cli.main import complete_app
from astromesh.config.folder import load
from tests.acceptance.terminal import astromesh, environment
from tests.platform.astromesh import PROGRAM

#: template -> what its first answer has
FIRST_ANSWERS = {
    "support-bot": "30 days", "research-team": "config/knowledge", "rag": "session_id",
    "approvals": '"paid"', "whatsapp": "project_tools.py", "batch": '"characters"',
}  # fmt: skip


def test_every_template_is_tried() -> None:
    """`agent` and `workflow` are in test_cli_commands.py and test_workflow_command.py."""
    assert set(TEMPLATES) - set(FIRST_ANSWERS) == {"agent", "workflow"}


@pytest.mark.parametrize(("template", "said"), FIRST_ANSWERS.items())
def test_a_new_project_is_valid_and_answers_at_once(tmp_path: Path, template: str, said: str) -> None:
    made = astromesh(tmp_path, "new", "shop", "--template", template, "--json")
    assert (made.returncode, made.stderr) == (0, "")
    report = json.loads(made.stdout)
    assert "config/runtime.yaml" in report["written"]
    commands = [shlex.split(command) for command in report["try"]]
    assert commands[0] == ["cd", "shop"]
    valid = astromesh(tmp_path / "shop", "validate", ".")
    assert valid.returncode == 0, valid.stdout
    done = astromesh(tmp_path / "shop", *commands[1][1:])
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_new_channel_is_closed_until_its_secrets_are_there(tmp_path: Path) -> None:
    """Else anybody who knows the template could sign messages."""
    assert astromesh(tmp_path, "new", "shop", "--template", "whatsapp").returncode == 0
    file = tmp_path / "shop" / "config" / "channels.yaml"
    assert load(file.parent).channels.spec.channels == {}
    lines = file.read_text().replace("  channels: {}\n", "").splitlines()
    yaml = [line.replace("  # ", "  ", 1) if re.match(r"  # +\w+:( |$)", line) else line for line in lines]
    file.write_text("\n".join(yaml) + "\n")
    values = dict.fromkeys(re.findall(r"\bWHATSAPP_\w+", file.read_text()), "1")
    assert set(values) <= set((tmp_path / "shop" / ".env.example").read_text().replace("=", " ").split())
    (channel,) = load(file.parent, env=values).channels.spec.channels
    assert channel == "whatsapp"
    assert load(file.parent, env={}).faults != ()


def test_init_adds_a_configuration_and_changes_no_file(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / ".gitignore").write_text("build\n")
    made = astromesh(tmp_path, "init", "--name", "clerk")
    assert (made.returncode, "README.md" in made.stderr, "is in this folder." in made.stdout) == (
        0,
        True,
        True,
    )
    assert "Let .gitignore name .env" in made.stderr
    assert (tmp_path / "README.md").read_text() == "mine"
    assert (tmp_path / "config" / "agents" / "clerk.agent.yaml").exists()
    again = astromesh(tmp_path, "init")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert astromesh(tmp_path, "init", "nowhere").returncode == 2


@pytest.mark.parametrize(
    ("line", "found"), [("astromesh ser", "serve"), ("astromesh serve --env", "--env-file"),
                        ("astromesh runs re", "resume")],
)  # fmt: skip
def test_a_shell_completes_commands_and_options(tmp_path: Path, line: str, found: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    env = environment(tmp_path, {"_ASTROMESH_COMPLETE": "complete_bash", **words})
    done = subprocess.run([PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [found]


#: what serves, talks or logs in until it is ended, what prints JSON alone, and what has no result
_WITHOUT = {
    "serve", "dev", "worker", "chat", "mcp login", "mcp logout", "schema", "workflow inspect",
    "workflow repl", "migrate", "rag questions",
}  # fmt: skip


def test_every_command_with_a_result_has_json() -> None:
    def lacking(group: object, before: str = "") -> set[str]:
        found: set[str] = set()
        for name, command in getattr(group, "commands", {}).items():
            below = lacking(command, f"{before}{name} ")
            options = {option for one in command.params for option in one.opts}
            is_group = bool(getattr(command, "commands", None))
            found |= below if is_group or "--json" in options else {f"{before}{name}"}
        return found

    assert lacking(typer.main.get_command(complete_app())) == _WITHOUT
