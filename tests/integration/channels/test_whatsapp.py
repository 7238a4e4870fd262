"""WhatsApp from the webhook to the answer: what people write, what the agent gets, what is sent back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astromesh.channels.whatsapp import parse_webhook
from astromesh.storage.cipher import StoredCipher
from astromesh.testing import ScriptedProvider
from astromesh.testing.whatsapp import (
    PHONE_NUMBER_ID,
    SENDER,
    Failure,
    FakeWhatsAppApi,
    MediaFile,
    message,
    sign_webhook,
    status,
    text_message,
    webhook,
)
from tests.integration.agents_folder import manifest
from tests.integration.channels.whatsapp_server import HOOK, SECRET, TOKEN, VERIFY, place

PICTURE = b"\x89PNG\r\n\x1a\n0000"


def echo(text: str = "Answer.") -> ScriptedProvider:
    return ScriptedProvider(text, repeat=True)


# -- the door ------------------------------------------------------------------------------------------------


async def test_the_challenge_is_answered_as_plain_text_and_a_wrong_token_is_403(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        asked = {"hub.mode": "subscribe", "hub.verify_token": VERIFY, "hub.challenge": "1158201444"}
        answer = await here.client.get(HOOK, params=asked)
        assert (answer.status_code, answer.text) == (200, "1158201444")
        assert answer.headers["content-type"].startswith("text/plain")
        for wrong in ({"hub.verify_token": "x"}, {"hub.mode": "x"}, {"hub.verify_token": "ö\0"}):
            answer = await here.client.get(HOOK, params=asked | wrong)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert (await here.client.get(HOOK)).status_code == 403


@pytest.mark.parametrize("header", [None, "", "sha256=", "sha256=00", "sha1=00", "x", "é"])
async def test_what_is_not_signed_with_the_app_secret_is_401(tmp_path: Path, header: str | None) -> None:
    async with place(tmp_path, echo()) as here:
        body, _ = sign_webhook(SECRET, webhook(text_message("wamid.1", "Hello")))
        headers = [] if header is None else [(b"x-hub-signature-256", header.encode())]
        answer = await here.client.post(HOOK, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        _, foreign = sign_webhook("another-secret", body)
        assert (await here.client.post(HOOK, content=body, headers=foreign)).status_code == 401
        _, right = sign_webhook(SECRET, body)
        assert (await here.client.post(HOOK, content=body + b" ", headers=right)).status_code == 401
        assert here.graph.messages == []


async def test_a_channel_that_is_not_set_up_is_404(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        answer = await here.client.post("/v1/channels/pigeon/webhook")
        assert (answer.status_code, answer.json()["code"]) == (404, "channel_not_found")


async def test_signed_nonsense_is_422(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        for body in (b"", b"{", b"[]", b"1", b"\xff"):
            assert (await here.post(body)).status_code == 422


# -- messages and answers ------------------------------------------------------------------------------------


async def test_a_message_is_answered_in_its_session(tmp_path: Path) -> None:
    async with place(tmp_path, ScriptedProvider("First.", "Second.")) as here:
        await here.say(text_message("wamid.1", "Hello"))
        assert await here.answered(1) == ["First."]
        await here.say(text_message("wamid.2", "And?"))
        assert await here.answered(2) == ["First.", "Second."]
        assert here.graph.messages[0]["to"] == SENDER
        assert here.graph.tokens[0] == f"Bearer {TOKEN}"
        assert here.graph.paths[0] == f"/v23.0/{PHONE_NUMBER_ID}/messages"
        said = [m.content for m in here.provider.requests[1].messages]
        assert said[1:] == ["Hello", "First.", "And?"]


async def test_a_hundred_copies_of_one_webhook_at_once_are_one_run(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        data = webhook(text_message("wamid.1", "Hello"))
        answers = await asyncio.gather(*(here.post(data) for _ in range(100)))
        assert {a.status_code for a in answers} == {200}
        await here.answered(1)
        await here.say(text_message("wamid.2", "Once more"))
        await here.answered(2)
        assert here.asked() == ["Hello", "Once more"]
        assert len(here.graph.messages) == 2


async def test_a_copy_after_a_restart_is_known(tmp_path: Path) -> None:
    async with FakeWhatsAppApi() as graph:
        async with place(tmp_path, echo(), graph=graph) as here:
            await here.say(text_message("wamid.1", "Hello"))
            await here.answered(1)
        async with place(tmp_path, echo(), graph=graph) as here:
            await here.say(text_message("wamid.1", "Hello"))
            await here.say(text_message("wamid.2", "New"))
            await here.answered(2)
            assert here.asked() == ["New"]


async def test_batches_of_entries_changes_and_messages_are_answered_each_in_order(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        data = webhook(text_message("a1", "one", "111"), text_message("b1", "uno", "222"))
        more = webhook(text_message("a2", "two", "111"))["entry"]
        data["entry"][0]["changes"] += webhook(text_message("a3", "three", "111"))["entry"][0]["changes"]
        data["entry"] += more
        assert (await here.post(data)).status_code == 200
        await here.answered(4)
        assert [text for text in here.asked() if text != "uno"] == ["one", "three", "two"]
        assert sorted(m["to"] for m in here.graph.messages) == ["111", "111", "111", "222"]


async def test_messages_within_debounce_ms_are_one_run(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), debounce_ms=50) as here:
        await here.say(*(text_message(str(n), f"part {n}") for n in range(3)))
        await here.answered(1)
        assert here.asked() == ["part 0\npart 1\npart 2"]


async def test_one_number_for_each_agent(tmp_path: Path) -> None:
    agents = (manifest("helper"), manifest("sales"))
    async with place(tmp_path, echo(), *agents, agents={"999": "sales"}) as here:
        for number, own in ((PHONE_NUMBER_ID, "1"), ("999", "2"), ("555", "3"), (PHONE_NUMBER_ID, "4")):
            assert (await here.post(webhook(text_message(own, own), number=number))).status_code == 200
        await here.answered(3)
        prompts = {r.messages[-1].content: r.messages[0].content for r in here.provider.requests}
        assert "sales" in prompts["2"]
        assert "helper" in prompts["1"]
        assert "3" not in prompts, "a number that is not ours is left alone"
        assert f"/v23.0/{999}/messages" in here.graph.paths


async def test_it_is_marked_as_read_with_a_typing_sign(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        await here.say(text_message("wamid.1", "Hello"))
        await here.graph.until(lambda graph: bool(graph.read_receipts))
        assert here.graph.read_receipts[0]["message_id"] == "wamid.1"
        assert here.graph.read_receipts[0]["typing_indicator"] == {"type": "text"}


async def test_guardrails_hold_for_what_is_sent(tmp_path: Path) -> None:
    rules = {
        "input": [
            {"type": "topic_filter", "forbidden_topics": ["violence"], "action": "block", "message": "No."}
        ],
        "output": [{"type": "content_filter", "forbidden_keywords": ["secret"], "action": "redact"}],
    }
    async with place(tmp_path, echo("The secret word."), manifest("helper", guardrails=rules)) as here:
        await here.say(text_message("1", "violence"), text_message("2", "Hello"))
        said = await here.answered(2)
        assert said[0] == "No."
        assert "secret" not in said[1]


@pytest.mark.parametrize("script", [(), ("",)], ids=["a failure", "an empty answer"])
async def test_a_run_that_fails_is_answered_kindly(tmp_path: Path, script: tuple[str, ...]) -> None:
    async with place(tmp_path, ScriptedProvider(*script), failure_reply="Try later.") as here:
        await here.say(text_message("1", "Hello"))
        assert await here.answered(1) == ["Try later."]


# -- types of messages ---------------------------------------------------------------------------------------

TYPES = [
    ("button", {"text": "Yes", "payload": "yes-1"}, "Yes"),
    ("interactive", {"type": "button_reply", "button_reply": {"id": "b1", "title": "Cancel"}}, "Cancel"),
    ("interactive", {"type": "list_reply", "list_reply": {"id": "l1", "title": "Plan B"}}, "Plan B"),
    (
        "location",
        {"latitude": 52.5, "longitude": 13.4, "name": "Office", "address": "Main St 1"},
        "[The user sent a location: Office, Main St 1 (52.5, 13.4)]",
    ),
    (
        "audio",
        {"id": "m1", "mime_type": "audio/ogg; codecs=opus", "voice": True},
        "[The user sent a voice message (audio/ogg). Its content cannot be shown to you.]",
    ),
    (
        "video",
        {"id": "m1", "mime_type": "video/mp4", "caption": "Look"},
        "[The user sent a video (video/mp4). Its content cannot be shown to you.]\nLook",
    ),
    (
        "document",
        {"id": "m1", "mime_type": "application/pdf", "filename": "bill.pdf"},
        '[The user sent a document ("bill.pdf", application/pdf). Its content cannot be shown to you.]',
    ),
]


@pytest.mark.parametrize(
    ("author", "told"), [(SENDER, "of their own"), ("4900000", "of yours")], ids=["own", "ours"]
)
def test_a_quoted_reply_reaches_the_agent(author: str, told: str) -> None:
    quoting = {**text_message("2", "And this one?"), "context": {"from": author, "id": "1"}}
    (read,) = parse_webhook(webhook(quoting)).messages
    assert read.text == f"[The user replies to an earlier message {told}.]\nAnd this one?"
    assert read.details["quoted"]["id"] == "1"


@pytest.mark.parametrize(("kind", "content", "expected"), TYPES, ids=[t[0] for t in TYPES])
async def test_every_type_is_told_as_what_it_is(
    tmp_path: Path, kind: str, content: dict[str, object], expected: str
) -> None:
    async with place(tmp_path, echo()) as here:
        await here.say(message("1", kind, content))
        await here.answered(1)
        assert here.asked() == [expected]


async def test_a_picture_reaches_the_model(tmp_path: Path) -> None:
    async with place(tmp_path, echo()) as here:
        here.graph.media["m1"] = MediaFile(PICTURE)
        await here.say(
            message("1", "image", {"id": "m1", "mime_type": "image/png", "caption": "What is it?"})
        )
        await here.answered(1)
        last = here.provider.requests[0].messages[-1]
        assert last.content == "[The user sent a picture (image/png, 12 bytes). It is attached.]\nWhat is it?"
        assert [image.media_type for image in last.attachments] == ["image/png"]
        assert set(here.graph.tokens) == {f"Bearer {TOKEN}"}


async def test_a_text_document_is_shown_up_to_its_bound(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), max_text_characters=5) as here:
        here.graph.media["m1"] = MediaFile(b"a,b\n1,2\n", "text/csv")
        await here.say(message("1", "document", {"id": "m1", "mime_type": "text/csv", "filename": "t.csv"}))
        await here.answered(1)
        cut = "Its text follows. Only its first 5 characters are shown."
        assert here.asked() == [f'[The user sent a document ("t.csv", text/csv, 8 bytes). {cut}]\na,b\n1']


FILES = {
    "larger than said": (MediaFile(b"x" * 200), "larger than 100 bytes"),
    "says that it is larger": (MediaFile(b"x", size=101), "larger than 100 bytes"),
    "at an address inside": (MediaFile(b"x", url="http://127.0.0.1:1/x"), "could not be fetched"),
    "at the metadata service": (MediaFile(b"x", url="http://169.254.169.254/x"), "could not be fetched"),
    "at a name for inside": (MediaFile(b"x", url="http://localhost:1/x"), "could not be fetched"),
    "at no address": (MediaFile(b"x", url="file:///etc/passwd"), "could not be fetched"),
}


@pytest.mark.parametrize("case", FILES)
async def test_a_file_that_may_not_be_fetched_is_told_and_the_run_goes_on(tmp_path: Path, case: str) -> None:
    file, why = FILES[case]
    async with place(tmp_path, echo(), max_media_bytes=100) as here:
        here.graph.media["m1"] = file
        await here.say(message("1", "image", {"id": "m1", "mime_type": "image/png"}))
        await here.answered(1)
        assert why in here.asked()[0]
        assert here.provider.requests[0].messages[-1].attachments == ()


@pytest.mark.parametrize("kind", ["unsupported", "order", "contacts", "unknown_kind", "text"])
async def test_what_cannot_be_read_gets_a_kind_answer_without_a_run(tmp_path: Path, kind: str) -> None:
    async with place(tmp_path, echo(), unreadable_reply="Please write text.") as here:
        await here.say(message("1", kind, {}))
        assert await here.answered(1) == ["Please write text."]
        assert here.asked() == []


async def test_reactions_and_notices_are_silent_unless_the_agent_is_to_be_told(tmp_path: Path) -> None:
    heart = message("1", "reaction", {"message_id": "x", "emoji": "❤"})
    async with place(tmp_path / "a", echo()) as here:
        await here.say(heart, message("2", "system", {"body": "new number"}), text_message("3", "Hello"))
        await here.answered(1)
        assert here.asked() == ["Hello"]
    async with place(tmp_path / "b", echo(), reactions="tell") as here:
        await here.say(heart)
        await here.answered(1)
        assert "❤" in here.asked()[0]


async def test_templates_see_the_channel(tmp_path: Path) -> None:
    agent = manifest("helper")
    agent["spec"]["prompts"]["system"] = (
        "{{ channel }}|{{ profile_name }}|{{ messages[0].kind }}|{{ messages[0].reply_id }}"
    )
    async with place(tmp_path, echo(), agent) as here:
        await here.say(message("1", "button", {"text": "Yes", "payload": "yes-1"}))
        await here.answered(1)
        assert here.provider.requests[0].messages[0].content == "whatsapp|Ann|button|yes-1"


# -- sending -------------------------------------------------------------------------------------------------


async def test_a_long_reply_is_several_messages_in_order(tmp_path: Path) -> None:
    reply = " ".join(f"This is sentence number {n}." for n in range(400))
    async with place(tmp_path, echo(reply)) as here:
        await here.say(text_message("1", "Hello"))
        said = await here.answered(3)
        assert " ".join(said) == reply
        assert all(len(part) <= 4096 and part.endswith(".") for part in said)


async def test_429_and_faults_are_tried_again_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    reply = "A" * 4096 + " B"
    async with place(tmp_path, echo(reply)) as here:
        here.graph.fail(Failure(429, 130429, {"retry-after": "1"}))
        await here.say(text_message("1", "Hello"))
        said = await here.answered(2)
        assert said == ["A" * 4096, "B"]
        assert here.asked() == ["Hello"], "the run is not repeated"


async def test_outside_the_window_the_template_is_sent(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), fallback_template={"name": "write_again", "language": "en"}) as here:
        here.graph.fail(Failure(400, 131047))
        await here.say(text_message("1", "Hello"))
        assert await here.answered(1) == ["template:write_again"]


async def test_a_window_that_a_status_tells_of_brings_the_template_once(tmp_path: Path) -> None:
    async with place(tmp_path, echo(), fallback_template={"name": "write_again"}) as here:
        await here.say(text_message("1", "Hello"))
        await here.answered(1)
        for _ in range(3):
            await here.say(statuses=(status("wamid.out.1", "failed", code=131047),))
        await here.say(statuses=(status("wamid.of.others", "failed", code=131047),))
        await here.answered(2)
        await here.say(text_message("2", "Hello again"))
        assert await here.answered(3) == ["Answer.", "template:write_again", "Answer."]


async def test_what_is_refused_for_good_does_not_stop_the_next(tmp_path: Path) -> None:
    async with place(tmp_path, ScriptedProvider("One.", "Two.", "Three.")) as here:
        here.graph.fail(Failure(400, 131026), Failure(400, 131047))
        await here.say(text_message("1", "a"), text_message("2", "b"), text_message("3", "c"))
        assert await here.answered(1) == ["Three."]


# -- what is kept --------------------------------------------------------------------------------------------


async def test_no_number_and_no_secret_is_at_rest_in_clear_or_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with place(tmp_path, echo()) as here:
        here.graph.fail(Failure(500))
        await here.say(text_message(f"wamid.{SENDER}", "Call me at the usual number"))
        await here.answered(1)
        runs = (await here.client.get("/v1/runs")).text
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.db*"))
    said = "".join(capsys.readouterr())
    for secret in (SENDER, TOKEN, SECRET, VERIFY):
        assert secret.encode() not in kept
        assert secret not in said + runs
    assert b"Call me at the usual number" in kept, "the conversation and the run have what was said"


async def test_all_of_a_person_can_be_erased(tmp_path: Path) -> None:
    """What was said, and the name that people give themselves, are gone from conversation, run and inbox."""
    async with place(tmp_path, echo()) as here:
        await here.say(text_message("1", "My usual number"))
        await here.answered(1)
        owner = f"whatsapp:{StoredCipher(SECRET, 'whatsapp', '').digest('person', SENDER)}"
        sessions = (await here.client.get("/v1/agents/helper/sessions")).json()["sessions"]
        assert sessions[0]["session_id"].startswith("whatsapp:")
        answer = await here.client.delete(f"/v1/principals/{owner}/data")
        assert answer.status_code in (200, 204)
        assert (await here.client.get("/v1/agents/helper/sessions")).json()["sessions"] == []
        inbox = here.runtime.state.checks["store:inbox"].__self__  # type: ignore[attr-defined]
        assert await inbox.erase("default", owner) == 0
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.db*"))
        assert b"My usual number" not in kept
        assert b"Ann" not in kept
