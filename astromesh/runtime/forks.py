"""Forks of recorded runs: their request, manifest and session. The record is `astromesh.durable.fork`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import orjson
import yaml
from msgspec.structs import replace

from astromesh.access.scopes import principal_of
from astromesh.config.environment import HIDDEN_KEY, literal
from astromesh.durable.base import JournalStep, RunRow
from astromesh.durable.fork import Edit
from astromesh.durable.serialization import PLACE, SCHEMA, caller_of, caller_to_json, memory_of
from astromesh.errors import InvalidInput
from astromesh.runtime.agent import Agent
from astromesh.telemetry import ids
from astromesh.types import CallerContext, JsonObject, SessionKey, Turn, Usage

#: `new`: a session of its own, with the history of the run. `same`: that of the run
ForkSession = Literal["new", "same"]


#: keys of a model block that a caller may choose: where requests go, and with which key, is the operator's
_BLOCK = frozenset({"provider", "model", "parameters"})
#: keys of a request that its forks do not have
_OF_ONE_RUN = ("persist", "traceparent", PLACE)


class ForkRequest(NamedTuple):
    """What a caller wants of a fork.

    Args:
        at: number of a step.
        session: the session that the turns are written to; None: none.
    """

    at: int
    edit: Edit | None = None
    session: ForkSession | None = None


def forked_row(
    row: RunRow,
    steps: Sequence[JournalStep],
    request: ForkRequest,
    manifest: JsonObject,
    caller: CallerContext,
    now: float,
) -> tuple[RunRow, CallerContext]:
    """Returns the row of a fork, and the caller that it runs for: the owner of the run.

    Args:
        steps: that the fork begins with.
    """
    own = principal_of(caller) == (row.tenant, row.owner)
    caller = caller if own else caller_of(row.caller)
    run_id, edit = ids.new_id("run_"), request.edit
    body = {key: value for key, value in row.request.items() if key not in _OF_ONE_RUN}
    if edit is not None and edit.kind == "query":
        body["query"] = edit.value
    if request.session is None:
        body["persist"] = False
    session_id = run_id if request.session == "new" else row.session_id
    accepted_at = (row.forked_from or row.request).get("accepted_at", row.created_at)
    inherited = max((step.ordinal for step in steps), default=0)
    forked_from = {"run_id": row.run_id, "step": request.at, "edit": edit.kind if edit else None}
    fork = replace(
        row, run_id=run_id, trace_id=ids.trace_id(), session_id=session_id, status="queued", created_at=now,
        parent="", durable=True, request={**body, "session_id": session_id, "journal": SCHEMA},
        manifest=manifest, caller=caller_to_json(caller), finished_at=0.0, deadline_at=0.0, wake_at=0.0,
        # the first segment of a run reads no record
        segment=2 if steps else 1, worker="", cancelling=False, result=None, error=None,
        usage=Usage(), attempts=(), waiting_for=None, ordered=request.session is not None,
        forked_from={**forked_from, "accepted_at": accepted_at, "inherited": inherited},
    )  # fmt: skip
    return fork, caller


def history_of(steps: Iterable[JournalStep]) -> list[JsonObject]:
    """Returns the conversation that a run has found in its session."""
    found = next((step.output for step in steps if step.path == "memory"), None)
    return list((found or {}).get("history", ()))


async def copy_history(agent: Agent, row: RunRow, steps: Iterable[JournalStep], now: float) -> None:
    """Writes the conversation that a run has found to the session of its fork."""
    messages = memory_of({"history": history_of(steps), "semantic": (), "episodic": (), "degraded": ()})
    said = [m for m in messages.conversation_history if m.role in ("user", "assistant") and m.content]
    if not said or agent.memory.is_empty:
        return
    key = SessionKey(row.tenant, row.agent, row.session_id, row.owner)
    async with agent.memory.transaction(key, row.owner) as transaction:
        for message in said:
            role: Literal["user", "assistant"] = "user" if message.role == "user" else "assistant"
            transaction.persist_turn(Turn(role, message.content, created_at=now, run_id="history"))


# -- another model -------------------------------------------------------------------------------------------


def with_model(
    manifest: JsonObject, name: str, model: str | JsonObject, providers: Collection[str]
) -> JsonObject:
    """Returns a manifest in which an agent has another primary model.

    Args:
        name: of one of the agents that the agent may call; empty: the agent itself.
        model: a name, `provider:name`, or a block.
        providers: the known ones.

    Raises:
        InvalidInput: the manifest is not stored, or has a key that would be lost.
    """
    source = manifest.get("agents", {}).get(name, "") if name else manifest.get("source", "")
    node = _node_at(source, ("spec", "model", "primary"))
    if node is None:
        raise InvalidInput("edit.model: the manifest of the run has no spec.model.primary.")
    block, scalar = _block_of(model, providers), None
    if isinstance(model, str) and "provider" not in block:
        scalar = _value_of(node, "model")
        provider = _value_of(node, "provider")
        block = {"provider": provider.value if provider is not None else "", **block}
    if scalar is not None:
        text = _replaced(source, scalar, block["model"])
    elif HIDDEN_KEY in source:
        raise InvalidInput(
            "edit.model: the manifest has literal keys, which are not stored with a run. Name a model of the "
            "same provider."
        )
    else:
        text = _replaced(source, node, block)
    if not name:
        return {**manifest, "source": text}
    return {**manifest, "agents": {**manifest["agents"], name: text}}


def _block_of(model: str | JsonObject, providers: Collection[str]) -> JsonObject:
    if not isinstance(model, str):
        if unknown := model.keys() - _BLOCK:
            raise InvalidInput(
                f"edit.model: `{min(unknown)}` cannot be edited: a block has `provider`, `model` and "
                "`parameters`. Endpoints and keys are in providers.yaml."
            )
        return model
    provider, _, name = model.partition(":")
    return {"provider": provider, "model": name} if provider in providers and name else {"model": model}


def _node_at(source: str, path: Sequence[str]) -> yaml.Node | None:
    found: Any = yaml.compose(source, yaml.SafeLoader) if source else None
    for key in path:
        found = _value_of(found, key)
    return found if isinstance(found, yaml.MappingNode) else None


def _value_of(node: yaml.Node | None, key: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if name.value == key), None)


def _replaced(source: str, node: Any, value: Any) -> str:
    """Returns a text in which a value stands in place of a node. JSON is YAML."""
    start, end = node.start_mark.index, node.end_mark.index
    before = source[start:end]
    rest = before[len(before.rstrip()) :]  # a block ends where the next token begins
    return f"{source[:start]}{literal(orjson.dumps(value).decode())}{rest}{source[end:]}"
