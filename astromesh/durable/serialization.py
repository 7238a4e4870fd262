"""Memory, requests and callers of durable runs as JSON and back. Calls: `graph.call_record`."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable

from astromesh.graph.call_record import message_to_json
from astromesh.types import (
    Attachment,
    CallerContext,
    JsonObject,
    MemoryContext,
    Message,
    SemanticResult,
    ToolCall,
)

#: number of the format of requests and of the journal; a process does not resume a run with a newer one.
#: 3: finished nodes of graphs. A run of format 2 goes on: its nodes run again, and its calls are answered.
SCHEMA = 3
#: where a stored request has the token of the place that its message took
PLACE = "place"
#: the fields of a request that only an active run needs
_FOR_THE_RUN = frozenset({"history", "preface", "screening"})
#: the fields that are stored only as the input rules let them through
_CHECKED = frozenset({"context", "metadata", "attachments"})


# -- memory --------------------------------------------------------------------------------------------------
def message_of(data: JsonObject) -> Message:
    calls = tuple(ToolCall(**call) for call in data.get("tool_calls", ()))
    attached = tuple(map(attachment_of, data.get("attachments", ())))
    rest = {key: value for key, value in data.items() if key != "images"}  # as an earlier version wrote it
    return Message(**{**rest, "tool_calls": calls, "attachments": attached})


# -- attachments: stored apart, by the hash of their content ------------------------------------------------
def attachment_of(data: JsonObject) -> Attachment:
    return Attachment(**data)


def attachment_hashes(request: JsonObject) -> tuple[str, ...]:
    """Returns the hashes of the attachments that a stored request refers to."""
    found = [*request.get("attachments", ())]
    for message in request.get("history") or ():
        found += message.get("attachments", ())
    return tuple(dict.fromkeys(one["sha256"] for one in found if "sha256" in one))


def contents_of(attachments: Iterable[Attachment]) -> dict[str, bytes]:
    """Returns the contents of attachments by hash."""
    return {one.sha256: b64decode(one.data) for one in attachments if one.sha256 and one.data}


def memory_to_json(memory: MemoryContext) -> JsonObject:
    return {
        "history": [message_to_json(m) for m in memory.conversation_history],
        "semantic": [
            [r.content, r.score, r.source, dict(r.metadata), dict(r.why)] for r in memory.semantic_results
        ],
        "episodic": list(memory.episodic_events),
        "degraded": list(memory.degraded),
        "last_seq": memory.last_seq,
    }


def memory_of(data: JsonObject) -> MemoryContext:
    return MemoryContext(
        tuple(map(message_of, data["history"])),
        tuple(SemanticResult(*found) for found in data["semantic"]),
        tuple(data["episodic"]),
        tuple(data["degraded"]),
        data.get("last_seq", 0),
    )


def ended_request(request: JsonObject, admitted: str) -> JsonObject:
    """Returns the request of an ended run, with the query as it was admitted.

    Its record has the history and the preface as they were admitted. A run that was not admitted leaves no
    text.
    """
    dropped = _FOR_THE_RUN if admitted else _FOR_THE_RUN | _CHECKED
    return {**{key: request[key] for key in request.keys() - dropped}, "query": admitted}


# -- callers -------------------------------------------------------------------------------------------------
def caller_to_json(caller: CallerContext) -> JsonObject:
    """Returns a caller without the token, which is never stored."""
    return {
        "user_id": caller.user_id,
        "tenant_id": caller.tenant_id,
        "roles": sorted(caller.roles),
        "scopes": sorted(caller.scopes),
        "metadata": dict(caller.metadata),
        "had_token": caller.had_token or bool(caller.bearer_token),
    }


def caller_of(data: JsonObject) -> CallerContext:
    return CallerContext(
        data.get("user_id", ""),
        data.get("tenant_id", ""),
        roles=frozenset(data.get("roles", ())),
        scopes=frozenset(data.get("scopes", ())),
        metadata=data.get("metadata", {}),
        had_token=data.get("had_token", False),
    )
