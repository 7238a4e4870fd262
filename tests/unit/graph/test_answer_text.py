"""What of the text of a run is its answer: for listeners, and for readers who cannot take text back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from astromesh.graph.audibility import AnswerSteps, AnswerText, Audibility, visible_part
from astromesh.types import CompletionResult, Event, ToolCall

# -- steps -------------------------------------------------------------------------------------------------


class Steps:
    """The steps of a run, each with the text that listeners have of it."""

    def __init__(self, **texts: str) -> None:
        self.told: list[tuple[str, Any]] = []
        self.steps = AnswerSteps(lambda name, **data: self.told.append((name, data)))
        self.texts = {int(name[1:]): text for name, text in texts.items()}
        for step in self.texts:
            self.steps.add(step, partial(self.texts.__getitem__, step))

    @property
    def set_aside(self) -> list[int]:
        assert {name for name, _ in self.told} <= {"model.commentary"}
        return [data["step"] for _, data in self.told]


def test_the_newest_step_with_the_words_of_the_answer_is_the_answer() -> None:
    run = Steps(s1="fine", s2="so far", s3="fine", s4="other")
    assert run.steps.settle("fine")
    assert run.set_aside == [1, 2, 4]
    assert run.steps.newest_text == "fine"
    assert not run.steps.settle("finer")
    assert run.set_aside == [1, 2, 4, 3]
    assert run.steps.newest_text == ""


def test_another_step_makes_commentary_of_those_before_it() -> None:
    run = Steps(s1="first", s3="third")
    run.steps.begin(2)
    assert run.set_aside == [1]
    assert run.steps.newest_text == "third"
    run.steps.begin(3)  # once more, after a crash
    assert run.set_aside == [1]
    assert run.steps.newest_text == ""


def test_listeners_hear_only_of_steps_that_they_have_text_of() -> None:
    run = Steps(s1="", s2="two", s3="three")
    run.steps.set_aside(1)
    run.steps.forget(2)
    run.steps.set_aside(2)
    run.steps.forget(2)
    assert run.told == []
    run.steps.set_aside(3)
    run.steps.set_aside(3)
    assert run.set_aside == [3]


def test_the_newest_text_is_that_of_the_highest_step() -> None:
    assert Steps(s2="two", s10="ten", s1="one").steps.newest_text == "ten"


# -- readers who cannot take text back ---------------------------------------------------------------------


def event(type: str, step: int, **data: Any) -> Event:
    return Event("run_1", 1, 0.0, type, {"step": step, **data})


def started(step: int, role: str = "assistant", tools: Iterable[str] = ()) -> Event:
    return event("model.started", step, role=role, tools=[*tools])


def delta(step: int, content: str, role: str = "assistant") -> Event:
    return event("model.delta", step, role=role, content=content)


def finished(step: int, *, calls: bool = False) -> Event:
    return event("model.finished", step, tool_calls=[{"name": "lookup"}] if calls else [])


def left(reader: AnswerText, *events: Event) -> list[str]:
    """The texts that leave with each event, joined."""
    return ["".join(reader.of(one)) for one in events]


def test_the_text_of_a_step_without_tools_leaves_at_once() -> None:
    reader = AnswerText()
    assert not reader.is_sent(1)
    assert left(reader, started(1), delta(1, "a"), delta(1, "b"), finished(1)) == ["", "a", "b", ""]
    assert reader.is_sent(1)
    assert not reader.is_sent(2)
    assert "".join(reader.rest()) == ""


def test_the_text_of_a_step_with_tools_leaves_when_it_has_called_none() -> None:
    reader = AnswerText()
    told = left(reader, started(1, tools=["lookup"]), delta(1, "a"), delta(1, "b"), finished(1), finished(1))
    assert told == ["", "", "", "ab", ""]
    assert not reader.is_sent(1)


def test_text_beside_tool_calls_is_no_answer() -> None:
    reader = AnswerText()
    told = left(
        reader,
        started(1, tools=["lookup"]),
        delta(1, "let me look"),
        finished(1, calls=True),
        event("model.commentary", 1),
        started(2),
        delta(2, "found"),
    )
    assert told == ["", "", "", "", "", "found"]
    assert [*reader.rest()] == []


@pytest.mark.parametrize("type", ["model.commentary", "model.restarted"])
def test_text_that_turns_out_to_be_none_of_the_answer_is_dropped(type: str) -> None:
    reader = AnswerText()
    events = (
        started(1, tools=["t"]),
        delta(1, "a"),
        delta(2, "b"),
        event(type, 1),
        delta(1, "c"),
        event(type, 3),
    )
    assert left(reader, *events) == [""] * 6
    assert "".join(reader.rest()) == "bc"
    assert "".join(reader.rest()) == ""


def test_other_roles_and_other_events_are_not_part_of_the_answer() -> None:
    reader = AnswerText()
    told = left(
        reader,
        started(1, role="planner"),
        delta(1, "thinking", role="planner"),
        event("tool.started", 1, role="assistant", content="x"),
        delta(1, "waits"),  # the step of a planner is not open for the assistant
        finished(1),
    )
    assert told == ["", "", "", "", "waits"]


def test_text_that_waits_can_be_discarded() -> None:
    reader = AnswerText()
    assert left(reader, delta(1, "a")) == [""]
    reader.discard()
    assert [*reader.rest()] == []


# -- one model call ----------------------------------------------------------------------------------------


def chosen(result: CompletionResult) -> str:
    return result.content[:3]


@pytest.mark.parametrize(
    ("level", "role", "own", "reported", "shown"),
    [
        (Audibility.STREAMED, "assistant", None, "assistant", None),
        (Audibility.STREAMED, "assistant", chosen, "assistant", ("wor", "wor")),
        (Audibility.STREAMED, "writer", None, "writer", None),
        (Audibility.WHEN_COMPLETE, "assistant", None, "assistant", ("words", "")),
        (Audibility.WHEN_COMPLETE, "assistant", chosen, "assistant", ("wor", "wor")),
        (Audibility.WHEN_COMPLETE, "writer", None, "writer", None),
        (Audibility.INTERMEDIATE, "assistant", None, "node", None),
        (Audibility.INTERMEDIATE, "assistant", chosen, "assistant", ("wor", "wor")),
        (Audibility.INTERMEDIATE, "writer", None, "writer", None),
        (Audibility.INTERNAL, "assistant", None, "node", None),
        (Audibility.INTERNAL, "assistant", chosen, "node", ("wor", "wor")),
        (Audibility.INTERNAL, "writer", chosen, "writer", ("wor", "wor")),
        (Audibility.HIDDEN, "assistant", chosen, "node", ("", "")),
        (Audibility.HIDDEN, "writer", None, "writer", ("", "")),
    ],
)
def test_a_level_decides_the_role_and_the_part_of_an_answer(
    level: Audibility, role: str, own: Any, reported: str, shown: tuple[str, str] | None
) -> None:
    """`shown` is what listeners get of an answer, and of one beside a tool call; None: all, as it comes."""
    found, part = visible_part(level, role, "node", own)
    plain = CompletionResult("words")
    calling = CompletionResult("words", tool_calls=(ToolCall("c", "lookup"),))
    assert found == reported
    assert (None if part is None else (part(plain), part(calling))) == shown
