"""The twelve steps of a run, straight down the page (document 001).

Step 1, the arrival, is `api`; step 2, `AgentRuntime.run`, composes what wraps every run around this function
(`runtime.runs`). Each step takes the record of the one before and returns the next, so that reading a later
stage early does not type-check. There is one path: streaming is a listener on the run's events.
"""

from __future__ import annotations

from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.stages import admit, equip, orchestrate, recall, release, remember, render, respond


async def answer(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
    """One run of one agent, from the caller's query to the released answer."""
    admitted = admit(agent, request, run)  # 3  input guardrails
    recalled = await recall(agent, admitted, run)  # 4  memory context
    prompted = render(agent, recalled, run)  # 5  prompt
    equipped = await equip(agent, prompted, run)  # 6  tool schemas
    answered = await orchestrate(agent, equipped, run)  # 7-9 pattern, model router, tools
    released = release(agent, answered, run)  # 10 output guardrails
    await remember(agent, released, run)  # 11 persistence
    return respond(agent, released, run)  # 12 response
