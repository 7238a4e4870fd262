"""pydantic-ai, unchanged: tools, and outputs by a tool and by `response_format`."""

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("helper", provider=OpenAIProvider(base_url=sys.argv[1], api_key="none"))


class City(BaseModel):
    name: str
    population: int


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    text = await Agent(model, tools=[weather]).run("What is the weather?")
    by_tool = await Agent(model, tools=[weather], output_type=City).run("Which city?")
    native = await Agent(model, output_type=NativeOutput(City)).run("Which city?")
    async with Agent(model, tools=[weather]).run_stream("What is the weather?") as stream:
        streamed = await stream.get_output()
    outputs = [by_tool.output.model_dump(), native.output.model_dump()]
    print(json.dumps({"text": text.output, "outputs": outputs, "streamed": streamed}))


asyncio.run(main())
