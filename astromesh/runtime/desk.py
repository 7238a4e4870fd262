"""The desk of the channels that are set up: opened by servers alone, so that no command answers people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.abc.channel import Ask, Desk, Inbox, Question
from astromesh.abc.deps import Deps
from astromesh.config.channels import ChannelBlock
from astromesh.net.http import Http
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest


async def open_desk(runtime: AgentRuntime) -> Desk | None:
    """The desk of an open runtime, which it closes with; None where channels.yaml names no channel.

    Raises:
        StoreUnavailable, ConfigError: the inbox cannot be opened.
    """
    opened = runtime.opened
    blocks = opened.configuration.channels.spec.channels
    if not blocks:
        return None
    deps = await _deps(runtime)
    inbox = await _inbox(runtime, deps)
    channels = {
        name: (await _channel(runtime, name, block, deps), _setup(block)) for name, block in blocks.items()
    }
    plugin = runtime.plugins.load("desks", "channels")
    options = plugin.Options(inbox=inbox, channels=channels, ask=answering(runtime))
    desk: Desk = await plugin.open(options, deps)
    opened.resources.on_close(desk.close)
    opened.checks["store:inbox"] = inbox.ping
    opened.erasers.append(desk.erase)
    return desk


def answering(runtime: AgentRuntime) -> Ask:
    """How a channel's question becomes a run. The one place that knows."""

    async def ask(question: Question) -> str:
        request = RunRequest(
            question.query, question.session_id, question.context, question.metadata, question.images
        )
        answer = await runtime.start(runtime.agent(question.agent), request, caller=question.caller)
        return answer.response

    return ask


async def _deps(runtime: AgentRuntime) -> Deps:
    opened = runtime.opened
    return Deps(
        http=await opened.resources.shared(Http, Http),
        clock=runtime.clock,
        data_dir=runtime.data_dir,
        config_dir=opened.configuration.folder,
        storage_url=opened.configuration.runtime.spec.storage.url.get_secret_value(),
        resources=opened.resources,
    )


async def _inbox(runtime: AgentRuntime, deps: Deps) -> Inbox:
    """In the runtime's own store, which several servers share where that is PostgreSQL."""
    kind = "sqlite" if deps.storage_url.startswith("sqlite:") else "postgres"
    inbox: Inbox = await runtime.plugins.open("inboxes", kind, {}, deps)
    return inbox


async def _channel(runtime: AgentRuntime, name: str, block: ChannelBlock, deps: Deps) -> Any:
    return await runtime.plugins.load("channels", name).open(block.options, deps)


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
