"""The values of the keywords `retry` and `cache` of a node, and the attempts that `retry` makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

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
from astromesh.graph.private_state import PrivateState
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import Call, Wrapper
from astromesh.graph.state import RETRY_ERROR, GraphState, ReadOnlyState, engine_forget, engine_write
from astromesh.graph.validation import check_int, check_number, check_seconds
from astromesh.types import JsonObject

#: Attempts of a node with the flag RETRYABLE alone.
ATTEMPTS = 3
#: The random part of a pause, so that many runs do not retry at the same moment.
JITTER = 0.1

#: Failures that another attempt cannot change, unless a policy names them.
NOT_RETRYABLE = (
    ConfigError,
    RequestError,
    LimitReached,
    ProviderUnauthorized,
    ToolPermissionError,
    NotImplementedError,
    asyncio.CancelledError,
)


class RetryPolicy(Struct, frozen=True):
    """How often a node is executed again, after which failures, and after which pauses.

    Args:
        attempts: Executions in all.
        on: Classes of exceptions, or their names: `TimeoutError`, `ProviderTimeout`. A subclass counts, too.
            Empty: every failure that may pass.
        delay: Seconds before the second attempt.
        factor: By what each further pause is longer.
        max_delay: Seconds of the longest pause.
    """

    attempts: int = ATTEMPTS
    on: Sequence[type[BaseException] | str] | type[BaseException] | str = ()
    delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 8.0

    def pause(self, tries: int, fraction: float) -> float:
        """Returns the seconds to wait after a number of failed attempts. `fraction` is in [0, 1)."""
        return min(self.delay * self.factor ** (tries - 1), self.max_delay) * (1 + JITTER * fraction)

    def covers(self, error: BaseException | None) -> bool:
        """Whether it has another attempt follow a failure. `error`: the exception, if there was one."""
        if not self.on:
            return is_retryable(error)
        if isinstance(error, NodeFailed) and error.cause is not None:
            return self.covers(error.cause)
        if isinstance(error, AllProvidersFailed):
            if error.begun:
                return False
            if any(map(self.covers, error.failures)):
                return True
        if isinstance(error, LimitReached | asyncio.CancelledError):
            return False
        names = {kind.__name__ for kind in type(error).__mro__}
        return any(one in names if isinstance(one, str) else isinstance(error, one) for one in self.kinds)

    def to_json(self) -> JsonObject:
        """Returns the fields that have no default, classes by their names."""
        default = RetryPolicy()
        fields = {key: value for key, value in structs.asdict(self).items() if value != getattr(default, key)}
        if self.on:
            fields["on"] = [one if isinstance(one, str) else one.__name__ for one in self.kinds]
        return fields

    @property
    def kinds(self) -> tuple[type[BaseException] | str, ...]:
        """The classes or names of `on`."""
        return (self.on,) if isinstance(self.on, str | type) else tuple(self.on)


def as_policies(owner: str, value: Any) -> tuple[RetryPolicy, ...]:
    """Returns the policies of the keyword `retry`: a number of attempts, a policy, or several of them.

    Args:
        value: Policies may be mappings, as YAML writes them.

    Raises:
        TypeError, ValueError: The message begins with `owner`.
    """
    if value is None or value == ():
        return ()
    if isinstance(value, RetryPolicy | Mapping | int) or not isinstance(value, Iterable):
        value = [value]
    return tuple(_policy(f"{owner}: retry", one) for one in value)


def _policy(owner: str, value: Any) -> RetryPolicy:
    if isinstance(value, int):
        value = RetryPolicy(value)
    if isinstance(value, Mapping):
        if unknown := value.keys() - set(RetryPolicy.__struct_fields__):
            known = ", ".join(RetryPolicy.__struct_fields__)
            raise TypeError(f"{owner} has no key {sorted(map(str, unknown))[0]!r}. It has {known}.")
        value = RetryPolicy(**value)
    if not isinstance(value, RetryPolicy):
        raise TypeError(f"{owner} takes a number of attempts, a RetryPolicy, or several, not {value!r}.")
    kinds: tuple[Any, ...] = value.kinds
    for one in kinds:
        if not isinstance(one, str) and not (isinstance(one, type) and issubclass(one, BaseException)):
            raise TypeError(f"{owner}: on takes classes of exceptions, or their names, not {one!r}.")
    check_int(owner, "attempts", value.attempts)
    for key, least in (("delay", 0.0), ("factor", 1.0), ("max_delay", 0.0)):
        check_number(owner, key, getattr(value, key), least)
    return structs.replace(value, on=kinds)


def is_retryable(error: BaseException | None) -> bool:
    """Whether another attempt can help. It may after a failure without an exception."""
    if isinstance(error, NodeFailed):
        return is_retryable(error.cause)
    if isinstance(error, AllProvidersFailed):
        # after the first text has left, a second answer could not take it back
        return not error.begun and any(is_retryable(failure) for failure in error.failures)
    if isinstance(error, ProviderError) and not error.retryable:
        return False
    return not isinstance(error, NOT_RETRYABLE)


class CachePolicy(Struct, frozen=True):
    """How long results of a node are used again, and for what.

    Args:
        seconds: The time to live.
        key: A text that is part of the key: change it when the node's code changes. Or a function of the
            state that returns what the result depends on, in place of what the node sees.
        shared: Whether a result counts for all callers. Otherwise it counts for the same tenant and user.
    """

    seconds: float
    key: str | Callable[[GraphState], Any] = ""
    shared: bool = False


def as_policy(owner: str, value: Any) -> CachePolicy | None:
    """Returns the policy of the keyword `cache`: seconds, a policy, or a mapping, as YAML writes it.

    Raises:
        TypeError, ValueError: The message begins with `owner`.
    """
    if value is None:
        return None
    owner = f"{owner}: cache"
    if isinstance(value, Mapping):
        if value.keys() - set(CachePolicy.__struct_fields__) or "seconds" not in value:
            raise TypeError(f"{owner} takes `seconds`, `key` and `shared`, not {dict(value)!r}.")
        value = CachePolicy(**value)
    policy = value if isinstance(value, CachePolicy) else CachePolicy(value)
    key: Any = policy.key
    shared: Any = policy.shared
    check_seconds(owner, "seconds", policy.seconds)
    if not isinstance(key, str) and not callable(key):
        raise TypeError(f"{owner}: key must be a text or a function of the state, not {key!r}.")
    if not isinstance(shared, bool):
        raise TypeError(f"{owner}: shared must be true or false, not {shared!r}.")
    return policy


def policy_to_json(policy: CachePolicy) -> Any:
    """Returns a policy as YAML writes it: seconds, or a mapping of the fields that have no default."""
    fields = {key: value for key, value in structs.asdict(policy).items() if value not in ("", False)}
    return policy.seconds if len(fields) == 1 else fields


# -- RETRYABLE and `retry`: another attempt of a node, for failures that may pass -------------------------


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
