"""A run's events in the terminal: the answer on stdout, what the agent does on stderr."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.cli.terminal import Printer, note
from astromesh.types import Event


def sent(printer: Printer, *events: tuple[str, dict[str, Any]]) -> None:
    for seq, (kind, data) in enumerate(events, 1):
        printer.send(Event("run_1", seq, 0.0, kind, data))


def delta(content: str, role: str = "assistant", step: int = 1) -> tuple[str, dict[str, Any]]:
    return "model.delta", {"step": step, "role": role, "content": content}


STARTED = ("tool.started", {"id": "c1", "name": "lookup", "arguments": '{"query": "x"}'})
FINISHED = ("tool.finished", {"id": "c1", "name": "lookup", "ok": True, "duration_ms": 12.3})
FAILED = (
    "tool.finished",
    {"id": "c1", "name": "lookup", "ok": False, "duration_ms": 1.0, "error": "tool_timeout"},
)


def test_pieces_come_as_they_are_and_end_with_one_newline(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    sent(printer, delta("Hel"), delta("lo"))
    printer.finish("Hello")
    assert capsys.readouterr() == ("Hello\n", "")


def test_an_answer_that_did_not_come_in_pieces_is_printed_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Printer().finish("whole")
    assert capsys.readouterr().out == "whole\n"


def test_a_safe_answer_follows_what_was_said_before(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    sent(printer, delta("something"))
    printer.finish("I can't say that.")
    assert capsys.readouterr().out == "something\nI can't say that.\n"


def test_tools_are_told_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    sent(printer, delta("Let me see"), STARTED, FINISHED, delta("It is x", step=2))
    printer.finish("It is x")
    printed = capsys.readouterr()
    assert printed.out == "Let me see\nIt is x\n"
    assert printed.err == '  → lookup {"query": "x"}\n  ← lookup (12 ms)\n'


def test_a_tool_whose_call_began_before_an_approval_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    sent(Printer(), FINISHED)
    assert capsys.readouterr().err == "  ← lookup (12 ms)\n"


def test_a_tool_that_failed_is_told_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    sent(Printer(), STARTED, FAILED)
    assert "lookup failed: tool_timeout" in capsys.readouterr().err


def test_calls_that_a_pattern_makes_for_itself_are_no_part_of_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer()
    sent(printer, delta("1. plan", role="planner"), delta("done", step=2))
    printer.finish("done")
    assert capsys.readouterr().out == "done\n"


def test_long_arguments_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    sent(Printer(), ("tool.started", {"id": "c1", "name": "lookup", "arguments": "x" * 5000}))
    assert len(capsys.readouterr().err) < 300


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({}, "told\n"),
        ({"FORCE_COLOR": "1"}, "\x1b[33mtold\x1b[0m\n"),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "told\n"),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, "told\n"),
    ],
)
def test_a_note_has_colour_where_somebody_sees_it(
    env: dict[str, str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    note("to\x07ld", "yellow")
    assert capsys.readouterr().err == line
