"""Opens the inbox worker of the configured channels. Only servers do, so that no command answers people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Literal

from astromesh.access.scopes import Viewer, principal_of
from astromesh.channels.base import (
    AskAgent,
    ChannelDecision,
    ChannelRunRequest,
    DecideRun,
    Inbox,
    InboxWorker,
)
from astromesh.config.runtime import ChannelBlock
from astromesh.durable.approvals import question_id, questions_in
from astromesh.durable.base import IdempotencyKey, RunRow
from astromesh.errors import (
    AgentUnavailable,
    ApprovalRequired,
    GuardrailBlocked,
    RateLimited,
    RunFailed,
    SessionBusy,
    Unavailable,
)
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.runtime.runs import Decision
from astromesh.telemetry.events import COMMENTARY, MODEL_DELTA, EventSink
from astromesh.telemetry.ids import read_traceparent
from astromesh.types import CallerContext, Event


async def open_inbox_worker(runtime: AgentRuntime) -> InboxWorker | None:
    """Opens the inbox worker of a runtime, which closes it. Returns None if channels.yaml names no channel.

    Raises:
        StoreUnavailable, ConfigError: the inbox cannot be opened.
    """
    opened = runtime.state
    blocks = opened.configuration.channels.spec.channels
    if not blocks:
        return None
    deps = await _deps(runtime)
    inbox = await _inbox(runtime, deps)
    channels = {
        name: (await _channel(runtime, name, block, deps), _setup(block)) for name, block in blocks.items()
    }
    plugin = runtime.plugins.load("inbox_workers", "channels")
    options = plugin.Options(
        inbox=inbox,
        channels=channels,
        ask=channel_runner(runtime),
        decide=channel_decider(runtime),
        answers=runtime.durable.executes,
    )
    worker: InboxWorker = await plugin.open(options, deps)
    opened.resources.on_close(worker.close)
    opened.checks["store:inbox"] = inbox.ping
    opened.erasers.append(worker.erase)
    return worker


def channel_runner(runtime: AgentRuntime) -> AskAgent:
    """Returns the function that runs an agent for a message of a channel.

    The run is durable, and its idempotency key names the message: after a crash it is the same run. A message
    whose run failed for a passing reason gets another key.
    """

    async def ask(question: ChannelRunRequest) -> str:
        agent = runtime.agent(question.agent)
        request = RunRequest(
            question.query,
            question.session_id,
            dict(question.context),
            dict(question.metadata),
            question.attachments,
            caused_by=read_traceparent(question.traceparent),
        )
        for attempt in count():
            key = _run_key(question, attempt, runtime.clock.now())
            row = await runtime.runner.accept(agent, request, caller=question.caller, key=key)
            if not _may_retry(row):
                sinks = () if question.on_text is None else (_TextSink(question.on_text),)
                return await _answer(runtime, row, sinks)
        raise AssertionError("some attempt has a new key")

    return ask


def channel_decider(runtime: AgentRuntime) -> DecideRun:
    """Returns the function that decides for a waiting run of a conversation."""

    async def decide(owner: CallerContext, by: CallerContext, decision: ChannelDecision) -> None:
        word: Literal["approve", "deny"] = "approve" if decision.approved else "deny"
        made = Decision(word, question=decision.question or None)
        await runtime.runs.decide(decision.run_id, Viewer(*principal_of(owner)), by, made)

    return decide


class _TextSink:
    """An EventSink that passes on the answer so far: the text of the present step."""

    wants_deltas = True

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text, self._text = on_text, ""

    def send(self, event: Event) -> None:
        if event.type in ("model.started", "model.restarted", COMMENTARY):
            self._text = ""
        elif event.type == MODEL_DELTA and event.data["role"] == "assistant":
            self._text += event.data["content"]
            self._on_text(self._text)


async def _answer(runtime: AgentRuntime, row: RunRow, sinks: tuple[EventSink, ...]) -> str:
    """Raises: ApprovalRequired: a person must decide first; call again then."""
    try:
        return (await runtime.runs.wait(row, sinks)).response
    except ApprovalRequired as waits:
        questions = [
            {**one, "question": question_id(one["path"], one["n"])} for one in questions_in(waits.waiting_for)
        ]
        raise ApprovalRequired(str(waits), waits.run_id, waits.waiting_for, questions) from waits
    except RunFailed as failed:
        if failed.code == GuardrailBlocked.code:
            raise GuardrailBlocked(str(failed.details.get("guardrail", "")), str(failed)) from failed
        if failed.code in _RETRYABLE_CODES:
            raise Unavailable(str(failed)) from failed
        raise


def _may_retry(row: RunRow) -> bool:
    return row.status == "failed" and (row.error or {}).get("code") in _RETRYABLE_CODES


def _run_key(question: ChannelRunRequest, attempt: int, now: float) -> IdempotencyKey:
    key = f"{question.key}#{attempt}" if attempt else question.key
    return IdempotencyKey(
        *principal_of(question.caller), f"channel {question.agent}", key, "", now + _KEY_SECONDS
    )


#: codes of runs that failed for a passing reason
_RETRYABLE_CODES = frozenset({Unavailable.code, AgentUnavailable.code, SessionBusy.code, RateLimited.code})
#: seconds for which the key of a run is stored; a messenger repeats a webhook for a week
_KEY_SECONDS = 8 * 86_400.0


async def _deps(runtime: AgentRuntime) -> Deps:
    opened = runtime.state
    storage = opened.configuration.runtime.spec.storage
    return Deps(
        http=await opened.resources.shared(Http, Http),
        clock=runtime.clock,
        data_dir=runtime.data_dir,
        config_dir=opened.configuration.folder,
        storage_url=storage.url.get_secret_value(),
        sqlite_synchronous=storage.sqlite.synchronous,
        resources=opened.resources,
    )


async def _inbox(runtime: AgentRuntime, deps: Deps) -> Inbox:
    """Opens the inbox in the runtime's own store, which several servers share if it is PostgreSQL."""
    kind = "postgres" if deps.storage_url.startswith("postgres") else "sqlite"
    inbox: Inbox = await runtime.plugins.open("inboxes", kind, {}, deps)
    return inbox


async def _channel(runtime: AgentRuntime, name: str, block: ChannelBlock, deps: Deps) -> Any:
    return await runtime.plugins.open("channels", name, block.options, deps)


def _setup(block: ChannelBlock) -> Mapping[str, Any]:
    return {
        "default_agent": block.default_agent,
        "agents": block.agents,
        "debounce": block.debounce_ms / 1000,
        "tenant": block.tenant,
        "identity_key": block.identity_key.get_secret_value(),
        "failure_reply": block.failure_reply,
        "lease": block.lease_seconds,
    }
