"""What Meta's webhooks say, as records (Cloud API, webhooks reference, `messages`).

A table has one reader for each type of message. Whatever a webhook holds, nothing here raises: what is not of
the documented shape is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from astromesh.abc.channel import STATES, Address, Inbound, Kind, Received, State, Status
from astromesh.channels.webhook_json import MOST_NAME, list_of, of, place_of, text_of
from astromesh.types import JsonObject

_OUTSIDE_WINDOW = 131047
#: a reader answers what the agent is asked, and what else is known
Read = tuple[str, JsonObject]


def parse(data: Mapping[str, Any], *, tell_reactions: bool = False) -> Received:
    """Every message and status of every change of every entry, in their order."""
    messages: list[Inbound] = []
    statuses: list[Status] = []
    for value in _values(data):
        ours = text_of(of(value, "metadata"), "phone_number_id")
        names = {
            text_of(c, "wa_id"): text_of(of(c, "profile"), "name", MOST_NAME)
            for c in list_of(value, "contacts")
        }
        for message in list_of(value, "messages"):
            read = _message(message, ours, names, tell_reactions)
            messages += [read] if read is not None else []
        for status in list_of(value, "statuses"):
            said = _status(status, ours)
            statuses += [said] if said is not None else []
    return Received(tuple(messages), tuple(statuses))


def _values(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in list_of(data, "entry"):
        for change in list_of(entry, "changes"):
            if change.get("field", "messages") == "messages":
                yield of(change, "value")


def _message(
    message: Mapping[str, Any], ours: str, names: Mapping[str, str], tell_reactions: bool
) -> Inbound | None:
    own, sender, what = text_of(message, "id"), text_of(message, "from"), text_of(message, "type")
    if not (own and sender and ours) or what in _SILENT or (what == "reaction" and not tell_reactions):
        return None
    text, more = _READERS[what](of(message, what)) if what in _READERS else ("", {})
    about: JsonObject = {"kind": what or "unknown", "sent_at": text_of(message, "timestamp"), **more}
    if name := names.get(sender):
        about["profile_name"] = name
    if of(message, "context").get("forwarded") is True:
        about["forwarded"] = True
    kind: Kind = "message" if text else "unreadable"
    return Inbound(own, Address(ours, sender), text, kind, about)


def _status(status: Mapping[str, Any], ours: str) -> Status | None:
    own, to, state = text_of(status, "id"), text_of(status, "recipient_id"), text_of(status, "status")
    if not (own and ours) or state not in STATES:
        return None
    codes = [error.get("code") for error in list_of(status, "errors")]
    code = str(codes[0]) if codes and isinstance(codes[0], int) else ""
    known: State = next(known for known in STATES if known == state)
    return Status(own, Address(ours, to), known, code, _OUTSIDE_WINDOW in codes)


# -- types of messages ---------------------------------------------------------------------------------------


def _plain(content: Mapping[str, Any]) -> Read:
    return text_of(content, "body"), {}


def _button(content: Mapping[str, Any]) -> Read:
    """A quick-reply button of a template."""
    return text_of(content, "text"), {"reply_id": text_of(content, "payload", MOST_NAME)}


def _interactive(content: Mapping[str, Any]) -> Read:
    """A chosen button or row of a list, or a filled-in form."""
    what = text_of(content, "type")
    chosen = of(content, what)
    if what == "nfm_reply":
        return text_of(chosen, "response_json"), {"reply_id": text_of(chosen, "name", MOST_NAME)}
    return text_of(chosen, "title"), {"reply_id": text_of(chosen, "id", MOST_NAME)}


def _reaction(content: Mapping[str, Any]) -> Read:
    emoji = text_of(content, "emoji", 32)
    return (f"[The user reacted with {emoji} to an earlier message.]" if emoji else ""), {"emoji": emoji}


def _location(content: Mapping[str, Any]) -> Read:
    place = place_of(content)
    if place is None:
        return "", {}
    named = ", ".join(filter(None, (text_of(content, key, MOST_NAME) for key in ("name", "address"))))
    about = {"latitude": place[0], "longitude": place[1], "name": named}
    return f"[The user sent a location: {named + ' ' if named else ''}({place[0]}, {place[1]})]", about


def _media(what: str) -> Callable[[Mapping[str, Any]], Read]:
    def read(content: Mapping[str, Any]) -> Read:
        attached = {
            "id": text_of(content, "id", MOST_NAME),
            "mime_type": text_of(content, "mime_type", MOST_NAME),
            "filename": text_of(content, "filename", MOST_NAME),
            "voice": content.get("voice") is True,
        }
        text = text_of(content, "caption")
        return text or f"[{what}]", {"caption": text, "attachment": attached}

    return read


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Read]] = {
    "text": _plain,
    "button": _button,
    "interactive": _interactive,
    "reaction": _reaction,
    "location": _location,
    "image": _media("image"),
    "sticker": _media("sticker"),
    "audio": _media("audio"),
    "video": _media("video"),
    "document": _media("document"),
}
#: notices of WhatsApp, e.g. that a person has a new number: nobody said anything
_SILENT = frozenset({"system", "ephemeral"})
