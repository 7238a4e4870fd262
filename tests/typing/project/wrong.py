"""Mistakes that type checkers find, one a line."""

from astromesh import Agent, ToolContext, tool
from astromesh.graph import PromptGraph, PromptGraphEngine


class City:
    name: str


@tool
def price(ctx: ToolContext[dict[str, float]], item: str) -> float:
    """The price of an item."""
    return ctx.deps.prices  # line 14: a dict has no prices


agent = Agent("openai:gpt-4o-mini", output_type=City, memroy="memory")  # line 17: misspelled
typed = Agent("openai:gpt-4o-mini", output_type=City)
print(typed.run_sync("Where?").output.nmae)  # line 19: misspelled
typed.run_sync("Where?", sesion_id="ada")  # line 20: misspelled
typed.run_sync(3)  # line 21: a message is text


async def graphs() -> None:
    result = await PromptGraphEngine(PromptGraph[City]("cities")).ainvoke("Where?")
    print(result.state.nmae)  # line 26: misspelled
