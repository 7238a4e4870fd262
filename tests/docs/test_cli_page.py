"""docs/cli.md names every command and every scope."""

from __future__ import annotations

import re
from itertools import takewhile

import typer

from astromesh.access.scopes import DEFAULT_SCOPES, SCOPES
from astromesh.cli.main import complete_app
from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text()


def commands_of(group: object, before: str = "") -> set[str]:
    """`serve`, `keys create` …, of a group of commands and those below it."""
    found: set[str] = set()
    for name, command in getattr(group, "commands", {}).items():
        below = commands_of(command, f"{before}{name} ")
        alone = getattr(command, "invoke_without_command", False)
        found |= below | ({f"{before}{name}"} if alone or not below else set())
    return found


def documented() -> set[str]:
    """The commands of the table; `astromesh keys create`, `list`, `revoke` are three of them."""
    found: set[str] = set()
    for cell in re.findall(r"^\| (`astromesh .+?) \| ", PAGE, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        words = list(takewhile(str.islower, re.findall(r"[^\s\[]+", first.removeprefix("astromesh "))))
        found |= {" ".join(words), *(f"{words[0]} {other}" for other in others)}
    return found


def test_every_command_stands_in_the_table_and_no_other() -> None:
    there = commands_of(typer.main.get_command(complete_app()))
    assert {"serve", "keys create", "workflow eval"} <= there
    assert documented() == there


def test_every_scope_stands_there_marked_where_a_key_has_it_unasked() -> None:
    rows = re.findall(r"^\| `([a-z]+(?::[a-z]+)?)` \| .+? \| (●?) ?\|$", PAGE, re.MULTILINE)
    assert {scope for scope, _ in rows} == set(SCOPES)
    assert {scope for scope, mark in rows if mark} == set(DEFAULT_SCOPES)
