"""The programs of `examples/` run, with another model in place of theirs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall

EXAMPLES = Path(__file__).parents[3] / "examples"

SCRIPTS: dict[str, tuple[list[Any], Any]] = {
    "first_agent": ([ToolCall("1", "weather", '{"city": "Paris"}'), "Sun on the Seine.", "Yes."], "Yes."),
    "typed_answer": (
        [
            ToolCall("1", "price", '{"item": "plum"}'),
            ToolCall("2", "price", '{"item": "pear"}'),
            '{"item": "pear", "price": 0.7}',
        ],
        0.7,
    ),
    "streaming": (["one two three"], "one two three"),
}


def test_every_example_has_a_script() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module(name)
    script, answer = SCRIPTS[name]
    with example.agent.override(model=ScriptedProvider(*script)):
        assert example.main() == answer
