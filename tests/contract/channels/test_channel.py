"""One suite for every channel: WhatsApp, Telegram, Slack, and one that shows that a channel is one file."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from astromesh.channels.base import Channel, ReceivedMessage, WebhookRequest
from astromesh.errors import (
    ChannelError,
    ChannelRejected,
    Forbidden,
    InvalidInput,
    OutsideWindow,
    Unauthorized,
)
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins
from astromesh.testing.slack import DIRECT, SLACK_TOKEN, FakeSlackApi, event, press, sign_event
from astromesh.testing.telegram import BOT_TOKEN, FakeTelegramApi, sign_update, update
from astromesh.testing.whatsapp import (
    PHONE_NUMBER_ID,
    SENDER,
    Failure,
    FakeWhatsAppApi,
    message,
    sign_webhook,
    status,
    text_message,
    webhook,
)
from tests.contract.channels.sample_channel import Pigeon

SECRET = "the-secret-of-all"


class Bird(NamedTuple):
    """A channel, and how its messenger speaks.

    Args:
        two: bodies that bring two messages, `Hello` with id `1` and `Again` with id `2`, of SENDER.
        odd: one with a message that nobody can read. read: one that says that `out` was read, or empty.
        right: the query of a challenge; empty: none is ever right.
    """

    channel: Channel
    two: tuple[bytes, ...]
    odd: bytes
    read: bytes
    right: dict[str, str]
    wrong: dict[str, str]

    def headers(self, body: bytes) -> dict[str, str]:
        return (
            sign_webhook(SECRET, body)[1]
            | {"ring": SECRET}
            | sign_update(body, SECRET)[1]
            | sign_event(body, SECRET)[1]
        )

    def messages(self) -> list[ReceivedMessage]:
        return [message for body in self.two for message in self.channel.parse(body).messages]


@pytest.fixture
async def graph() -> AsyncIterator[FakeWhatsAppApi]:
    async with FakeWhatsAppApi() as graph:
        yield graph


@pytest.fixture
async def bots() -> AsyncIterator[FakeTelegramApi]:
    async with FakeTelegramApi() as bots:
        yield bots


@pytest.fixture
async def slack() -> AsyncIterator[FakeSlackApi]:
    async with FakeSlackApi() as slack:
        yield slack


@pytest.fixture(params=("whatsapp", "telegram", "slack", "pigeon"))
async def bird(
    request: pytest.FixtureRequest, graph: FakeWhatsAppApi, bots: FakeTelegramApi, slack: FakeSlackApi
) -> AsyncIterator[Bird]:
    plugins = Plugins({"channels": {"pigeon": Pigeon}})
    at = {"whatsapp": graph.url, "telegram": bots.url, "slack": slack.url}
    async with Http() as http:
        base = {"api_base": at[request.param]} if request.param in at else {}
        options = OPTIONS[request.param] | base
        channel = await plugins.open("channels", request.param, options, Deps(http=http))
        yield Bird(channel, *SPOKEN[request.param])
        await channel.close()


OPTIONS: dict[str, dict[str, Any]] = {
    "whatsapp": {
        "verify_token": SECRET,
        "access_token": "token",
        "phone_number_id": PHONE_NUMBER_ID,
        "app_secret": SECRET,
    },
    "telegram": {"bot_token": BOT_TOKEN, "secret_token": SECRET},
    "slack": {"bot_token": SLACK_TOKEN, "signing_secret": SECRET},
    "pigeon": {"ring": SECRET},
}
SPOKEN: dict[str, Any] = {
    "whatsapp": (
        (sign_webhook(SECRET, webhook(text_message("1", "Hello"), text_message("2", "Again")))[0],),
        sign_webhook(SECRET, webhook(message("3", "hologram", {})))[0],
        sign_webhook(SECRET, webhook(statuses=(status("out", "read"),)))[0],
        {"hub.mode": "subscribe", "hub.verify_token": SECRET, "hub.challenge": "42"},
        {"hub.mode": "subscribe", "hub.verify_token": "x", "hub.challenge": "42"},
    ),
    "telegram": (
        tuple(sign_update(update(n, int(SENDER), text=t))[0] for n, t in ((1, "Hello"), (2, "Again"))),
        sign_update(update(3, int(SENDER), dice={"value": 6}))[0],
        b"",
        {},
        {"hub.challenge": "42"},
    ),
    "slack": (
        tuple(sign_event(event(n, t, SENDER))[0] for n, t in (("1", "Hello"), ("2", "Again"))),
        sign_event(event("3", "", SENDER))[0],
        b"",
        {},
        {"hub.challenge": "42"},
    ),
    "pigeon": (
        (f"1|{SENDER}|us|Hello\n2|{SENDER}|us|Again".encode(),),
        f"3|{SENDER}|us|".encode(),
        f"out|{SENDER}|us|*read*".encode(),
        {"ring": SECRET, "say": "42"},
        {"ring": "x", "say": "42"},
    ),
}


async def test_the_challenge_needs_the_token(bird):
    if bird.right:
        assert bird.channel.challenge(WebhookRequest("GET", bird.right, {})) == "42"
    nothing: dict[str, str] = {}
    for wrong in (bird.wrong, nothing):
        with pytest.raises(Forbidden):
            bird.channel.challenge(WebhookRequest("GET", wrong, {}))


async def test_a_webhook_needs_a_signature(bird):
    for body in bird.two:
        bird.channel.verify(WebhookRequest("POST", {}, bird.headers(body), body))
        with pytest.raises(Unauthorized):
            bird.channel.verify(WebhookRequest("POST", {}, {}, body))


async def test_messages_come_in_their_order(bird):
    assert [(m.id, m.text, m.kind, m.address.user) for m in bird.messages()] == [
        ("1", "Hello", "message", SENDER),
        ("2", "Again", "message", SENDER),
    ]
    assert [bird.channel.parse(body).statuses for body in bird.two] == [()] * len(bird.two)


async def test_what_cannot_be_read_is_said_to_be_so(bird):
    (odd,) = bird.channel.parse(bird.odd).messages
    assert (odd.kind, bool(bird.channel.unreadable_reply)) == ("unreadable", True)


@pytest.mark.parametrize("bird", ["whatsapp", "pigeon"], indirect=True)
async def test_statuses_name_message_and_state(bird):
    (one,) = bird.channel.parse(bird.read).statuses
    assert (one.id, one.state, one.address.user) == ("out", "read", SENDER)


async def test_what_is_not_of_the_format_is_invalid(bird):
    with pytest.raises(InvalidInput):
        bird.channel.parse(b"\xff\xfe{")


async def test_a_message_is_prepared_sent_and_noticed(bird):
    first: ReceivedMessage = bird.messages()[0]
    prepared = await bird.channel.prepare(first)
    assert (prepared.text, prepared.attachments) == ("Hello", ())
    await bird.channel.acknowledge(first)
    ids = [await bird.channel.send(first.address, part) for part in bird.channel.split("An answer")]
    assert ids
    assert all(ids)
    assert bird.channel.split("") == ()


async def test_recalling_without_a_template_says_so(bird):
    with pytest.raises(ChannelRejected):
        await bird.channel.ask_to_reply(bird.messages()[0].address)


# -- what the Bot API answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "pause", "kind"),
    [
        (429, 7, ChannelError),
        (502, 0, ChannelError),
        (401, 0, ChannelError),
        (403, 0, ChannelRejected),
        (400, 0, ChannelRejected),
    ],
)
@pytest.mark.parametrize("bird", ["telegram"], indirect=True)
async def test_faults_of_the_bot_api_are_told_apart(bird, bots, status, pause, kind):
    bots.fail(status, pause)
    with pytest.raises(ChannelError) as caught:
        await bird.channel.send(bird.messages()[0].address, "x")
    assert (type(caught.value), caught.value.retry_after) == (kind, float(pause))
    assert SENDER not in str(caught.value)
    assert BOT_TOKEN not in str(caught.value)


@pytest.mark.parametrize("bird", ["telegram"], indirect=True)
async def test_a_bot_api_that_is_away_can_be_tried_again_and_its_token_is_not_told(bird, bots):
    await bots.__aexit__()
    with pytest.raises(ChannelError) as caught:
        await bird.channel.send(bird.messages()[0].address, "x")
    assert type(caught.value) is ChannelError
    assert BOT_TOKEN not in str(caught.value)


# -- what Slack answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "pause", "kind"),
    [
        (429, "ratelimited", 7, ChannelError),
        (503, "", 0, ChannelError),
        (200, "invalid_auth", 0, ChannelError),
        (200, "channel_not_found", 0, ChannelRejected),
    ],
)
@pytest.mark.parametrize("bird", ["slack"], indirect=True)
async def test_faults_of_the_web_api_of_slack_are_told_apart(bird, slack, status, error, pause, kind):
    slack.fail(status, error, pause)
    with pytest.raises(ChannelError) as caught:
        await bird.channel.send(bird.messages()[0].address, "x")
    assert (type(caught.value), caught.value.retry_after) == (kind, float(pause))
    assert SENDER not in str(caught.value)


@pytest.mark.parametrize("bird", ["slack"], indirect=True)
async def test_what_slack_has_shown_of_an_answer_is_replaced_also_after_a_failure(bird, slack):
    address = bird.messages()[0].address
    await bird.channel.show(address, "half")
    slack.fail(429, "ratelimited", method="chat.update")
    with pytest.raises(ChannelError):
        await bird.channel.send(address, "half and whole")
    await bird.channel.send(address, "half and whole")
    assert list(slack.messages.values()) == ["half and whole"]
    await bird.channel.show(address, "next")
    slack.fail(200, "message_not_found", method="chat.update")  # somebody has deleted it
    await bird.channel.send(address, "next answer")
    assert list(slack.messages.values()) == ["half and whole", "next …", "next answer"]


@pytest.mark.parametrize("bird", ["slack"], indirect=True)
async def test_a_message_of_slack_is_marked_as_seen_and_buttons_are_read(bird, slack):
    await bird.channel.acknowledge(bird.messages()[0])
    mark = {"channel": DIRECT, "timestamp": "1700000000.000001", "name": "eyes"}
    assert slack.of("reactions.add") == [mark]
    read = [bird.channel.parse(press(f"run_1 - {word}")).decisions for word in ("approve", "deny", "x")]
    assert [[one.approved for one in found] for found in read] == [[True], [False], []]


@pytest.mark.parametrize("bird", ["slack"], indirect=True)
async def test_a_signature_of_slack_is_valid_for_five_minutes(bird):
    body, headers = sign_event(event("1", "Hello"), SECRET, sent_at=time.time() - 400)
    with pytest.raises(Unauthorized, match="five minutes"):
        bird.channel.verify(WebhookRequest("POST", {}, headers, body))


# -- what the Graph API answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "kind", "seconds"),
    [
        (Failure(429, 130429, {"retry-after": "7"}), ChannelError, 7.0),
        (Failure(429, 0), ChannelError, 0.0),
        (Failure(400, 131056), ChannelError, 0.0),
        (Failure(503, 0, {"retry-after": "soon"}), ChannelError, 0.0),
        (Failure(401, 190), ChannelError, 0.0),
        (Failure(400, 131047), OutsideWindow, 0.0),
        (Failure(400, 131026), ChannelRejected, 0.0),
        (Failure(403, 10), ChannelRejected, 0.0),
    ],
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Failure) else "",
)
@pytest.mark.parametrize("bird", ["whatsapp"], indirect=True)
async def test_faults_of_the_graph_api_are_told_apart(bird, graph, failure, kind, seconds):
    graph.fail(failure)
    with pytest.raises(ChannelError) as caught:
        await bird.channel.send(bird.messages()[0].address, "x")
    assert (type(caught.value), caught.value.retry_after) == (kind, seconds)
    assert SENDER not in str(caught.value)


@pytest.mark.parametrize("bird", ["whatsapp"], indirect=True)
async def test_a_graph_api_that_is_away_can_be_tried_again(bird, graph):
    await graph.__aexit__()
    with pytest.raises(ChannelError) as caught:
        await bird.channel.send(bird.messages()[0].address, "x")
    assert type(caught.value) is ChannelError
