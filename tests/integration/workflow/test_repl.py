"""`astromesh workflow repl`: lines become Tasks, everything through the one engine (workflow.md E60)."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from astromesh.cli.commands import workflow as command
from astromesh.cli.commands import workflow as inspecting
from astromesh.cli.commands.workflow import Session, profile_of
from astromesh.cli.terminal import LineReader
from astromesh.errors import InvalidInput
from astromesh.runtime.records import TaskRequest
from astromesh.workflow.project import check_folder, parse_settings
from tests.integration.workflow.folders import runtime_with, sample, small

PROFILES = """profiles:
  - id: chatty
    session_policies: {history_file: ./history.jsonl, persist_attachments: false, max_history_items: 3}
    input_mappings: {default: {include_profile_id: true}}
    custom_commands:
      - {name: twice, entrypoint: "typed:twice", aliases: [t], description: Doubles}
      - {name: broken, entrypoint: "typed:broken"}
    presentation_rules: {truncate_output_lines: 2, show_system_messages: true}
    telemetry_overlays: {level: detail}
  - id: texts
    session_policies: {persist_history: false}
    input_mappings: {default: {mode: text}}
"""
Typed = Any  # the fixture below: lines in, (exit code, stdout, stderr) out
TYPED = """
async def twice(argument, session):
    return (await session.run({"text": argument * 2})).output["text"]

def broken(argument, session):
    raise ValueError("as told")
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config"


@pytest.fixture
def chatty(config: Path) -> Path:
    """A workflow that answers with its input, and two profiles."""
    small(config, op="same", cli_profiles=PROFILES)
    folder = config / "workflows" / "small"
    (folder / "ops.py").write_text("async def same(input, context, tools):\n    return input\n")
    (folder / "typed.py").write_text(TYPED)
    return config


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Types lines, answers (exit code, stdout, stderr)."""

    def talk(config: Path, *lines: str, profile: str = "", settings: tuple[str, ...] = ()) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        places = (config, tmp_path / "data")
        try:
            command.repl("small", *places, profile=profile, settings=list(settings), workspace=tmp_path)
        except typer.Exit as ended:
            return (ended.exit_code, *capsys.readouterr())
        return (0, *capsys.readouterr())

    return talk


def test_e60_lines_are_inputs_and_commands_ask_again(config: Path, typed: Typed) -> None:
    """`/retry` asks the last engine input, `/edit-last` another text; what is queued ends before the end."""
    lines = ("21", "/retry", "/edit-last 5", "/queue 7", "/queue", "/history", "/quit", "never")
    code, out, told = typed(small(config), *lines)
    said = out.splitlines()
    assert (code, said[:3], said[-1]) == (0, ["42", "42", "10"], "14")
    asked = [line.split()[-1] for line in said if line.startswith("task_")][-4:]
    assert asked == ["21", "21", "5", "7"]
    assert told.count("success: s → x → e") == 3


def test_e60_failures_are_told_and_the_session_goes_on(config: Path, typed: Typed) -> None:
    code, out, told = typed(small(config, op="fail"), "1", "/nope", "/retry", "/attach gone.txt")
    assert (code, out) == (1, "1\n1\n"), "what a failed Task had come to"
    assert told.count("as told") == 2
    assert "no command /nope" in told and "gone.txt" in told


def test_e60_attachments_go_with_one_line_and_stay_in_the_workspace(
    chatty: Path, tmp_path: Path, typed: Typed
) -> None:
    """By no path and no link does anything from outside get in; the history keeps their names only."""
    (tmp_path / "note.txt").write_text("a note")
    (tmp_path / "link").symlink_to("/etc/passwd")
    lines = ("/attach note.txt", "hello", "again", "/attach ../../etc/passwd", "/attach link")
    code, _, told = typed(chatty, *lines)
    kept = [json.loads(line) for line in (chatty / "workflows/small/history.jsonl").read_text().splitlines()]
    assert code == 1 and told.count("outside of the workspace") == 2
    assert [one["output"].get("attachments") for one in kept] == [
        [{"name": "note.txt", "text": "a note"}], None,
    ]  # fmt: skip
    assert kept[0]["input"]["attachments"] == [{"name": "note.txt"}]
    assert kept[0]["input"]["profile_id"] == "chatty"
    assert kept[0]["input"]["session_id"] == kept[1]["session"]


def test_e60_the_history_is_only_appended_to_and_a_session_knows_the_latest(
    chatty: Path, typed: Typed
) -> None:
    typed(chatty, "one", "two", "three")
    before = (chatty / "workflows/small/history.jsonl").read_text()
    _, out, _ = typed(chatty, "four", "/history")
    after = (chatty / "workflows/small/history.jsonl").read_text()
    assert after.startswith(before) and len(after.splitlines()) == 4
    shown = [line for line in out.splitlines() if line.startswith("task_")]
    assert len(shown) == 3 and '"two"' in shown[0] and '"four"' in shown[-1]


def test_a_profile_says_how_outputs_are_shown_and_which_commands_there_are(
    chatty: Path, typed: Typed
) -> None:
    code, out, told = typed(chatty, "hi", "/twice ab", "/t c", "/broken", "/help")
    said = out.splitlines()
    assert code == 1 and said[:2] == ["{", '  "text": "hi",']
    assert said[2:] == ["abab", "cc"]
    assert "more lines" in told and "/twice, /t" in told and "ValueError: as told" in told
    assert "x of task_" in told, "show_system_messages"
    assert "  x " in told, "telemetry_overlays.level: detail"


def test_a_profile_is_chosen_by_its_id(chatty: Path, typed: Typed) -> None:
    assert typed(chatty, "12", profile="texts")[1] == "12\n"
    assert not (chatty / "workflows/small/history.jsonl").exists()
    with pytest.raises(InvalidInput, match="Known: chatty, texts"):
        typed(chatty, profile="nobody")


def test_a_command_that_is_not_there_is_a_fault(chatty: Path) -> None:
    (chatty / "workflows" / "small" / "typed.py").write_text("")
    faults = check_folder(chatty / "workflows" / "small").faults
    assert [fault.key for fault in faults] == [f"profiles[0].custom_commands[{i}].entrypoint" for i in (0, 1)]


# -- overrides -----------------------------------------------------------------------------------------------


async def test_settings_hold_for_one_process_and_stand_in_the_fingerprint(config: Path) -> None:
    small(config, op="wait")
    async with runtime_with(config) as runtime:
        loaded = runtime.workflows.loaded
        usual = loaded.get("small").engine
        changed = (await loaded.open("small", parse_settings(["task.timeout_s=0.05"]))).engine
        result = await runtime.workflows.run("small", TaskRequest({"go": "/nowhere"}))
    assert usual and changed and usual.project.fingerprint.value != changed.project.fingerprint.value
    assert result.error and result.error["code"] == "timeout"


@pytest.mark.parametrize("text", ["task.timeout_s", "task.timeouts=1", "nodes=3"])
def test_a_setting_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a setting"):
        parse_settings([text])


async def test_a_value_that_a_setting_may_not_have_is_refused(config: Path) -> None:
    async with runtime_with(small(config)) as runtime:
        with pytest.raises(InvalidInput, match=r"scheduler\.max_concurrency"):
            await runtime.workflows.loaded.open("small", parse_settings(["scheduler.max_concurrency=none"]))


async def test_the_sample_has_a_command_that_reviews_a_file(config: Path, tmp_path: Path) -> None:
    (tmp_path / "nda.txt").write_text("One page NDA")
    async with runtime_with(sample(config)) as runtime:
        workflow = await runtime.workflows.loaded.open("contract_review")
        assert workflow.engine is not None
        project = workflow.engine.project
        session = Session(runtime.workflows, project, profile_of(project, ""), tmp_path)
        console = command.Console(session, project, LineReader(""))
        await console.custom(session.profile.custom_commands[0], "nda.txt")
    assert session.history[-1]["output"]["verdict"] == "accept"
    log = config / "workflows" / "contract_review" / ".state" / "audit.jsonl"
    assert [json.loads(line)["type"] for line in log.read_text().splitlines()][-1] == "task.finished"


# -- inspecting ----------------------------------------------------------------------------------------------


def test_e54_the_command_steps_through_a_task(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each waiting stage is shown with its input; the Task ends as if nobody had looked."""
    places = (small(config), tmp_path / "data")
    monkeypatch.setattr("sys.stdin", io.StringIO("step\n\nwhat?\nresume\n"))
    inspecting.step_through(places, "small", "21", "", [])
    *waited, ended = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(w["waiting"][0]["stage"], w["waiting"][0]["input"]) for w in waited] == [
        ("s", 21), ("x", 21), ("e", 42), ("e", 42),
    ]  # fmt: skip
    assert (ended["status"], ended["output"]) == ("success", 42)
    inspecting.inspect(places, "small", ended["task_id"], "", "")
    assert [e["stage_id"] for e in json.loads(capsys.readouterr().out)["trace"]] == ["s", "x", "e"]
    inspecting.inspect(places, "small", ended["task_id"], "x", "")
    again = json.loads(capsys.readouterr().out)
    assert again["scratch"]["output"] == again["recorded"]["output"] == 42 and not again["divergence"]


def test_e54_the_command_waits_only_where_it_is_told_to_and_cancels(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = (small(config), tmp_path / "data")
    monkeypatch.setattr("sys.stdin", io.StringIO("cancel\n"))
    inspecting.step_through(places, "small", "21", "", ["e"])
    waited, ended = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert waited["waiting"][0]["stage"] == "e" and ended["error"]["code"] == "cancelled"
    with pytest.raises(typer.Exit):
        inspecting.step_through(places, "small", "21", "", ["nowhere"])
