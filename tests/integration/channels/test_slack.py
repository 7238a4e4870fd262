"""Slack from the webhook to the answer: threads, edits, files, and buttons that decide."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from astromesh.channels.slack import plain_text
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.testing.slack import (
    APP_USER,
    DIRECT,
    MEMBER,
    SIGNING_SECRET,
    SLACK_TOKEN,
    FakeSlackApi,
    event,
    press,
    sign_event,
)
from astromesh.types import Delta, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

HOOK = "/v1/channels/slack/webhook"
PICTURE = b"\xff\xd8\xff\xe0JPEG"
PAY = {"name": "pay", "type": "internal", "function": f"{__name__}:pay", "approval": "required"}
paid: list[int] = []


def pay(amount: int) -> str:
    """Pays."""
    paid.append(amount)
    return "paid"


class Place(NamedTuple):
    """A running server with an app."""

    client: httpx.AsyncClient
    slack: FakeSlackApi
    provider: ScriptedProvider

    async def post(self, data: Any) -> httpx.Response:
        body, headers = sign_event(data)
        return await self.client.post(HOOK, content=body, headers=headers)

    async def say(self, id: str, text: str = "", **content: Any) -> None:
        assert (await self.post(event(id, text, **content))).status_code == 200

    async def shown(self, *texts: str) -> None:
        """Waits until these are the texts of all messages."""
        await self.slack.until(lambda slack: list(slack.messages.values()) == list(texts))

    def asked(self) -> list[list[str]]:
        """The messages of each model call, without the system prompt."""
        return [[str(m.content) for m in one.messages[1:]] for one in self.provider.requests]


@asynccontextmanager
async def place(
    folder: Path, provider: ScriptedProvider, *, tools: Any = (), clock: Any = None, **keys: Any
) -> AsyncIterator[Place]:
    async with FakeSlackApi() as slack:
        memory = {"conversational": {"backend": "sqlite"}}
        write(folder, manifest("helper", memory=memory, tools=list(tools)))
        block = {
            "bot_token": SLACK_TOKEN, "signing_secret": SIGNING_SECRET, "default_agent": "helper",
            "api_base": slack.url, **keys,
        }  # fmt: skip
        head = {"apiVersion": "astromesh/v1", "kind": "ChannelConfig", "spec": {"channels": {"slack": block}}}
        (folder / "channels.yaml").write_text(yaml.safe_dump(head))
        async with client_of(runtime_of(folder, provider, clock=clock)) as client:
            yield Place(client, slack, provider)


def echo() -> ScriptedProvider:
    return ScriptedProvider("Yes.", repeat=True)


async def test_slack_verifies_the_address_of_the_webhook(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        answer = await here.post({"type": "url_verification", "challenge": "3eZb"})
        assert answer.json() == {"status": "received", "challenge": "3eZb"}
        body, headers = sign_event(event("1", "Hello"), "another secret")
        assert (await here.client.post(HOOK, content=body, headers=headers)).status_code == 401
        for nonsense in (b"payload=%7B", {"type": "other"}, b"[]"):
            assert (await here.post(nonsense)).status_code == 422


async def test_a_message_is_answered_once_in_its_thread(tmp_path: Path) -> None:
    """Each thread is a conversation, in direct messages and in channels; there, mentions are answered."""
    async with place(tmp_path, echo(), streaming=False) as here:
        for _ in range(3):
            await here.say("1", "One")
        await here.shown("Yes.")
        await here.say("2", "Two")
        await here.shown(*["Yes."] * 2)
        await here.say("3", "In a thread", thread_ts="1700000000.5")
        await here.shown(*["Yes."] * 3)
        mention = {"type": "app_mention", "channel": "C1", "channel_type": "channel"}
        await here.say("4", "not for us", channel="C1", channel_type="channel")
        await here.say("5", "a bot", bot_id="B1")
        await here.say("6", "edited", subtype="message_changed")
        await here.say("7", f"<@{APP_USER}> In a &lt;channel&gt;", **mention)
        await here.shown(*["Yes."] * 4)
        await here.say("8", "Somebody else", user="U2", thread_ts="1700000000.000007", **mention)
        await here.shown(*["Yes."] * 5)
        assert here.asked() == [
            ["One"], ["One", "Yes.", "Two"], ["In a thread"], ["In a <channel>"],
            ["In a <channel>", "Yes.", "Somebody else"],
        ]  # fmt: skip
        sent = [(one["channel"], one.get("thread_ts")) for one in here.slack.of("chat.postMessage")]
        assert sent == [
            (DIRECT, None), (DIRECT, None), (DIRECT, "1700000000.5"), ("C1", "1700000000.000007"),
            ("C1", "1700000000.000007"),
        ]  # fmt: skip
        assert set(here.slack.tokens) == {f"Bearer {SLACK_TOKEN}"}


class Halting(ScriptedProvider):
    """Stops in the middle of its answer."""

    def __init__(self) -> None:
        super().__init__("The first half and the second.")
        self.seen = asyncio.Event()

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        yield Delta("The first half")
        await self.seen.wait()
        yield Delta(" and the second.")
        yield await self.complete(request)


async def test_an_answer_appears_while_it_is_made_as_one_message(tmp_path: Path) -> None:
    model = Halting()
    async with place(tmp_path, model) as here:
        await here.say("1", "Hello")
        await here.shown("The first half …")
        model.seen.set()
        await here.shown("The first half and the second.")
        assert len(here.slack.of("chat.postMessage")) == 1


async def test_files_reach_the_agent(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), streaming=False) as here:
        here.slack.files = {"a.jpg": PICTURE, "b.txt": b"seven"}
        files = [
            {"name": name, "mimetype": kind, "url_private": f"{here.slack.url}/files/{name}"}
            for name, kind in (("a.jpg", "image/jpeg"), ("b.txt", "text/plain"), ("gone.txt", "text/plain"))
        ]
        await here.say("1", "Look", subtype="file_share", files=files)
        await here.shown("Yes.")
        (request,) = here.provider.requests
        query = request.messages[-1]
        assert [one.media_type for one in query.attachments] == ["image/jpeg"]
        assert "seven" in query.content
        assert "could not be fetched" in query.content
        assert query.content.endswith("Look")


async def test_a_button_decides_for_a_waiting_run(tmp_path: Path) -> None:
    paid.clear()
    call = ToolCall("call_1", "pay", '{"amount": 5}')
    clock = ManualClock(time.time())  # the inbox does not look again by itself
    provider = ScriptedProvider(call, "Done.")
    async with place(tmp_path, provider, tools=[PAY], approvers=[MEMBER], clock=clock) as here:
        await here.say("1", "Pay 5.")
        await here.slack.until(lambda slack: any("blocks" in one for one in slack.of("chat.postMessage")))
        (asked,) = (one for one in here.slack.of("chat.postMessage") if "blocks" in one)
        assert '"amount": 5' in asked["blocks"][0]["text"]["text"]
        values = {one["value"].split()[2]: one["value"] for one in asked["blocks"][1]["elements"]}
        stamp = next(ts for ts, text in here.slack.messages.items() if text == asked["text"])
        assert values.keys() == {"approve", "deny"}
        assert (await here.post(press(values["approve"], user="U0STRANGER", ts=stamp))).status_code == 200
        assert not here.slack.of("chat.update")
        assert (await here.post(press(values["approve"], ts=stamp))).status_code == 200
        assert here.slack.messages[stamp] == f"Approved. (<@{MEMBER}>)"
        await here.slack.until(lambda slack: "Done." in slack.messages.values())
        assert (await here.post(press(values["deny"], ts=stamp))).status_code == 200
        assert here.slack.messages[stamp].startswith("There is nothing to decide any more.")
    assert paid == [5]


def test_markup_of_slack_becomes_plain_text() -> None:
    text = "<@U1> see <https://example.com|the page>, <https://example.org> in <#C1|general> &amp; <!here>"
    assert plain_text(text, frozenset({"U1"})) == (
        "see the page (https://example.com), https://example.org in general &"
    )
