"""A server with WhatsApp on the scripted provider and the fake Graph API, for tests of channels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider
from astromesh.testing.whatsapp import PHONE_NUMBER_ID, FakeWhatsAppApi, sign_webhook, webhook
from astromesh.types import JsonObject
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

SECRET, TOKEN, VERIFY = "app-secret-seeded", "access-token-seeded", "verify-token-seeded"
HOOK = "/v1/channels/whatsapp/webhook"


@dataclass
class Place:
    """A running server."""

    client: httpx.AsyncClient
    graph: FakeWhatsAppApi
    runtime: AgentRuntime
    provider: ScriptedProvider

    async def post(self, data: JsonObject | bytes) -> httpx.Response:
        body, headers = sign_webhook(SECRET, data)
        return await self.client.post(HOOK, content=body, headers=headers)

    async def say(self, *messages: JsonObject, **more: Any) -> httpx.Response:
        answer = await self.post(webhook(*messages, **more))
        assert answer.status_code == 200, answer.text
        return answer

    async def answered(self, count: int) -> list[str]:
        """The texts sent, once there are so many."""
        await self.graph.until(lambda graph: len(graph.messages) >= count)
        return self.graph.texts()

    def asked(self) -> list[str]:
        """The user's last message of each model call."""
        return [request.messages[-1].content for request in self.provider.requests]


def channel_file(folder: Path, api_base: str, **keys: Any) -> None:
    block = {
        "verify_token": VERIFY,
        "access_token": TOKEN,
        "phone_number_id": PHONE_NUMBER_ID,
        "app_secret": SECRET,
        "default_agent": "helper",
        "api_base": api_base,
        **keys,
    }
    data = {"apiVersion": "astromesh/v1", "kind": "ChannelConfig", "spec": {"channels": {"whatsapp": block}}}
    (folder / "channels.yaml").write_text(yaml.safe_dump(data))


@asynccontextmanager
async def place(
    folder: Path,
    provider: ScriptedProvider,
    *agents: JsonObject,
    graph: FakeWhatsAppApi | None = None,
    **keys: Any,
) -> AsyncIterator[Place]:
    """A server in `folder`; `keys` go into the channel's block."""
    if graph is None:
        async with FakeWhatsAppApi() as own, place(folder, provider, *agents, graph=own, **keys) as made:
            yield made
        return
    memory = {"conversational": {"backend": "sqlite"}}
    write(folder, *(agents or (manifest("helper", memory=memory),)))
    channel_file(folder, graph.url, **keys)
    runtime = runtime_of(folder, provider)
    async with client_of(runtime) as client:
        yield Place(client, graph, runtime, provider)
