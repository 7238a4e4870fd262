"""RETRYABLE: another try after 0.5 s, 1 s, 2 s, 4 s, 8 s, for what can heal."""

from __future__ import annotations

import asyncio

from astromesh.errors import (
    AllProvidersFailed,
    ConfigError,
    LimitReached,
    NodeFailed,
    ProviderError,
    ProviderUnauthorized,
    RequestError,
    ToolPermissionError,
)
from astromesh.graph.config import NodeConfig
from astromesh.graph.containers import engine_forget, engine_write
from astromesh.graph.own_keys import RETRY_ERROR
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.node.runner import Call, Wrapper

ATTEMPTS = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
#: part of the pause that is random, so that many runs do not come back at the same moment
JITTER = 0.1

NodeCall = Call[GraphState, NodeConfig, NodeResult]
NodeWrapper = Wrapper[GraphState, NodeConfig, NodeResult]

#: what stays wrong however often it is tried
INCURABLE = (
    ConfigError,
    RequestError,
    LimitReached,
    ProviderUnauthorized,
    ToolPermissionError,
    NotImplementedError,
    asyncio.CancelledError,
)


def pause(tries: int, chance: float) -> float:
    """Seconds to wait after so many failed tries; `chance` is in [0, 1)."""
    return min(FIRST_PAUSE * 2.0 ** (tries - 1), LONGEST_PAUSE) * (1 + JITTER * chance)


def heals(error: BaseException | None) -> bool:
    """Whether another try can help; a failure without an exception may."""
    if isinstance(error, NodeFailed):
        return heals(error.cause)
    if isinstance(error, AllProvidersFailed):
        if error.begun:  # its text has left; said a second time, nobody could take the first back
            return False
        return any(heals(failure) for failure in error.failures)
    if isinstance(error, ProviderError) and not error.retryable:
        return False
    return not isinstance(error, INCURABLE)


def retrying(attempts: int) -> NodeWrapper:
    """Tries a node up to so many times, while the run's own retry budget lasts."""

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            spent = 0.0
            for tries in range(1, attempts + 1):
                result = await call(state, config)
                spent += result.duration_ms
                if not result.error or tries == attempts or not _may_retry(result, config):
                    break
                engine_write(state.context, RETRY_ERROR, result.error)
                await config.clock.sleep(pause(tries, config.nesting.chance()))
            engine_forget(state.context, RETRY_ERROR)
            result.duration_ms = spent
            return result

        return run

    return wrap


def _may_retry(result: NodeResult, config: NodeConfig) -> bool:
    return (
        not result.stop_reason
        and heals(result.exception)
        and not config.nesting.stopping
        and config.scope.take_retry()
    )
