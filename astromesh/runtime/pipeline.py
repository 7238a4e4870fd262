"""The twelve steps of a run, straight down the page (document 001).

Step 1, the arrival, is `api`. Step 2, `AgentRuntime.run`, calls this function in the wrappers of every run
(`runtime.runner`, which has their order). Each step takes the record of the step before and returns the next
one, so that reading a later step early does not type-check. There is one path: a stream is a listener to the
events of the run.
"""

from __future__ import annotations

from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.stages import admit, equip, orchestrate, recall, release, remember, render, respond


async def answer(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
    """Executes one run of one agent, from the caller's query to the released answer."""
    admitted = admit(agent, request, run)  # 3  input guardrails
    recalled = await recall(agent, admitted, run)  # 4  memory context
    prompted = await render(agent, recalled, run)  # 5  prompt
    equipped = await equip(agent, prompted, run)  # 6  tool schemas
    answered = await orchestrate(agent, equipped, run)  # 7-9 pattern, model router, tools
    released = await release(agent, answered, run)  # 10 output guardrails
    await remember(agent, released, run)  # 11 persistence
    return respond(agent, released, run)  # 12 response
