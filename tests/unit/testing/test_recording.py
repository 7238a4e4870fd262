"""`record`: model calls of an agent, once from the model and then from a file."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from astromesh import Agent
from astromesh.errors import AllProvidersFailed, ConfigError, InvalidInput, ProviderRejected, ProviderTimeout
from astromesh.testing import ScriptedProvider, record
from astromesh.types import ToolCall


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def test_the_second_time_no_model_is_asked(tmp_path: Path) -> None:
    """Also with a tool, an output type and a stream; the tool itself runs again."""
    file = tmp_path / "recordings" / "weather.json"
    model = ScriptedProvider(ToolCall("1", "weather", '{"city": "Rome"}'), "Sunny.")
    agent = Agent(model, tools=[weather])
    with record(agent, file):
        first = await agent.run("Weather in Rome?")
    with record(agent, file):
        again = await agent.run("Weather in Rome?")
    with record(agent, file):
        streamed = [text async for text in agent.stream("Weather in Rome?").text()]
    assert (first.text, again.text, streamed) == ("Sunny.", "Sunny.", ["Sunny."])
    assert (first.usage, list(first.messages)) == (again.usage, list(again.messages))
    assert len(model.requests) == 2
    assert len(orjson.loads(file.read_bytes())["calls"]) == 2


async def test_a_recording_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = tmp_path / "a.json"
    recorded = Agent(ScriptedProvider("Hello."), system="Be kind.")
    with record(recorded, file):
        async with recorded.stream("Hi") as stream:
            assert [text async for text in stream.text()] == ["Hello."]
    agent = Agent("openai:gpt-4o-mini", system="Be kind.")
    with record(agent, file):
        assert (await agent.run("Hi")).text == "Hello."


async def test_a_configuration_answers_from_a_recording(tmp_path: Path) -> None:
    """Where its file is missing, the agent is not available, and the error names the file."""
    recorded = Agent(ScriptedProvider("Hello."), name="clerk")
    with record(recorded, tmp_path / "a.json"):
        await recorded.run("Hi")
    models = {"provider": "recording", "file": str(tmp_path / "a.json")}
    assert (await Agent(models, name="clerk").run("Hi")).text == "Hello."
    with pytest.raises(ProviderRejected, match="has no answer to this request"):
        await Agent(models, name="clerk").run("Bye")
    with pytest.raises(ConfigError, match=r"no\.json is not a recording"):
        await Agent({"provider": "recording", "file": str(tmp_path / "no.json")}).run("Hi")


async def test_failures_of_the_model_are_recorded(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    agent = Agent(ScriptedProvider(ProviderTimeout("slow")), max_iterations=1)
    for _ in range(2):
        with record(agent, file), pytest.raises(AllProvidersFailed, match="slow"):
            await agent.run("Hi")


async def test_another_request_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    agent = Agent(ScriptedProvider("Hello."))
    with record(agent, file):
        await agent.run("Hi")
    with record(agent, file), pytest.raises(ProviderRejected, match=r"a\.json has no answer.*'Bye'"):
        await agent.run("Bye")


@pytest.mark.parametrize(
    ("content", "said"), [("{}", "not a recording"), ('{"version": 9}', "another version")]
)
async def test_a_file_that_is_no_recording_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=said), record(Agent(ScriptedProvider("x")), file):
        pass
