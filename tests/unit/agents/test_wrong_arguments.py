"""Arguments of the wrong kind: each raises an error of astromesh that names the argument."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from astromesh import Agent, File
from astromesh.errors import ConfigError, InvalidInput
from astromesh.testing import ScriptedProvider
from astromesh.types import Image


async def later(text: str) -> None:
    return None


def tool() -> str:
    return "a"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", None),
        ("name", 7),
        ("system", 5),
        ("tools", tool),
        ("tools", "search"),
        ("servers", ["x"]),
        ("servers", {"x": "y"}),
        ("pattern", 5),
        ("node_pool", []),
        ("node_pool", ["x"]),
        ("output_type", "City"),
        ("memory", 5),
        ("memory", Path("x.db")),
        ("memory", "sqlite::memory:"),
        ("guardrails", None),
        ("guardrails", later),
        ("guardrails", [later]),
        ("budgets", "x"),
        ("budgets", {"cost_usd": math.nan}),
        ("budgets", {"wall_seconds": math.inf}),
        ("roles", 5),
        ("variables", {"x": object()}),
        ("variables", 5),
        ("plugins", 5),
        ("data_dir", 5),
        ("store", Path("x.db")),
        ("store", "sqlite::memory:"),
        ("on_error", "ignore"),
        ("permissions", 5),
        ("system", "half a pair: \ud800"),
        ("budgets", {"tokens": 10**30}),
        ("labels", {"team": object()}),
    ],
)
def test_a_wrong_argument_of_an_agent_is_a_configuration_error(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=name if name != "node_pool" else None):
        Agent(ScriptedProvider("a"), **arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_id", 5),
        ("history", 5),
        ("attachments", "photo.png"),
        ("attachments", [5]),
        ("attachments", [Image()]),
        ("attachments", [File("x.txt", "text")]),  # type: ignore[arg-type]
        ("context", [1]),
        ("caller", "ada"),
        ("metadata", "x"),
        ("metadata", {"x": object()}),
    ],
)
async def test_a_wrong_argument_of_a_run_is_an_invalid_input(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {name: value}
    model = ScriptedProvider("a")
    with pytest.raises(InvalidInput, match=name.rstrip("s")):
        await Agent(model, memory="memory").run("q", **arguments)
    assert not model.requests


async def test_a_guardrail_that_returns_something_else_fails_with_its_name() -> None:
    def strange(text: str) -> Any:
        return 5

    with pytest.raises(ConfigError, match=r"strange.*returned 5"):
        await Agent(ScriptedProvider("a"), guardrails=[strange]).run("q")


async def test_a_system_function_that_returns_no_text_is_told_so() -> None:
    def nothing(ctx: Any) -> Any:
        return None

    with pytest.raises(ConfigError, match=r"nothing.*None"):
        await Agent(ScriptedProvider("a"), system=nothing).run("q")


async def test_a_stream_is_read_once() -> None:
    stream = Agent(ScriptedProvider("a b c")).stream("q")
    assert [text async for text in stream.text()] == ["a ", "b ", "c"]
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="read once"):
            _ = [event async for event in stream]
    assert stream.result.output == "a b c"


async def test_a_broken_pdf_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        await Agent(ScriptedProvider("a")).run("q", attachments=[File("a.pdf", b"nope")])
    assert "pdf" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("name", "value"), [("run_id", None), ("decision", None), ("arguments", 5), ("caller", "ada")]
)
async def test_a_wrong_argument_of_resume_is_an_invalid_input(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"run_id": "run-1", name: value}
    with pytest.raises(InvalidInput, match=f"{name}="):
        await Agent(ScriptedProvider("a"), store="memory").resume(**arguments)


@pytest.mark.parametrize(("query", "keys"), [("\ud800", {}), ("q", {"context": {"x": object()}})])
async def test_a_stored_run_refuses_what_is_not_json(query: str, keys: Any) -> None:
    agent = Agent(ScriptedProvider("a"), store="memory")
    with pytest.raises(InvalidInput, match="only JSON values"):
        await agent.run(query, **keys)
    assert "only JSON values" in (await agent.ainvoke(query, **keys)).report.error


def test_an_agent_is_no_tool_but_has_one() -> None:
    with pytest.raises(ConfigError, match=r"Pass `agent\.as_tool\(\)`"):
        Agent(ScriptedProvider("a"), tools=[Agent(ScriptedProvider("b"))])


def test_a_session_has_one_id() -> None:
    agent = Agent(ScriptedProvider("a"), memory="memory")
    with pytest.raises(InvalidInput, match="needs an id"):
        agent.session("")
    with pytest.raises(InvalidInput, match="is the session 'k'"):
        agent.session("k").run_sync("q", session_id="other")


def test_threads_run_beside_the_kept_loop() -> None:
    with Agent(ScriptedProvider("a", repeat=True)) as agent, ThreadPoolExecutor(4) as pool:
        found = [agent.run_sync("q"), *pool.map(agent.run_sync, ["q"] * 8), agent.run_sync("q")]
    assert [result.output for result in found] == ["a"] * 10
