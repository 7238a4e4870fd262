"""A Python function that cannot be offered breaks its agent alone, and every command says where."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import typer

from astromesh.cli.commands.agents import run
from astromesh.cli.commands.doctor import doctor
from astromesh.cli.commands.validate import report_faults
from astromesh.runtime.engine import AgentRuntime
from tests.integration.agents_folder import manifest, write

_MODULE = """
from typing import Annotated, Optional
from pydantic import Field
from astromesh.tools.base import ToolContext

class Raising:
    @classmethod
    def __get_pydantic_core_schema__(cls, *args):
        raise RuntimeError("the hook breaks")

def pattern(code: Annotated[str, Field(pattern=r"^(?!0)")]): ...
def hook(code: Raising): ...
def syntax(code: "1+"): ...
def context(query: str, context: Optional[ToolContext] = None): ...
"""
_EMBEDDED = {"primary": {"provider": "embedded"}}


def agent(name: str, function: str = "") -> dict[str, Any]:
    tools = [{"name": "find", "type": "internal", "function": f"odd_hints:{function}"}] if function else []
    return manifest(name, model=_EMBEDDED, tools=tools)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "odd_hints.py").write_text(_MODULE)
    broken = [agent(name, name) for name in ("pattern", "hook", "syntax")]
    write(tmp_path / "config", agent("good"), agent("context", "context"), *broken)
    return tmp_path / "config", tmp_path / "data"


def test_validate_says_the_place_of_each(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_faults(places[0]) == 2
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3
    for name, says in (("pattern", "look-around"), ("hook", "the hook breaks"), ("syntax", "SyntaxError")):
        [line] = [line for line in told if f"{name}.agent.yaml:" in line]
        place, _, rest = line.partition(": ")
        assert all(int(number) > 0 for number in place.rpartition(".yaml:")[2].split(":"))
        assert "spec.tools[0].function" in rest
        assert says in rest


def test_doctor_says_which_agents_cannot_run(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        doctor(*places)
    assert ended.value.exit_code == 2
    said = capsys.readouterr().out
    assert "good  can run" in said
    assert "context  can run" in said


def test_the_other_agents_run(places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Their owner is told of the broken ones only where one of them is asked for."""
    for name in ("good", "context"):
        run(name, "hi", *places)
        assert capsys.readouterr().out
    with pytest.raises(typer.Exit) as caught:
        run("pattern", "hi", *places)
    assert caught.value.exit_code == 2
    assert "look-around" in capsys.readouterr().err


def test_a_server_starts_with_the_others(places: tuple[Path, Path]) -> None:
    async def opened() -> tuple[set[str], set[str]]:
        async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
            return set(runtime.agents), set(runtime.broken)

    assert asyncio.run(opened()) == ({"good", "context"}, {"pattern", "hook", "syntax"})
