"""`docs/coming-from-*.md`: our programs run, and none is longer than that of the other library beside it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from astromesh import Agent
from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.docs.blocks import blocks_of
from tests.platform.astromesh import ROOT

LIBRARIES = ("langgraph", "pydantic-ai", "openai-agents", "agno", "crewai")

#: section -> what the model answers, and what the program returns
SCRIPTS: Mapping[str, tuple[Sequence[Any], Any]] = {
    "A model and a tool": ([ToolCall("1", "weather", '{"city": "Paris"}'), "Sunny."], "Sunny."),
    "Streaming": (["one two three"], ["one ", "two ", "three"]),
    "The second turn": (
        ["Hello.", lambda request: "Ada." if "Ada" in str(request.messages) else "?"],
        "Ada.",
    ),
    "Structured output": (['{"name": "Paris", "country": "France"}'], {"name": "Paris", "country": "France"}),
    "Dependencies and retries": (
        [
            ToolCall("1", "price", '{"item": "plum"}'),
            ToolCall("2", "price", '{"item": "pear"}'),
            lambda request: request.messages[-1].content,
        ],
        "0.7",
    ),
    "Human approval": (
        [ToolCall("1", "refund", '{"order": 7}'), lambda request: request.messages[-1].content],
        "refunded 7",
    ),
    "Several agents": (
        [
            ToolCall("1", "french", '{"query": "hello"}'),
            "Bonjour.",
            lambda request: request.messages[-1].content,
        ],
        "Bonjour.",
    ),
    "A crew": (
        ["Hot. Green. Old.", lambda request: f"Tea: {request.messages[-1].content}"],
        "Tea: Hot. Green. Old.",
    ),
    "Parallel map-reduce": (
        ["One.", "Two.", lambda request: request.messages[-1].content],
        {11, "One.\nTwo."},
    ),
}


#: sections that a page does not have
LEFT_OUT: Mapping[str, set[str]] = {
    "langgraph": {"Dependencies and retries", "Several agents", "A crew"},
    "pydantic-ai": {"Several agents", "A crew"},
    "openai-agents": {"A crew"},
    "agno": {"A crew"},
    "crewai": {"Dependencies and retries", "Several agents"},
}


def sections(library: str) -> dict[str, list[str]]:
    """The Python programs of each section of a page: theirs, ours."""
    page = ROOT / "docs" / f"coming-from-{library}.md"
    found = {}
    for section in page.read_text().split("\n## ")[1:]:
        title = section.partition("\n")[0]
        found[title] = [one.content for one in blocks_of(page.name, section) if one.language == "python"]
    return found


CASES = [
    pytest.param(title, *both, id=f"{library}: {title}")
    for library in LIBRARIES
    for title, both in sections(library).items()
]


def lines(program: str) -> int:
    return sum(bool(line.strip()) for line in program.splitlines())


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_page_shows_what_people_ask_for(library: str) -> None:
    assert sections(library).keys() == SCRIPTS.keys() - LEFT_OUT[library]


@pytest.mark.parametrize(("title", "theirs", "ours"), CASES)
def test_ours_is_never_longer(title: str, theirs: str, ours: str) -> None:
    ast.parse(theirs)
    assert "astromesh" not in theirs
    assert lines(ours) <= lines(theirs)


@pytest.mark.parametrize(("title", "theirs", "ours"), CASES)
def test_ours_runs(title: str, theirs: str, ours: str) -> None:
    """The model alone is another one."""
    script, expected = SCRIPTS[title]
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(ours, title, "exec"), namespace)
    model = ScriptedProvider(*script)
    with contextlib.ExitStack() as overridden:
        for value in namespace.values():
            if isinstance(value, Agent):
                overridden.enter_context(value.override(model=model))
        answer = outcome(namespace["main"])
    assert answer in expected if isinstance(expected, set) else answer == expected


def outcome(main: Any) -> Any:
    answer = asyncio.run(main()) if inspect.iscoroutinefunction(main) else main()
    return answer.model_dump() if hasattr(answer, "model_dump") else answer
