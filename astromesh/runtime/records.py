"""What goes into a run and what comes out (api.md section 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astromesh.abc.run import OWN_TERMS, Terms
from astromesh.quick import quick
from astromesh.telemetry.traceparent import NO_PARENT, TraceParent
from astromesh.types import Image, JsonObject, MemoryContext, Message, ToolSpec


@quick
@dataclass(frozen=True, slots=True)
class RunRequest:
    """One message to an agent.

    Args:
        context: the caller's template variables.
        metadata: kept with the run, never shown to the model.
        images: pictures that belong to the query.
        history: messages that stand in for the stored session, or None to use that.
        preface: untrusted context of the client, between history and query.
        persist: False leaves no turn behind.
        terms: on which another agent's pattern runs this one.
        caused_by: where the caller's own trace stands (`traceparent`).
    """

    query: str
    session_id: str
    context: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Image, ...] = ()
    history: tuple[Message, ...] | None = None
    preface: tuple[Message, ...] = ()
    persist: bool = True
    terms: Terms = OWN_TERMS
    caused_by: TraceParent = NO_PARENT


@quick
@dataclass(frozen=True, slots=True)
class RunAnswer:
    """What step 12 answers; `to_json()` is the body that api.md shows."""

    response: str
    agent: str
    session_id: str
    run_id: str
    metadata: JsonObject

    def to_json(self) -> JsonObject:
        return {
            "response": self.response,
            "agent": self.agent,
            "session_id": self.session_id,
            "run_id": self.run_id,
            "metadata": self.metadata,
        }


# -- what each step hands to the next; a later stage cannot be read early ----------------------------------


@quick
@dataclass(frozen=True, slots=True)
class AdmittedQuery:
    """Step 3: the query after the input rules. From here on nobody sees the raw one."""

    request: RunRequest
    query: str
    actions: tuple[JsonObject, ...]
    history: tuple[Message, ...] | None = None
    preface: tuple[Message, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class RecalledQuery:
    """Step 4: with what memory knows."""

    admitted: AdmittedQuery
    memory: MemoryContext


@quick
@dataclass(frozen=True, slots=True)
class PromptedQuery:
    """Step 5: the message array for the model, system message first."""

    recalled: RecalledQuery
    messages: tuple[Message, ...]


@quick
@dataclass(frozen=True, slots=True)
class EquippedQuery:
    """Step 6: with the schemas of the tools that this agent may use."""

    prompted: PromptedQuery
    tools: tuple[ToolSpec, ...]


@quick
@dataclass(frozen=True, slots=True)
class ReleasedAnswer:
    """Step 10: the answer after the output rules. From here on nobody sees the raw one."""

    admitted: AdmittedQuery
    response: str
    actions: tuple[JsonObject, ...]
    details: JsonObject
