"""Summarizes a conversation that a client keeps, on request."""

from __future__ import annotations

from typing import NamedTuple

from astromesh.errors import ProviderUnavailable
from astromesh.memory.base import summary_prompt
from astromesh.runtime.agent import Agent
from astromesh.runtime.records import RunRequest
from astromesh.runtime.request_checks import check_request
from astromesh.types import CompletionRequest, Message, Usage

#: characters of a message that the model sees
_MAX_CHARACTERS = 8000


class Compaction(NamedTuple):
    """A summary, and the messages that it is made of as the input rules have let them through."""

    summary: str
    messages: tuple[Message, ...]
    usage: Usage


async def compact(agent: Agent, messages: tuple[Message, ...]) -> Compaction:
    """Returns a summary of messages, written by the agent's model for summaries.

    Raises:
        GuardrailBlocked: an input rule refuses a message.
        UpstreamError: no model answers.
    """
    request = check_request(agent.guardrails, RunRequest("", "", history=messages)).request
    checked = request.history or ()
    transcript = "\n".join(map(_line_of, checked))
    prompt = summary_prompt("", transcript)
    result = await agent.router.complete(CompletionRequest(prompt, role="summary", answers=False))
    text = agent.guardrails.check_output(result.content.strip()).text
    if not text:
        raise ProviderUnavailable("The model answered with an empty summary.", provider=result.provider)
    return Compaction(text, checked, result.usage)


def _line_of(message: Message) -> str:
    calls = " ".join(f"[calls {call.name}({call.arguments})]" for call in message.tool_calls)
    return f"{message.role}: {message.content} {calls}".strip()[:_MAX_CHARACTERS]
