"""Which provider first: the routing strategies as pure rankings (document 001, step 8).

`priority` is the declared order: primary, then the fallbacks. Under every strategy models that cannot serve
the request (tools, vision, JSON, context window) are left out where others can. Strategies that weigh models
against each other put what is no language model (`embedded`) last. Ties keep the declared order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from astromesh.abc.provider import Capabilities
from astromesh.types import CompletionRequest

Strategy = Literal[
    "priority", "cost_optimized", "latency_optimized", "quality_first", "round_robin", "capability_match"
]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
#: calls of a router after which `latency_optimized` tries a provider again that it has not asked meanwhile
EXPLORE_AFTER = 50


class Needs(NamedTuple):
    """What a request asks of a model. `tokens`: estimated input, 0 where nobody asks."""

    tools: bool = False
    vision: bool = False
    json: bool = False
    tokens: int = 0


NO_NEEDS = Needs()


class Candidate(NamedTuple):
    """A provider as the ranking sees it.

    Args:
        position: as declared, primary 0.
        cost: estimated US dollars of this request; only read where the capabilities say `priced`.
        latency_ms: moving average, 0.0 where it was never tried.
        idle: calls of the router since this one was tried.
        correction: factor from estimated tokens to the model's own count.
    """

    position: int
    capabilities: Capabilities
    cost: float = 0.0
    latency_ms: float = 0.0
    idle: int = 0
    correction: float = 1.0


_Order = Callable[[Sequence[Candidate], int], Sequence[Candidate]]


def needs_of(request: CompletionRequest, tokens: int = 0) -> Needs:
    tools = bool(request.tools) and request.tool_choice != "none"
    return Needs(
        tools,
        any(m.images for m in request.messages),
        # beside tools any model is told a schema in words
        request.output_schema is not None and not tools,
        tokens,
    )


def lacking(candidate: Candidate, needs: Needs) -> tuple[str, ...]:
    """What the request needs and the model does not have, in words."""
    has = candidate.capabilities
    window = has.context_window
    return tuple(
        name
        for name, lacks in (
            ("tools", needs.tools and not has.tools),
            ("vision", needs.vision and not has.vision),
            ("structured output", needs.json and not has.json),
            ("context window", bool(window) and needs.tokens * candidate.correction > window),
        )
        if lacks
    )


def rank(
    strategy: str, candidates: Sequence[Candidate], needs: Needs = NO_NEEDS, turn: int = 0
) -> tuple[int, ...]:
    """The order in which to ask: indices of the candidates.

    Args:
        strategy: one of `STRATEGIES`.
        candidates: in declared order.
        needs: what the request asks for.
        turn: how many calls the router has ranked before, for `round_robin`.

    Returns:
        every index, except that those that cannot serve the request are left out where others can, and always
        under `capability_match`: then the order may be empty.
    """
    fit = [c for c in candidates if not lacking(c, needs)]
    if not fit and strategy != "capability_match":
        # capabilities are declared, not measured: better to ask than to refuse
        fit = list(candidates)
    return tuple(c.position for c in _ORDERS[strategy](fit, turn))


def _declared(candidates: Sequence[Candidate], turn: int) -> Sequence[Candidate]:
    return candidates


def _weighed(
    key: Callable[[Candidate], Any], candidates: Sequence[Candidate], turn: int
) -> Sequence[Candidate]:
    return sorted(candidates, key=lambda c: (not c.capabilities.language_model, key(c)))


def _rotated(candidates: Sequence[Candidate], turn: int) -> Sequence[Candidate]:
    models = [c for c in candidates if c.capabilities.language_model]
    rest = [c for c in candidates if not c.capabilities.language_model]
    start = turn % len(models) if models else 0
    return models[start:] + models[:start] + rest


def _latency(candidate: Candidate) -> float:
    """Never tried, or not for long, counts as fastest: that is how a recovered provider is found again."""
    return 0.0 if candidate.idle >= EXPLORE_AFTER else candidate.latency_ms


_ORDERS: dict[str, _Order] = {
    "priority": _declared,
    "capability_match": _declared,
    "cost_optimized": partial(_weighed, lambda c: (not c.capabilities.priced, c.cost)),
    "latency_optimized": partial(_weighed, _latency),
    "quality_first": partial(_weighed, lambda c: -c.capabilities.quality),
    "round_robin": _rotated,
}
