"""The pieces of an answer as they arrive: python examples/streaming.py."""

from __future__ import annotations

import asyncio

from astromesh import Agent

agent = Agent("openai:gpt-4o-mini", on_error="return")


async def answer() -> str:
    async with agent.stream("Count to three.") as stream:
        async for text in stream.text():
            print(text, end="", flush=True)
    return stream.result.text


def main() -> str:
    return asyncio.run(answer())


if __name__ == "__main__":
    main()
