"""An answer with a type, and tools with dependencies: python examples/typed_answer.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from astromesh import Agent, ModelRetry, ToolContext, tool


class Quote(BaseModel):
    item: str
    price: float


@dataclass
class Shop:
    prices: dict[str, float] = field(default_factory=lambda: {"apple": 0.5, "pear": 0.7})


@tool
def price(ctx: ToolContext[Shop], item: str) -> float:
    """The price of one item."""
    if item not in ctx.deps.prices:
        raise ModelRetry(f"There is no {item}. Known: {', '.join(ctx.deps.prices)}.")
    return ctx.deps.prices[item]


agent = Agent("openai:gpt-4o-mini", output_type=Quote, deps_type=Shop, tools=[price])


def main() -> float:
    return agent.run_sync("What does a pear cost?", deps=Shop()).output.price


if __name__ == "__main__":
    print(main())
