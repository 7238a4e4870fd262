"""RETRYABLE, and the keyword `retry`: another attempt of a node, for failures that may pass."""

from __future__ import annotations

from collections.abc import Sequence

from astromesh.graph.node_config import NodeConfig
from astromesh.graph.policies import RetryPolicy
from astromesh.graph.private_state import PrivateState
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import Call, Wrapper
from astromesh.graph.state import RETRY_ERROR, GraphState, ReadOnlyState, engine_forget, engine_write

NodeCall = Call[GraphState, NodeConfig, NodeResult]


def with_retries(policies: Sequence[RetryPolicy]) -> Wrapper[GraphState, NodeConfig, NodeResult]:
    """Executes a node again by the first policy that covers its failure, while the run's retry budget lasts.

    Each attempt works on a copy of the state. A failed one leaves no writes.
    """

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            duration_ms, tries = 0.0, 0
            while True:
                tries += 1
                result = await _attempt(call, state, config)
                duration_ms += result.duration_ms
                policy = _policy_for(policies, result) if result.error else None
                if policy is None or tries >= policy.attempts or not _may_retry(config):
                    break
                engine_write(state.context, RETRY_ERROR, result.error)
                config.runtime.note_error(config.path, result)
                await config.clock.sleep(policy.pause(tries, config.runtime.jitter()))
            engine_forget(state.context, RETRY_ERROR)
            result.duration_ms = duration_ms
            return result

        return run

    return wrap


def _policy_for(policies: Sequence[RetryPolicy], result: NodeResult) -> RetryPolicy | None:
    if result.stop_reason:
        return None
    return next((policy for policy in policies if policy.covers(result.exception)), None)


def _may_retry(config: NodeConfig) -> bool:
    return not config.runtime.stopping and config.scope.take_retry()


async def _attempt(call: NodeCall, state: GraphState, config: NodeConfig) -> NodeResult:
    if isinstance(state, ReadOnlyState):
        return await call(state, config)
    private = PrivateState(state)
    private.rejoin()  # only values are private: budgets and the end of the run are not
    result = await call(private.state, config)
    if not result.error or result.stop_reason:  # what waits for a person is in the context
        private.write_back()
    else:
        state.current_node = private.state.current_node
    return result
