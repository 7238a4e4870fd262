"""A member asks in Slack, books a room, and presses the button."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from astromesh import AgentRuntime
from astromesh.api.app import create_app
from astromesh.testing.slack import SIGNING_SECRET, SLACK_TOKEN, FakeSlackApi, event, press, sign_event

HERE = Path(__file__).parent
WEBHOOK = "/v1/channels/slack/webhook"


def send(client: TestClient, data: dict[str, Any] | bytes) -> None:
    """Sends an event, or a pressed button, as Slack does."""
    body, headers = sign_event(data)
    if isinstance(data, bytes):
        headers["content-type"] = "application/x-www-form-urlencoded"
    client.post(WEBHOOK, content=body, headers=headers).raise_for_status()


def approval(slack: FakeSlackApi) -> str:
    """Returns the value of the button Approve, or nothing."""
    blocks = [block for _, content in slack.calls for block in content.get("blocks", [])]
    buttons = [button for block in blocks for button in block.get("elements", [])]
    return next((b["value"] for b in buttons if b.get("text", {}).get("text") == "Approve"), "")


def test_a_member_books_a_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeSlackApi() as slack:
            env = {
                "SLACK_BOT_TOKEN": SLACK_TOKEN,
                "SLACK_SIGNING_SECRET": SIGNING_SECRET,
                "SLACK_API": slack.url,
            }
            runtime = AgentRuntime(HERE / "config", data_dir=tmp_path, env=env)
            with TestClient(create_app(runtime)) as client:
                send(client, event("1", "We are ten. Which room is free?"))
                await slack.until(lambda api: "Grace is free." in api.messages.values())
                send(client, event("2", "Please book Grace.", thread_ts="1700000000.000009"))
                await slack.until(lambda api: approval(api) != "")
                send(client, press(approval(slack), ts="1"))
                await slack.until(lambda api: "Grace is yours for the next hour." in api.messages.values())

    asyncio.run(main())
