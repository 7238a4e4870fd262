"""Mistakes that type checkers find, one a line."""

from astromesh import Agent, ToolContext, tool


class City:
    name: str


@tool
def price(ctx: ToolContext[dict[str, float]], item: str) -> float:
    """The price of an item."""
    return ctx.deps.prices  # line 13: a dict has no prices


agent = Agent("openai:gpt-4o-mini", output_type=City, memroy="memory")  # line 16: misspelled
typed = Agent("openai:gpt-4o-mini", output_type=City)
print(typed.run_sync("Where?").output.nmae)  # line 18: misspelled
typed.run_sync("Where?", sesion_id="ada")  # line 19: misspelled
typed.run_sync(3)  # line 20: a message is text
