"""The tool port over plain tools: exactly one result for each call, whatever the model or the tool does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from astromesh.errors import BudgetExhausted, ConfigError, ToolPermissionError
from astromesh.testing import RecordingTool, ScriptedTools
from astromesh.tools.base import ToolContext
from astromesh.tools.functions import tool
from astromesh.tools.toolbox import ToolBox, as_tool, tool_port
from astromesh.types import ToolCall, ToolSpec

CONTEXT = ToolContext()


async def search(query: str, top_k: int = 3) -> list[str]:
    """Searches."""
    return [query] * top_k


async def run(box: ToolBox, name: str, arguments: str = "{}"):
    return await box.execute(ToolCall("c1", name, arguments), CONTEXT)


async def test_a_good_call_gives_text_and_value():
    """The model is shown JSON; whoever needs the data finds it in `value`."""
    result = await run(ToolBox([search]), "search", '{"query": "a", "top_k": 2}')
    assert (result.call_id, result.name, result.ok) == ("c1", "search", True)
    assert (result.content, result.value) == ('["a","a"]', ["a", "a"])


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("serach", "{}", "Did you mean 'search'"),
        ("SEARCH", "{}", "Did you mean 'search'"),
        ("search", "{query: a}", "not valid JSON"),
        ("search", '["a"]', "must be a JSON object"),
        ("search", "{}", '"query" is a required property'),
        ("search", '{"query": 1}', "query: 1 is not of type"),
        ("search", '{"query": "a", "colour": 1}', "colour"),
    ],
)
async def test_what_the_model_did_wrong_comes_back_corrected(name, arguments, says):
    """Trap 24: unknown tools and bad arguments are one corrective result each, never an exception."""
    result = await run(ToolBox([search, RecordingTool("other")]), name, arguments)
    assert (result.call_id, result.ok, result.error) == ("c1", False, "invalid_tool_call")
    assert says in result.content


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}"])
async def test_no_arguments_can_be_said_in_several_ways(arguments):
    """Some models send an empty text or null where a tool takes nothing."""
    tool = RecordingTool("now", "noon")
    assert (await run(ToolBox([tool]), "now", arguments)).content == "noon"
    assert tool.calls == [{}]


async def test_a_tool_that_raises_is_a_failed_result():
    """Foreign errors become `tool_failed`, ToolErrors keep their code."""
    refusing = RecordingTool("b", ToolPermissionError("b", "bot"))
    box = ToolBox([RecordingTool("a", ValueError("boom")), refusing])
    failed, refused = await run(box, "a"), await run(box, "b")
    assert (failed.ok, failed.error) == (False, "tool_failed")
    assert "ValueError: boom" in failed.content
    assert refused.error == "tool_not_permitted"


async def test_a_limit_of_the_run_is_not_swallowed():
    """A nested run that ran out of budget ends the whole run."""
    with pytest.raises(BudgetExhausted):
        await run(ToolBox([RecordingTool("a", BudgetExhausted("over"))]), "a")


async def test_a_slow_tool_is_cancelled_at_its_own_timeout():
    """The timeout cancels the tool and is told to the model; another tool's timeout is its own."""
    cancelled = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async def own() -> None:
        raise TimeoutError("upstream")

    box = ToolBox([slow, own], timeouts={"slow": 0.01})
    result = await run(box, "slow")
    assert (result.ok, result.error) == (False, "tool_timeout")
    assert cancelled.is_set()
    assert (await run(box, "own")).error == "tool_failed"


async def test_values_of_many_types_become_text():
    """Models, dataclasses, sets and strange objects are all shown as JSON; text stays text."""

    class Ticket(BaseModel):
        id: int

    @dataclass
    class Point:
        x: int

    values = {"a": Ticket(id=1), "b": Point(2), "c": {3}, "d": "plain", "e": None, "f": {1: object}}
    box = ToolBox([RecordingTool(name, value) for name, value in values.items()])
    texts = [(await run(box, name)).content for name in values]
    assert texts == ['{"id":1}', '{"x":2}', "[3]", "plain", "null", '{"1":"<class \'object\'>"}']


async def test_a_huge_result_is_cut_and_says_so():
    """The model learns that there was more."""
    text = (await run(ToolBox([RecordingTool("a", "x" * 200_000)]), "a")).content
    assert len(text) < 101_000
    assert text.endswith("[cut: the result has 200000 characters]")


def test_two_tools_of_one_name_are_refused():
    """Which one the model gets would be chance."""
    with pytest.raises(ConfigError, match="two tools named 'search'"):
        ToolBox([search, RecordingTool("search")])


async def test_a_broken_schema_is_named():
    """A tool that comes with nonsense as its schema fails with its name; other tools work."""
    broken = RecordingTool("broken")
    broken.spec = ToolSpec("broken", parameters={"type": "nonsense"})
    assert "'broken'" in (await run(ToolBox([broken]), "broken")).content


async def test_ports_lists_and_nothing_are_all_tools():
    """`tool_port` takes what users give."""
    scripted = ScriptedTools({"a": "x"})
    assert tool_port(scripted) is scripted
    assert [s.name for s in tool_port([search]).specs()] == ["search"]
    assert tool_port(None).specs() == ()
    nothing = await tool_port(None).execute(ToolCall("c1", "x"), CONTEXT)
    assert (nothing.ok, nothing.error) == (False, "invalid_tool_call")


def test_what_is_no_tool_is_refused():
    """A value that cannot be called is an error at once."""
    with pytest.raises(ConfigError, match="neither a tool nor a function"):
        as_tool(3)  # type: ignore[arg-type]


async def test_keys_of_the_decorator_hold():
    """A tool in a graph is limited as the same tool of an agent."""

    @tool(timeout_seconds=0.01)
    async def slow() -> str:
        await asyncio.Event().wait()
        return "late"

    @tool(rate_limit={"max_calls": 1, "window_seconds": 3600}, max_result_tokens=10)
    async def rare() -> str:
        return "x" * 1000

    box = ToolBox([slow, rare])
    assert (await run(box, "slow")).error == "tool_timeout"
    first, second = await run(box, "rare"), await run(box, "rare")
    assert len(first.content) < 200
    assert second.error == "tool_rate_limited"


@pytest.mark.parametrize(
    "keys", [{"approval": "requird"}, {"timeout_seconds": -1}, {"approval": {"when": "a >"}}]
)
def test_values_of_the_decorator_are_checked(keys):
    with pytest.raises(ConfigError, match="'search'"):
        ToolBox([tool(**keys)(search)])
