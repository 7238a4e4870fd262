"""The routing strategies as pure rankings of providers (document 001, step 8).

`priority` is the declared order: primary, then the fallbacks. Every strategy omits models that cannot
serve the request (tools, vision, JSON, context window) if others can. Strategies that compare models put
the stand-in for a language model (`embedded`) last. Ties keep the declared order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from astromesh.providers.base import Capabilities
from astromesh.types import CompletionRequest

Strategy = Literal[
    "priority", "cost_optimized", "latency_optimized", "quality_first", "round_robin", "capability_match"
]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
#: calls of a router after which `latency_optimized` tries an idle provider again
EXPLORE_AFTER = 50


class Needs(NamedTuple):
    """The features that a request needs of a model. `tokens`: estimated input; 0: not estimated."""

    tools: bool = False
    vision: bool = False
    json: bool = False
    tokens: int = 0
    audio: bool = False
    files: bool = False


NO_NEEDS = Needs()


class Candidate(NamedTuple):
    """A provider as the ranking sees it.

    Args:
        position: as declared, primary 0.
        cost: estimated US dollars of this request; only read if the capabilities say `priced`.
        latency_ms: moving average; 0.0: never tried.
        idle: calls of the router since this one was tried.
        correction: factor from estimated tokens to the count of the model.
    """

    position: int
    capabilities: Capabilities
    cost: float = 0.0
    latency_ms: float = 0.0
    idle: int = 0
    correction: float = 1.0


_Order = Callable[[Sequence[Candidate], int], Sequence[Candidate]]


def request_needs(request: CompletionRequest, tokens: int = 0) -> Needs:
    tools = bool(request.tools) and request.tool_choice != "none"
    kinds = {one.kind for message in request.messages for one in message.attachments}
    return Needs(
        tools,
        "image" in kinds,
        # with tools, every model receives the schema as text
        request.output_schema is not None and not tools,
        tokens,
        "audio" in kinds,
        "file" in kinds,
    )


def missing_capabilities(candidate: Candidate, needs: Needs) -> tuple[str, ...]:
    """The names of the capabilities that the request needs and the model does not have."""
    has = candidate.capabilities
    window = has.context_window
    return tuple(
        name
        for name, lacks in (
            ("tools", needs.tools and not has.tools),
            ("vision", needs.vision and not has.vision),
            ("audio", needs.audio and not has.audio),
            ("files", needs.files and not has.files),
            ("structured output", needs.json and not has.json),
            ("context window", bool(window) and needs.tokens * candidate.correction > window),
        )
        if lacks
    )


def rank(
    strategy: str, candidates: Sequence[Candidate], needs: Needs = NO_NEEDS, turn: int = 0
) -> tuple[int, ...]:
    """The indices of the candidates, in the order in which to call them.

    Args:
        strategy: one of `STRATEGIES`.
        candidates: in declared order.
        needs: of the request.
        turn: number of calls that the router has ranked before, for `round_robin`.

    Returns:
        every index, without candidates that cannot serve the request, if others can; `capability_match`
        always omits them, so that the order may be empty.
    """
    fit = [c for c in candidates if not missing_capabilities(c, needs)]
    if not fit and strategy != "capability_match":
        # capabilities are declared, not measured, so a call may still succeed
        fit = list(candidates)
    return tuple(c.position for c in _ORDERS[strategy](fit, turn))


def _declared_order(candidates: Sequence[Candidate], turn: int) -> Sequence[Candidate]:
    return candidates


def _sorted_by(
    key: Callable[[Candidate], Any], candidates: Sequence[Candidate], turn: int
) -> Sequence[Candidate]:
    return sorted(candidates, key=lambda c: (not c.capabilities.language_model, key(c)))


def _rotate(candidates: Sequence[Candidate], turn: int) -> Sequence[Candidate]:
    models = [c for c in candidates if c.capabilities.language_model]
    rest = [c for c in candidates if not c.capabilities.language_model]
    start = turn % len(models) if models else 0
    return models[start:] + models[:start] + rest


def _latency(candidate: Candidate) -> float:
    """The latency; providers that are idle or were never tried count as fastest, so that they are tried."""
    return 0.0 if candidate.idle >= EXPLORE_AFTER else candidate.latency_ms


_ORDERS: dict[str, _Order] = {
    "priority": _declared_order,
    "capability_match": _declared_order,
    "cost_optimized": partial(_sorted_by, lambda c: (not c.capabilities.priced, c.cost)),
    "latency_optimized": partial(_sorted_by, _latency),
    "quality_first": partial(_sorted_by, lambda c: -c.capabilities.quality),
    "round_robin": _rotate,
}
