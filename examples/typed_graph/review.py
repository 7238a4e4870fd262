"""A text is written, measured and shortened until it fits: python review.py."""

from __future__ import annotations

import asyncio
from operator import add
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel

from astromesh import Agent
from astromesh.graph import Command, PromptGraph, PromptGraphEngine, node
from astromesh.testing import record

RECORDING = Path(__file__).parent / "recordings" / "writer.json"
writer = Agent("openai:gpt-4o-mini", name="writer", system="Write one sentence for the label of a tea.")


class Label(BaseModel):
    """The state of the graph. Drafts are collected, because their field has a reducer."""

    tea: str
    longest: int
    drafts: Annotated[list[str], add] = []


@node("write")
async def write(state: Label) -> dict[str, list[str]]:
    question = f"Describe {state.tea}."
    if state.drafts:
        question += f" At most {state.longest} characters. Too long was: {state.drafts[-1]}"
    return {"drafts": [(await writer.run(question)).text]}


@node("measure")
async def measure(state: Label) -> Command:
    fits = len(state.drafts[-1]) <= state.longest or len(state.drafts) > 3
    return Command(goto="done" if fits else "write")


@node("done")
async def done(state: Label) -> str:
    return state.drafts[-1]


graph = PromptGraph[Label]("label", nodes=[write, measure, done])
graph.always("write", "measure").when("measure", "write", lambda result: True).always("measure", "done")


def label(tea: str, longest: int) -> Label:
    """Returns the state after a run: its last draft fits."""
    engine = PromptGraphEngine(graph)
    with record(writer, RECORDING):  # answers from the file; delete it to ask the model
        result = asyncio.run(engine.ainvoke(tea, state={"tea": tea, "longest": longest}))
    result.raise_for_error()
    return result.state


if __name__ == "__main__":
    for draft in label("green tea from Kyoto", 40).drafts:
        print(draft)
