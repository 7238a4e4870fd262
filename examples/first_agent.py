"""An agent with a tool, and a conversation that is stored: python examples/first_agent.py."""

from __future__ import annotations

from astromesh import Agent, tool


@tool
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


agent = Agent("openai:gpt-4o-mini", system="Answer in one verse.", tools=[weather], memory="memory")


def main() -> str:
    agent.run_sync("How is the weather in Paris?", session_id="ada")
    return agent.run_sync("And was that good news?", session_id="ada").output


if __name__ == "__main__":
    print(main())
