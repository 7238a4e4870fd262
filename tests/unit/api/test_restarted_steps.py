"""A model call that is made again after a crash: void text is joined to none that counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astromesh.api.agui import AguiEncoder, AguiRun
from astromesh.api.routes.openai import _Chunks, _Form
from astromesh.api.ws import to_frame
from astromesh.cli.terminal import Printer
from astromesh.types import Event

RUN = "run_1"
METADATA = {
    "guardrails": [],
    "tokens_used": 3,
    "usage": {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0},
}


def broken_off_and_made_again(tools: int) -> list[Event]:
    """The events of a run whose only model call had said `Hel` when its process died."""
    said: list[tuple[str, dict[str, Any]]] = [
        ("run.started", {"session_id": "s"}),
        ("model.started", {"step": 1, "role": "assistant", "tools": tools}),
        ("model.delta", {"step": 1, "role": "assistant", "content": "Hel"}),
        ("model.restarted", {"step": 1}),
        ("model.delta", {"step": 1, "role": "assistant", "content": "Hello"}),
        ("model.finished", {"step": 1, "role": "assistant", "tool_calls": []}),
        ("run.completed", {"response": "Hello", "agent": "a", "session_id": "s", "metadata": METADATA}),
    ]
    return [Event(RUN, n, 0.0, kind, data) for n, (kind, data) in enumerate(said, 1)]


def test_ag_ui_shows_runs_that_earlier_versions_have_stored_without_their_usage() -> None:
    for kind, data in (("run.failed", {"code": "internal", "detail": "No."}), ("run.cancelled", {})):
        encoder = AguiEncoder(AguiRun("t", "r"), lambda: None)
        *_, last = encoder(Event(RUN, 1, 0.0, kind, data)).decode().split("data: ")
        assert json.loads(last)["usage"] == []


def test_a_socket_hears_that_the_tokens_of_a_step_are_void() -> None:
    frames = [frame for event in broken_off_and_made_again(1) if (frame := to_frame(event))]
    assert [f["type"] for f in frames] == ["run_started", "token", "restarted", "token", "done"]
    again = frames[2]
    assert again == {"type": "restarted", "step": 1, "run_id": RUN, "seq": 4}
    counted = [f["content"] for f in frames[3:] if f["type"] == "token"]
    assert "".join(counted) == frames[-1]["response"]


def test_a_chat_completion_leaves_out_what_is_void() -> None:
    encode = _Chunks(_Form("a"), usage=False)
    sent = b"".join(map(encode, broken_off_and_made_again(1))).decode()
    chunks = [json.loads(line[6:]) for line in sent.split("\n\n") if line and "[DONE]" not in line]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello"


def test_the_terminal_shows_it_on_a_new_line_and_the_answer_once(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    for event in broken_off_and_made_again(1):
        printer.send(event)
    printer.finish("Hello")
    assert capsys.readouterr().out == "Hel\nHello\n"
