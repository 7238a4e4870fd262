"""Whether what the agents need answers: asked by `GET /health/ready` and by `astromesh doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from astromesh.errors import AstromeshError
from astromesh.runtime.engine import AgentRuntime

#: seconds that each store and provider gets
PATIENCE = 3.0


class Answer(NamedTuple):
    """What a store or provider said.

    Args:
        code: `ok`, `timeout`, `circuit_open` of a provider whose last calls failed though it answers now, or
            the error's stable code, which is safe to show to anybody.
        detail: the error in words, or what could not be asked, for the operator.
    """

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """What was found.

    Args:
        answers: by `store:…` and `provider:…`.
        without_model: agents none of whose models answers.
        unavailable: agents that cannot run, because of their own file or of what could not be opened.
        idle: no agent can run, though some should.
    """

    answers: Mapping[str, Answer]
    without_model: tuple[str, ...]
    unavailable: tuple[str, ...] = ()
    idle: bool = False

    @property
    def ready(self) -> bool:
        """Every store answers, and for each agent a model. One that its own file breaks stops no others."""
        stores = (answer for name, answer in self.answers.items() if name.startswith("store:"))
        return not (self.idle or self.without_model) and all(answer.code == "ok" for answer in stores)


async def readiness(runtime: AgentRuntime) -> Readiness:
    """Asks all stores and providers at once."""
    checks = dict(runtime.opened.checks)  # more may be opened meanwhile
    found = await asyncio.gather(*(_ask(ping) for ping in checks.values()))
    answers = dict(zip(checks, found, strict=True))
    working = {name for name, answer in answers.items() if answer.code == "ok"}
    without = tuple(
        name
        for name, agent in runtime.agents.items()
        if not any(f"provider:{model}" in working for model in agent.needs)
    )
    answers |= _with_open_circuits(runtime, answers)
    broken = tuple(runtime.broken)
    return Readiness(answers, without, broken, idle=bool(broken) and not runtime.agents)


def _with_open_circuits(runtime: AgentRuntime, answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Providers that answer and are left alone: that alone takes no server out of the balancer."""
    found = {}
    for state in runtime.opened.health.snapshot():
        name = f"provider:{state['name']}"
        if state["circuit"] != "closed" and name in answers and answers[name].code == "ok":
            found[name] = Answer("circuit_open", f"its last calls failed: {state['last_error']}")
    return found


async def _ask(ping: Callable[[], Awaitable[str | None]]) -> Answer:
    try:
        async with asyncio.timeout(PATIENCE):
            unasked = await ping()
    except TimeoutError:
        return Answer("timeout", f"no answer within {PATIENCE:g} s")
    except AstromeshError as error:
        return Answer(error.code, str(error))
    return Answer("ok", unasked or "")
