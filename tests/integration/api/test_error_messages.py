# ruff: noqa: E501
"""What is refused is said in words that its reader can use: callers of the API, people at a terminal."""

from __future__ import annotations

import socket
import sys
from errno import EACCES, ENOENT
from pathlib import Path

import pytest

from astromesh.cli.commands.agents import checked_query, find_agent
from astromesh.cli.commands.serve import announce, command_line
from astromesh.cli.errors import report_os_error
from astromesh.config.folder import Configuration
from astromesh.errors import AgentNotFoundError, InvalidInput
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

RUN = "/v1/agents/helper/run"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"query": " \\n\\t", "session_id": "s"}', "query: it must not be blank."),
        (b'{"query": "\\u200b\\u2800 \\u0000", "session_id": "s"}', "query: it must not be blank."),
        (b'{"query": "x", "session_id": "a\\nb"}', "session_id: it must not contain control characters, such as line ends or tabs."),
        (b'{"query": "x", "session_id": "a\\u007fb"}', "session_id: it must not contain control characters"),
        (b'{"query": "x", "session_id": "a\\u0080b"}', "session_id: it must not contain control characters"),
        (b'{"query": "x", "session_id": "a\\u009fb"}', "session_id: it must not contain control characters"),
        (b'{"query": "\xff", "session_id": "s"}', "The body is not UTF-8, as JSON must be."),
        (b'{"query": ', "The body is not JSON: unexpected end"),
    ],
)  # fmt: skip
async def test_a_body_that_is_refused_says_why_in_words(tmp_path: Path, body: bytes, detail: str) -> None:
    """No patterns of ours, no internals of a parser; nothing is run."""
    provider = ScriptedProvider("never")
    async with client_of(runtime_of(write(tmp_path, manifest()), provider)) as client:
        refused = await client.post(RUN, content=body)
    assert refused.status_code == 422
    assert detail in refused.json()["detail"]
    assert not provider.requests


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        ("application/json", b'{"decision": ', "The body is not JSON: Expecting value at character 13."),
        ("application/json", b"", "The request is not valid: body: it is required."),
        ("application/json", b"[]", "The request is not valid: body: it must be a JSON object."),
        (
            "application/x-www-form-urlencoded",
            b'{"decision": "approve"}',
            "The request is not valid: body: it is read as JSON only with the header `content-type: application/json`.",
        ),
    ],
)
async def test_a_body_of_another_route_is_refused_in_words_too(
    tmp_path: Path, kind: str, body: bytes, detail: str
) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        refused = await client.post("/v1/runs/run_1/resume", content=body, headers={"content-type": kind})
    assert (refused.status_code, refused.json()["detail"]) == (422, detail)


async def test_a_value_of_several_types_is_named_by_its_key_alone(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        refused = await client.post(
            "/v1/chat/completions", json={"model": "helper", "messages": [], "stop": 5}
        )
    assert "stop: Input should be a valid string; stop: Input should be a valid list; " in refused.text


async def test_a_nul_in_a_query_is_refused_without_a_pattern(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        refused = await client.get("/v1/runs", params={"agent": "a\0b"})
    assert refused.json()["detail"] == "The request is not valid: query.agent: it must not contain U+0000."


async def test_a_session_by_header_is_utf_8_as_in_a_body(tmp_path: Path) -> None:
    """U+00DC has a byte that would be a control character, were every byte a character; C1 controls are refused."""
    asked = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}
    names = {b"x-session-id": "\u00dc".encode()}, {b"x-session-id": b"\xdc"}, {b"x-session-id": b"a\xc2\x9bb"}
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider("one", "two"))) as client:
        said = [await client.post("/v1/chat/completions", json=asked, headers=name) for name in names]
    assert [answer.status_code for answer in said] == [200, 200, 400]
    assert "X-Session-Id" in said[2].json()["error"]["message"]
    assert [answer.json()["astromesh"]["session_id"] for answer in said[:2]] == ["\u00dc", "\u00dc"]


@pytest.mark.parametrize("path", [f"{RUN}/", "/v1/agents/", "/v1/agents/helper/", "/mcp/", "/health/live/"])
async def test_a_slash_too_many_is_404_and_no_redirect(tmp_path: Path, path: str) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        said = [await client.get(path), await client.post(path, json={"query": "x", "session_id": "s"})]
    assert [(answer.status_code, answer.json()["code"]) for answer in said] == [(404, "not_found")] * 2


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/traces", "/v1/tasks"])
async def test_a_wrong_status_names_those_that_there_are(tmp_path: Path, path: str) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider())) as client:
        refused = await client.get(path, params={"status": "foo"})
    assert refused.json()["detail"].count("Input should be") == 1


async def test_who_names_no_agent_in_a_terminal_reads_which_there_are(tmp_path: Path) -> None:
    """A name that is near is proposed, otherwise all are listed."""
    folder = write(tmp_path, manifest("one"), manifest("two"))
    async with runtime_of(folder, ScriptedProvider()) as runtime:
        assert find_agent(runtime, "two").name == "two"
        with pytest.raises(AgentNotFoundError, match="Known: one, two"):
            find_agent(runtime, "xyz")
        with pytest.raises(AgentNotFoundError, match="Did you mean `two`"):
            find_agent(runtime, "tow")


def test_the_lines_to_paste_call_the_command_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name where the shell finds it, otherwise by its path."""
    command = tmp_path / ".venv" / "bin" / "astromesh"
    command.parent.mkdir(parents=True)
    command.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(command)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert command_line() == ".venv/bin/astromesh"
    monkeypatch.setenv("PATH", str(command.parent))
    assert command_line() == "astromesh"


def test_a_server_of_every_address_says_so_and_proposes_the_agent_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        announce(
            listener,
            (tmp_path, tmp_path / "data"),
            Configuration(tmp_path),
            ["account-agent", "support-agent"],
        )
        port = listener.getsockname()[1]
    said = capsys.readouterr()
    assert f"listens on http://127.0.0.1:{port}  (and every other address of this machine;" in said.out
    assert "chat support-agent" in said.out
    assert "/v1/agents/support-agent/run" in said.out


def test_a_file_that_a_command_may_not_open_is_named_and_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_os_error(PermissionError(EACCES, "Permission denied", "locked/config")) == 2
    assert capsys.readouterr().err == "error: Cannot open locked/config: Permission denied.\n"
    assert report_os_error(FileNotFoundError(ENOENT, "No such file or directory", "of/ours")) == 0


@pytest.mark.parametrize(
    ("query", "said"),
    [("", "empty"), (" \u200b\x00", "empty"), ("caf\udce9", "not UTF-8")],
)
def test_what_was_typed_and_is_no_query_is_refused_at_the_door(query: str, said: str) -> None:
    """By `run` and `chat` alike: nothing to be seen, and bytes that are no text."""
    with pytest.raises(InvalidInput, match=said):
        checked_query(query)


def test_what_was_typed_is_asked_as_it_is() -> None:
    assert checked_query("café ❤\ufe0f\n") == "café ❤\ufe0f\n"
