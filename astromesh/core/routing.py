"""Which models serve a request and in which order, and requests that are made to fit (document 001, step 8).

`priority` is the declared order: primary, then the fallbacks. Every strategy omits models that cannot
serve the request (tools, vision, JSON, context window) if others can. Strategies that compare models put
the stand-in for a language model (`embedded`) last. Ties keep the declared order.

A request that does not fit loses the oldest of its history, then the oldest calls of its tool loop with their
results. What is dropped is a whole number of blocks, so that the cut moves rarely and what is left stays the
beginning of the next request: services cache it. The system message and the question always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from msgspec.structs import replace

from astromesh.errors import InvalidInput, PayloadTooLarge
from astromesh.providers.base import Capabilities, Provider
from astromesh.tokens import (
    BYTES_PER_TOKEN,
    MESSAGE_OVERHEAD,
    estimate_message,
    estimate_messages,
    estimate_request,
    estimate_tools,
)
from astromesh.types import CompletionRequest, JsonObject, Message, ToolSpec

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


#: the share of the window that a request may fill, and the part of that share that is one block
_SHARE, _BLOCKS = 0.8, 4
#: messages of a question and its answer
_EXCHANGE = 2
#: tokens of the sentence in place of what was cut
_NOTE_TOKENS = 24


class ModelLimits(NamedTuple):
    """What no model of a router accepts.

    Args:
        names: the models, for errors.
        tools: some model can call tools.
        images: some model accepts images, or may do so.
        audio: some model accepts audio.
        files: every model reads PDF files; else they get the text.
        window: tokens of the largest context window; 0 if one is not known.
    """

    names: str = ""
    tools: bool = True
    images: bool = True
    window: int = 0
    audio: bool = True
    files: bool = True

    @classmethod
    def of(cls, providers: Sequence[Provider]) -> ModelLimits:
        """Returns the limits of a router's providers, `NO_LIMITS` if some of them accept every request."""
        features = [provider.capabilities for provider in providers]
        windows = [feature.context_window for feature in features]
        tools = any(feature.tools for feature in features)
        images = not all(feature.text_only for feature in features)
        window = max(windows, default=0) if all(windows) else 0
        audio = any(feature.audio for feature in features)
        files = all(feature.files for feature in features)
        if not providers or (tools and images and audio and files and not window):
            return NO_LIMITS
        names = ", ".join(provider.name for provider in providers)
        return cls(names, tools, images, window, audio, files)


#: some model accepts every request
NO_LIMITS = ModelLimits()


class LeftOut(NamedTuple):
    """What a request has lost: messages of the history, and results of tools."""

    messages: int = 0
    tool_results: int = 0

    def to_json(self, limits: ModelLimits) -> JsonObject:
        return {**self._asdict(), "context_window": limits.window}


NOTHING = LeftOut()


def fitted(
    request: CompletionRequest, limits: ModelLimits, earlier: int = 0
) -> tuple[CompletionRequest, LeftOut]:
    """Returns a request that the models accept, and what it has lost.

    Args:
        earlier: messages of the session before those of the request; the cut depends on their number.

    Raises:
        InvalidInput: it has images or audio, and no model accepts any.
        PayloadTooLarge: system message, tools and question alone are larger than the window.
    """
    if request.tools and not limits.tools:
        request = replace(request, tools=(), tool_choice="auto")
    if not (limits.images and limits.audio and limits.files):
        _require_accepted(request, limits)
    room = limits.window * _SHARE
    if not room or _surely_fits(request, room) or estimate_request(request) <= room:
        return request, NOTHING
    return _trimmed(request, limits, earlier)


def _require_accepted(request: CompletionRequest, limits: ModelLimits) -> None:
    kinds = {one.kind for message in request.messages for one in message.attachments}
    if "image" in kinds and not limits.images:
        raise InvalidInput(f"{limits.names} accepts no images (`vision: false`). Send the message without.")
    if "audio" in kinds and not limits.audio:
        raise no_audio(limits)


def no_audio(limits: ModelLimits) -> InvalidInput:
    return InvalidInput(
        f"{limits.names} accepts no audio. Send its text, or set `audio: true` at a model that does.",
        param="attachments",
    )


_SUMMARY_PROMPT = (
    "Summarize the beginning of this conversation for an assistant that goes on with it. Keep names, "
    "numbers, decisions and open questions. Write the summary alone."
)


class Outgrown(NamedTuple):
    """A conversation that is larger than the window: what does not fit, and the messages that stay."""

    dropped: tuple[Message, ...]
    remaining: tuple[Message, ...]

    def prompt(self, limits: ModelLimits, earlier: str = "") -> CompletionRequest:
        """Returns the request for a summary of what does not fit; each message is cut to its share.

        Args:
            earlier: the message with the summary of what was before; the new one contains it.
        """
        share = max(limits.window * BYTES_PER_TOKEN // 2 // len(self.dropped), 80)
        lines = "\n".join(f"{message.role}: {message.content[:share]}" for message in self.dropped)
        text = f"{earlier}\n\n{lines}" if earlier else lines
        messages = Message("system", _SUMMARY_PROMPT), Message("user", text)
        return CompletionRequest(messages, role="summary", answers=False)

    def with_summary(self, summary: str, earlier: str = "") -> tuple[Message, ...]:
        """Returns the messages that stay, with a summary in place of the earlier one in the system prompt."""
        first, *others = self.remaining
        if first.role != "system":
            return (Message("system", summary), *self.remaining)
        if earlier and earlier in first.content:
            return (replace(first, content=first.content.replace(earlier, summary, 1)), *others)
        return (replace(first, content=f"{first.content}\n\n{summary}"), *others)


def shortened_summary(text: str, limits: ModelLimits) -> str:
    """Returns the beginning of a summary, at most a tenth of the window."""
    return text.strip()[: limits.window * BYTES_PER_TOKEN // 10]


def outgrown(
    messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], limits: ModelLimits
) -> Outgrown | None:
    """Returns the part of a conversation that does not fit the window, or None if all of it does.

    Raises:
        PayloadTooLarge: as of `fitted`.
    """
    request = CompletionRequest(messages, tools)
    found, left = fitted(request, limits)
    if not left.messages:
        return None
    history = [message for message in messages if message.role != "system"]
    return Outgrown(tuple(history[: left.messages]), found.messages)


#: the estimated tokens of offered tools, by the identity of the tuple, which stays beside its number
_TOOL_TOKENS: dict[int, tuple[tuple[ToolSpec, ...], int]] = {}
_MAX_TOOL_TOKENS = 256


def _surely_fits(request: CompletionRequest, room: float) -> bool:
    """Whether a plain request fits by a bound that costs little: a character is a token at most."""
    tokens = 0
    if tools := request.tools:
        known = _TOOL_TOKENS.get(id(tools))
        if known is None:
            if len(_TOOL_TOKENS) >= _MAX_TOOL_TOKENS:
                _TOOL_TOKENS.clear()
            known = _TOOL_TOKENS[id(tools)] = tools, estimate_tools(tools)
        tokens = known[1]
    for message in request.messages:
        if message.tool_calls or message.attachments:
            return False
        tokens += len(message.content) + MESSAGE_OVERHEAD
    return tokens <= room and request.output_schema is None


def _trimmed(
    request: CompletionRequest, limits: ModelLimits, earlier: int
) -> tuple[CompletionRequest, LeftOut]:
    messages = request.messages
    newest = max((i for i, m in enumerate(messages) if m.role == "user"), default=len(messages) - 1)
    system = tuple(m for m in messages[:newest] if m.role == "system")
    history = [m for m in messages[:newest] if m.role != "system"]
    required = (*system, messages[newest])
    fixed = estimate_request(replace(request, messages=required))
    if fixed > limits.window:
        raise PayloadTooLarge(
            f"The message is too large for the context window of {limits.names}, {limits.window} tokens: "
            f"with the system prompt and the tools it has about {fixed}. Send a shorter message."
        )
    room = int(limits.window * _SHARE) - fixed
    loop = [*_units(messages[newest + 1 :], "assistant")]
    in_loop = sum(map(estimate_messages, loop))
    turns = _newest([*_units(history, "user")], room - in_loop, limits, earlier)
    calls = loop
    if loop and in_loop > room:
        older = _newest(loop[:-1], room - estimate_messages(loop[-1]), limits)
        calls = [*older, _cut_results(loop[-1], room - sum(map(estimate_messages, older)))]
    whole = {id(message) for message in _joined(calls)}
    dropped = sum(m.role == "tool" and id(m) not in whole for m in _joined(loop))
    left_out = LeftOut(len(history) - sum(map(len, turns)), dropped)
    found = (*system, *_joined(turns), messages[newest], *_joined(calls))
    return replace(request, messages=found), left_out


def _units(messages: Sequence[Message], first: str) -> Iterable[list[Message]]:
    """Yields messages that stay or go together: each begins with a message of this role."""
    unit: list[Message] = []
    for message in messages:
        if unit and message.role == first:
            yield unit
            unit = []
        unit.append(message)
    if unit:
        yield unit


def _newest(
    units: list[list[Message]], room: int, limits: ModelLimits, earlier: int = 0
) -> list[list[Message]]:
    """Returns the newest units that fit. What is dropped fills a whole number of blocks.

    If messages came before the units, they are dropped in groups that are counted from the first message of
    all: memory forgets a turn with each run, and a cut in tokens would move with it.
    """
    sizes = [*map(estimate_messages, units)]
    over = sum(sizes) - max(room, 0)
    if over <= 0:
        return units
    block, group = max(int(limits.window * _SHARE) // _BLOCKS, 1), 1
    if earlier:
        group = 1 << max(block * len(sizes) // sum(sizes), 1).bit_length() - 1
    else:
        over = -(-over // block) * block
    dropped, ordinal, fits = 0, earlier, len(units)
    for place, (unit, size) in enumerate(zip(units, sizes, strict=True)):
        if dropped >= over:
            if ordinal // _EXCHANGE % group == 0:
                return units[place:]
            fits = min(fits, place)
        dropped, ordinal = dropped + size, ordinal + len(unit)
    return units[fits:]


def _cut_results(unit: list[Message], room: int) -> list[Message]:
    """Returns the newest calls with their results, each cut to its share of the room."""
    results = [m for m in unit if m.role == "tool"]
    if estimate_messages(unit) <= room or not results:
        return unit
    calls = sum(estimate_message(m) for m in unit if m.role != "tool")
    share = max((room - calls) // len(results) - _NOTE_TOKENS, 0) * BYTES_PER_TOKEN
    return [replace(m, content=_cut(m.content, share)) if m.role == "tool" else m for m in unit]


def _cut(text: str, size: int) -> str:
    """Returns the beginning of a text that is longer, with a note. Args: size: in bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return text
    start = data[:size].decode("utf-8", "ignore")
    return f"{start}\n[{len(text) - len(start)} characters are left out: the model's context window is full.]"


def _joined(units: Iterable[list[Message]]) -> Iterable[Message]:
    return (message for unit in units for message in unit)
