"""Models of nodes and of engines by name: `provider:name`, as agents write them."""

from __future__ import annotations

import asyncio

import pytest

from astromesh.errors import ConfigError, InvalidGraph, UnknownPlugin
from astromesh.graph import AutonomousNode, NodeFlag, PromptGraph, PromptGraphEngine, PromptNode, SubgraphNode
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest


def line(model: object) -> PromptGraph:
    return PromptGraph("made", nodes=[PromptNode("p", model_override=model)])


def pool(model: object) -> PromptGraph:
    return PromptGraph(nodes=[AutonomousNode("a", [PromptNode("p", model_override=model)])])


async def shout(request: CompletionRequest) -> str:
    return request.messages[-1].content.upper()


def nested_line(model: object) -> PromptGraph:
    return PromptGraph("made", nodes=[SubgraphNode("s", line(model))])


@pytest.mark.parametrize("nested", [line, nested_line])
def test_a_node_asks_the_model_that_it_names(nested: object) -> None:
    """Its connections belong to the event loop of each `asyncio.run`."""
    model = ScriptedProvider("not asked")
    engine = PromptGraphEngine(nested("embedded:small"), model)  # type: ignore[operator]
    for _ in range(2):
        result = asyncio.run(engine.ainvoke("Hello"))
        assert result.ok
        assert result.output
    assert not model.requests


async def test_an_engine_without_a_model_runs_nodes_that_name_theirs() -> None:
    assert (await PromptGraphEngine(line("embedded:small")).ainvoke("Hello")).ok


async def test_an_engine_takes_a_name_as_its_model() -> None:
    result = await PromptGraphEngine(PromptGraph(nodes=[PromptNode("p")]), "embedded:small").ainvoke("Hello")
    assert result.ok


async def test_streams_have_the_text_of_a_named_model() -> None:
    async with PromptGraphEngine(line("embedded:small")).astream("Hello", "messages") as stream:
        text = "".join([part.data async for part in stream])
    assert text == stream.result.output


async def test_functions_are_models_of_nodes_and_engines() -> None:
    assert (await PromptGraphEngine(line(shout), ScriptedProvider()).ainvoke("hi")).output == "HI"
    assert (await PromptGraphEngine(PromptGraph(nodes=[PromptNode("p")]), shout).ainvoke("hi")).output == "HI"


async def test_lightweight_nodes_ask_a_named_model() -> None:
    graph = PromptGraph(nodes=[PromptNode("p", flags={NodeFlag.LIGHTWEIGHT})])
    model = ScriptedProvider("not asked")
    assert (await PromptGraphEngine(graph, model, lightweight_model="embedded:small").ainvoke("hi")).ok
    assert not model.requests


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gpt-4o", "Write 'openai:gpt-4o'"),
        ("opnai:gpt-4o", "no provider 'opnai'"),
    ],
)
@pytest.mark.parametrize(
    "nested",
    [line, lambda name: PromptGraph(nodes=[AutonomousNode("a", [PromptNode("p", model_override=name)])])],
)
async def test_a_name_without_a_known_provider_is_refused(nested: object, name: str, told: str) -> None:
    model = ScriptedProvider("not asked")
    with pytest.raises(InvalidGraph, match=told):
        await PromptGraphEngine(nested(name), model).ainvoke("hi")  # type: ignore[operator]
    assert not model.requests


def test_an_engine_refuses_what_is_no_model() -> None:
    with pytest.raises(UnknownPlugin, match="Write 'openai:gpt-4o'"):
        PromptGraphEngine(line(None), "gpt-4o")
    with pytest.raises(ConfigError, match="5 is not a model"):
        PromptGraphEngine(line(None), 5)  # type: ignore[arg-type]


async def test_a_model_without_its_key_fails_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = await PromptGraphEngine(line("openai:gpt-4o")).ainvoke("hi")
    assert "OPENAI_API_KEY" in result.report.error
