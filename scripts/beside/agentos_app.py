"""Agno's AgentOS with the agents of the benchmark, as its documentation shows it; runs are not persisted."""

import os

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.os import AgentOS
from bench_tools import lookup

URL = os.environ["MODEL_URL"]


def agent(name: str, model: str, **more: object) -> Agent:
    served = OpenAILike(id=model, base_url=URL, api_key="sk-bench")
    return Agent(id=name, name=name, model=served, instructions=f"You are {name}.", telemetry=False, **more)


AGENTS = [
    agent("plain", "mock"),
    agent("tools", "mock+tools=2", tools=[lookup]),
    agent("stream", "mock+tokens=200"),
]
app = AgentOS(agents=AGENTS, telemetry=False).get_app()
