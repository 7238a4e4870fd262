"""The input rules of an agent on a whole request: its query, its messages, its context and its metadata.

A plain run checks its request in step 3. A durable run is checked when it is accepted, before its row is
written, so that what a rule removes never reaches a disk. Step 3 then takes the result from the request.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from astromesh.core.guardrails import GuardrailsEngine
from astromesh.errors import GuardrailBlocked, is_failure
from astromesh.runtime.records import RunRequest, Screening
from astromesh.types import JsonObject, Message

_USER_ROLE = frozenset({"user"})
_ANY_ROLE = frozenset({"system", "user", "assistant", "tool"})


class CheckedRequest(Struct, frozen=True):
    """A request as the rules return it, with their actions as in `CheckedText`."""

    request: RunRequest
    actions: tuple[JsonObject, ...] = ()


def check_request(rules: GuardrailsEngine, request: RunRequest) -> CheckedRequest:
    """Returns a request with the texts that the input rules let through.

    Raises:
        GuardrailBlocked: a rule refuses a part; `actions` of the error lists the actions of the rules.
    """
    if not rules.input_rules:
        return CheckedRequest(request)
    parts = check_parts(rules, request)
    query = rules.check_input(request.query)
    history = request.history
    if history is not None:  # of an outer pattern: the user's messages; of a client: every message
        roles = _ANY_ROLE if request.terms.history is None else _USER_ROLE
        history = _checked_messages(rules, history, roles)
    preface = _checked_messages(rules, request.preface, _USER_ROLE)
    continuation = _checked_messages(rules, request.continuation, _ANY_ROLE)
    checked = replace(
        parts.request, query=query.text, history=history, preface=preface, continuation=continuation
    )
    return CheckedRequest(checked, (*query.actions, *parts.actions))


def check_parts(rules: GuardrailsEngine, request: RunRequest) -> CheckedRequest:
    """Returns a request with the context, metadata and tags that the input rules let through.

    Raises:
        GuardrailBlocked: as of `check_request`.
    """
    if not rules.input_rules or not (request.context or request.metadata or request.tags):
        return CheckedRequest(request)
    context = rules.check_part(request.context, "context")
    metadata = rules.check_part(request.metadata, "metadata")
    tags = rules.check_part({"tags": list(request.tags)}, "metadata")
    checked = replace(request, context=context.value, metadata=metadata.value, tags=tuple(tags.value["tags"]))
    return CheckedRequest(checked, (*context.actions, *metadata.actions, *tags.actions))


def screen(rules: GuardrailsEngine, request: RunRequest) -> RunRequest:
    """Returns a request as a durable run stores it: nothing is left of what the input rules remove or refuse.

    A rule that raises leaves the request as it came. It raises again in step 3, and fails the run.
    """
    if not rules.input_rules:
        return request
    try:
        checked = check_request(rules, request)
    except GuardrailBlocked as blocked:
        refused = Screening(tuple(map(dict, blocked.actions)), blocked.guardrail, str(blocked))
        history = None if request.history is None else ()
        metadata = rules.visible_metadata(request.metadata)
        tags = request.tags and rules.visible_tags(request.tags)
        return replace(
            request, query="", context={}, metadata=metadata, tags=tags, history=history, preface=(),
            continuation=(), screening=refused,
        )  # fmt: skip
    except BaseException as error:  # foreign code: a rule may raise anything
        if not is_failure(error):
            raise
        return request
    return replace(checked.request, screening=Screening(checked.actions))


def _checked_messages(
    rules: GuardrailsEngine, messages: tuple[Message, ...], roles: frozenset[str]
) -> tuple[Message, ...]:
    """Applies the rules to the messages that come with a query: they are user text, too."""
    return tuple(
        replace(m, content=rules.check_input(m.content).text) if m.role in roles and m.content else m
        for m in messages
    )
