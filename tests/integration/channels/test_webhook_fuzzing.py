"""Ten thousand mutated webhooks, signed as Meta would: never a 500, and the desk lives on (S9)."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astromesh.channels.base import WebhookContent, WebhookRequest
from astromesh.channels.telegram import Telegram, TelegramOptions
from astromesh.channels.whatsapp import WhatsApp, WhatsAppOptions
from astromesh.errors import InvalidInput
from astromesh.net.http import Http
from astromesh.testing import ScriptedProvider
from astromesh.testing.telegram import BOT_TOKEN, SECRET_TOKEN, update
from astromesh.testing.whatsapp import message, sign_webhook, status, text_message, webhook
from tests.integration.channels.whatsapp_server import SECRET, place

SAMPLE = webhook(
    text_message("1", "Hello"),
    message("2", "image", {"id": "m", "mime_type": "image/png", "caption": "x"}),
    message("3", "interactive", {"type": "button_reply", "button_reply": {"id": "b", "title": "Yes"}}),
    message("4", "location", {"latitude": 1.5, "longitude": 2, "name": "x"}),
    message("5", "reaction", {"message_id": "1", "emoji": "❤"}),
    message("6", "document", {"id": "m", "mime_type": "text/csv", "filename": "x"}),
    statuses=(status("out", "failed", code=131047), status("out", "read")),
)
WHOLE = orjson.dumps(SAMPLE)
UPDATES = [
    orjson.dumps(sample)
    for sample in (
        update(1, text="Hello"),
        update(2, photo=[{"file_id": "small"}, {"file_id": "large"}], caption="x"),
        update(3, document={"file_id": "d", "file_name": "x", "mime_type": "text/csv"}),
        update(4, location={"latitude": 1.5, "longitude": 2}),
        {"update_id": 5, "callback_query": {"data": "x", "message": update(5, text="?")["message"]}},
    )
]
STRANGE: list[Any] = [
    None, True, 0, -1, 2**63, 1e308, "", "x" * 5000, "\0", "\U0001f600", [], {}, [[]], [None], {"a": {}},
    "messages", "text", "__class__", "../../etc/passwd", {"id": {"id": []}}, [{}] * 50,
]  # fmt: skip
TIMES = 10_000


def mutated(chance: random.Random, whole: bytes = WHOLE) -> Any:
    """A sample with one to three places changed, removed, doubled or swapped."""
    data = orjson.loads(whole)
    for _ in range(chance.randint(1, 3)):
        if not (places := list(walk(data))):
            break
        where, key = chance.choice(places)
        if isinstance(where, list) and not (isinstance(key, int) and key < len(where)):
            continue
        match chance.randrange(4):
            case 0:
                where[key] = copy.deepcopy(chance.choice(STRANGE))
            case 1:
                del where[key]
            case 2 if isinstance(where, list):
                where.append(copy.deepcopy(where[key]))
            case _:
                other, at = chance.choice(places)
                if not isinstance(other, list) or (isinstance(at, int) and at < len(other)):
                    where[key] = copy.deepcopy(other.get(at) if isinstance(other, dict) else other[at])
    return data


def walk(data: Any) -> Any:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from walk(value)


def channel() -> WhatsApp:
    options = WhatsAppOptions(
        verify_token="v",
        access_token="a",
        phone_number_id="1",
        app_secret=SECRET,
        reactions="tell",
    )
    return WhatsApp(options, Http())


def test_ten_thousand_mutated_webhooks_are_read_or_left_out() -> None:
    """Nothing but InvalidInput is raised, and what is read is of the right shape."""
    whatsapp, chance, read = channel(), random.Random(7), 0
    for _ in range(TIMES):
        body, headers = sign_webhook(SECRET, mutated(chance))
        if chance.random() < 0.2:
            at = chance.randrange(len(body))
            body = body[:at] + chance.randbytes(chance.randint(0, 3)) + body[at + 1 :]
            headers = sign_webhook(SECRET, body)[1]
        whatsapp.verify(WebhookRequest("POST", {}, headers, body))
        read += len(parsed(whatsapp, body).messages)
    assert read > TIMES, "most mutations leave most messages whole"


def test_ten_thousand_mutated_updates_of_telegram_are_read_or_left_out() -> None:
    options = TelegramOptions(bot_token=BOT_TOKEN, secret_token=SECRET_TOKEN)
    telegram, chance, read = Telegram(options, Http()), random.Random(7), 0
    for n in range(TIMES):
        body = orjson.dumps(mutated(chance, UPDATES[n % len(UPDATES)]))
        if chance.random() < 0.2:
            at = chance.randrange(len(body))
            body = body[:at] + chance.randbytes(chance.randint(0, 3)) + body[at + 1 :]
        read += len(parsed(telegram, body).messages)
    assert read > TIMES / 4


def parsed(channel: WhatsApp | Telegram, body: bytes) -> WebhookContent:
    try:
        received = channel.parse(body)
    except InvalidInput:
        return WebhookContent()
    for one in received.messages:
        assert one.id
        assert all(isinstance(text, str) for text in (one.id, one.text, *one.address))
        orjson.dumps(one.details)
    return received


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
def test_any_json_is_read_or_refused(data: Any) -> None:
    parsed(channel(), json.dumps(data).encode())


async def test_mutated_webhooks_over_http_are_never_a_500_and_the_next_message_is_answered(
    tmp_path: Path,
) -> None:
    chance = random.Random(11)
    async with place(tmp_path, ScriptedProvider("Answer.", repeat=True)) as here:
        for _ in range(150):
            answer = await here.post(mutated(chance))
            assert answer.status_code in (200, 422), answer.text
        await here.say(text_message("the-last", "Still there?", "999"))
        await here.graph.until(lambda graph: any(m["to"] == "999" for m in graph.messages))
