"""Telegram from the webhook to the answer: the second channel, on the same desk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from astromesh.errors import ConfigError
from astromesh.testing import ScriptedProvider
from astromesh.testing.telegram import BOT_TOKEN, CHAT, SECRET_TOKEN, FakeTelegramApi, sign_update, update
from astromesh.types import JsonObject
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

HOOK = "/v1/channels/telegram/webhook"
PICTURE = b"\xff\xd8\xff\xe0JPEG"


class Place(NamedTuple):
    """A running server with a bot."""

    client: httpx.AsyncClient
    bots: FakeTelegramApi
    provider: ScriptedProvider

    async def say(self, id: int, **content: Any) -> None:
        assert (await self.post(update(id, **content))).status_code == 200

    async def post(self, data: JsonObject | bytes, secret: str = SECRET_TOKEN) -> httpx.Response:
        body, headers = sign_update(data, secret)
        return await self.client.post(HOOK, content=body, headers=headers)

    async def answered(self, count: int) -> list[str]:
        await self.bots.until(lambda bots: len(bots.texts()) >= count)
        return self.bots.texts()

    def asked(self) -> list[str]:
        return [request.messages[-1].content for request in self.provider.requests]


@asynccontextmanager
async def place(folder: Path, provider: ScriptedProvider, **keys: Any) -> AsyncIterator[Place]:
    async with FakeTelegramApi() as bots:
        write(folder, manifest("helper", memory={"conversational": {"backend": "sqlite"}}))
        block = {
            "bot_token": BOT_TOKEN, "secret_token": SECRET_TOKEN, "default_agent": "helper",
            "api_base": bots.url, **keys,
        }  # fmt: skip
        spec = {"channels": {"telegram": block}}
        head = {"apiVersion": "astromesh/v1", "kind": "ChannelConfig", "spec": spec}
        (folder / "channels.yaml").write_text(yaml.safe_dump(head))
        async with client_of(runtime_of(folder, provider)) as client:
            yield Place(client, bots, provider)


def echo(text: str = "Answer.") -> ScriptedProvider:
    return ScriptedProvider(text, repeat=True)


async def test_a_message_is_answered_once_in_its_session_however_often_it_comes(tmp_path: Path) -> None:
    async with place(tmp_path, ScriptedProvider("First.", "Second.")) as here:
        for _ in range(3):
            await here.say(1, text="Hello")
        await here.answered(1)
        await here.say(2, text="And?")
        assert await here.answered(2) == ["First.", "Second."]
        assert [m.content for m in here.provider.requests[1].messages][1:] == ["Hello", "First.", "And?"]
        sent = [content for method, content in here.bots.calls if method == "sendMessage"]
        assert {content["chat_id"] for content in sent} == {str(CHAT)}
        assert ("sendChatAction", {"chat_id": str(CHAT), "action": "typing"}) in here.bots.calls
        assert set(here.bots.tokens) == {BOT_TOKEN}


async def test_without_the_secret_token_a_webhook_is_401_and_what_is_no_update_422(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        for secret in ("", "x", "é"):
            body, _ = sign_update(update(1, text="Hello"))
            headers = [(b"x-telegram-bot-api-secret-token", secret.encode())]
            assert (await here.client.post(HOOK, content=body, headers=headers)).status_code == 401
        assert (await here.client.post(HOOK, content=b"{}")).status_code == 401
        for nonsense in (b"", b"[]", b"{}", b"\xff", b'{"update_id": true}', b'{"update_id": 1.5}'):
            assert (await here.post(nonsense)).status_code == 422
        assert (await here.client.get(HOOK)).status_code == 403
        assert here.asked() == []


async def test_groups_edits_and_other_updates_are_left_alone(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        assert (await here.post(update(1, kind="group", text="Not for us"))).status_code == 200
        edited = {"update_id": 2, "edited_message": update(2, text="edited")["message"]}
        assert (await here.post(edited)).status_code == 200
        for odd in (
            {"update_id": 3},
            {"update_id": 4, "message": 5},
            {"update_id": 5, "message": {"chat": 1}},
        ):
            assert (await here.post(odd)).status_code == 200
        await here.say(6, text="Hello")
        await here.answered(1)
        assert here.asked() == ["Hello"]


KINDS: list[tuple[dict[str, Any], str]] = [
    ({"voice": {"file_id": "v", "mime_type": "audio/ogg"}}, "[The user sent a voice message (audio/ogg)."),
    ({"video": {"file_id": "v"}, "caption": "Look"}, "[The user sent a video (video/mp4)."),
    ({"document": {"file_id": "d", "file_name": "a.zip"}}, '[The user sent a document ("a.zip", '),
    ({"location": {"latitude": 52.5, "longitude": 13.4}}, "[The user sent a location: (52.5, 13.4)]"),
    ({"photo": [{"file_id": "gone"}]}, "[The user sent a picture (image/jpeg). It could not be fetched.]"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "told"), KINDS, ids=[next(iter(c)) for c, _ in KINDS])
async def test_every_kind_is_told_as_what_it_is(tmp_path: Path, content: dict[str, Any], told: str) -> None:
    async with place(tmp_path, echo()) as here:
        await here.say(1, **content)
        await here.answered(1)
        assert here.asked()[0].startswith(told)


async def test_a_picture_reaches_the_model_in_its_largest_size(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        here.bots.files |= {"small": b"x", "large": PICTURE}
        await here.say(1, photo=[{"file_id": "small"}, {"file_id": "large"}], caption="What is it?")
        await here.answered(1)
        last = here.provider.requests[0].messages[-1]
        assert last.content.endswith("It is attached.]\nWhat is it?")
        assert [image.media_type for image in last.attachments] == ["image/jpeg"]


async def test_what_is_larger_than_the_bound_is_not_fetched(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), max_media_bytes=3) as here:
        here.bots.files["large"] = PICTURE
        await here.say(1, photo=[{"file_id": "large"}])
        await here.answered(1)
        assert "larger than 3 bytes" in here.asked()[0]


async def test_a_button_is_its_data_and_what_cannot_be_read_gets_a_kind_answer(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), unreadable_reply="Please write text.") as here:
        message = update(1, text="Choose")["message"]
        await here.post({"update_id": 1, "callback_query": {"id": "q", "data": "plan-b", "message": message}})
        await here.answered(1)
        assert here.asked() == ["plan-b"]
        await here.say(2, dice={"value": 6})
        assert (await here.answered(2))[1] == "Please write text."


async def test_a_limit_is_waited_for_and_who_blocked_the_bot_stops_nobody(tmp_path: Path) -> None:
    async with place(tmp_path, ScriptedProvider("One.", "Two.")) as here:
        here.bots.fail(403)
        await here.say(1, text="a")
        here.bots.fail(429, 1)
        await here.say(2, text="b", chat=CHAT)
        assert await here.answered(1) == ["Two."]


async def test_no_chat_and_no_token_is_at_rest_in_clear_or_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with place(tmp_path, echo()) as here:
        here.bots.fail(500)
        await here.say(1, text="Hello")
        await here.answered(1)
        runs = (await here.client.get("/v1/runs")).text
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.db*"))
    said = "".join(capsys.readouterr())
    for secret in (str(CHAT), BOT_TOKEN, SECRET_TOKEN):
        assert secret.encode() not in kept
        assert secret not in said + runs


@pytest.mark.parametrize("secret", ["short", "with blanks in it and long"])
async def test_a_secret_that_telegram_does_not_take_is_a_fault_of_the_file(
    tmp_path: Path, secret: str
) -> None:
    with pytest.raises(ConfigError, match="16 to 256"):
        async with place(tmp_path, echo(), secret_token=secret):
            pass
