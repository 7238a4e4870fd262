"""RETRYABLE: another attempt after 0.5 s, 1 s, 2 s, 4 s, 8 s, for failures that may pass."""

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
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import Call, Wrapper
from astromesh.graph.state import RETRY_ERROR, GraphState, engine_forget, engine_write

ATTEMPTS = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
#: The random part of the pause, so that many runs do not retry at the same moment.
JITTER = 0.1

NodeCall = Call[GraphState, NodeConfig, NodeResult]
NodeWrapper = Wrapper[GraphState, NodeConfig, NodeResult]

#: Failures that another attempt cannot change.
NOT_RETRYABLE = (
    ConfigError,
    RequestError,
    LimitReached,
    ProviderUnauthorized,
    ToolPermissionError,
    NotImplementedError,
    asyncio.CancelledError,
)


def retry_delay(tries: int, fraction: float) -> float:
    """Returns the seconds to wait after a number of failed attempts. `fraction` is in [0, 1)."""
    return min(FIRST_PAUSE * 2.0 ** (tries - 1), LONGEST_PAUSE) * (1 + JITTER * fraction)


def is_retryable(error: BaseException | None) -> bool:
    """Whether another attempt can help. It may after a failure without an exception."""
    if isinstance(error, NodeFailed):
        return is_retryable(error.cause)
    if isinstance(error, AllProvidersFailed):
        if error.begun:  # its text has left, and a second answer could not take it back
            return False
        return any(is_retryable(failure) for failure in error.failures)
    if isinstance(error, ProviderError) and not error.retryable:
        return False
    return not isinstance(error, NOT_RETRYABLE)


def with_retries(attempts: int) -> NodeWrapper:
    """Executes a node up to `attempts` times, while the run's own retry budget lasts."""

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            duration_ms = 0.0
            for tries in range(1, attempts + 1):
                result = await call(state, config)
                duration_ms += result.duration_ms
                if not result.error or tries == attempts or not _may_retry(result, config):
                    break
                engine_write(state.context, RETRY_ERROR, result.error)
                await config.clock.sleep(retry_delay(tries, config.runtime.jitter()))
            engine_forget(state.context, RETRY_ERROR)
            result.duration_ms = duration_ms
            return result

        return run

    return wrap


def _may_retry(result: NodeResult, config: NodeConfig) -> bool:
    return (
        not result.stop_reason
        and is_retryable(result.exception)
        and not config.runtime.stopping
        and config.scope.take_retry()
    )
