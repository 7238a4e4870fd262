"""What Meta's webhooks say, as records (Cloud API, webhooks reference, `messages`).

A table has one reader for each type of message. Whatever a webhook holds, nothing here raises: what is not of
the documented shape is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from astromesh.abc.channel import STATES, Address, Inbound, Kind, Received, State, Status
from astromesh.types import JsonObject

#: characters of any text that a webhook brings; WhatsApp's own bound is 4,096, captions have 1,024
MOST_TEXT, MOST_NAME = 16_384, 256
_OUTSIDE_WINDOW = 131047
#: a reader answers what the agent is asked, and what else is known
Read = tuple[str, JsonObject]


def parse(data: Mapping[str, Any], *, tell_reactions: bool = False) -> Received:
    """Every message and status of every change of every entry, in their order."""
    messages: list[Inbound] = []
    statuses: list[Status] = []
    for value in _values(data):
        ours = _text(_of(value, "metadata"), "phone_number_id")
        names = {
            _text(c, "wa_id"): _text(_of(c, "profile"), "name", MOST_NAME) for c in _list(value, "contacts")
        }
        for message in _list(value, "messages"):
            read = _message(message, ours, names, tell_reactions)
            messages += [read] if read is not None else []
        for status in _list(value, "statuses"):
            said = _status(status, ours)
            statuses += [said] if said is not None else []
    return Received(tuple(messages), tuple(statuses))


def _values(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in _list(data, "entry"):
        for change in _list(entry, "changes"):
            if change.get("field", "messages") == "messages":
                yield _of(change, "value")


def _message(
    message: Mapping[str, Any], ours: str, names: Mapping[str, str], tell_reactions: bool
) -> Inbound | None:
    own, sender, what = _text(message, "id"), _text(message, "from"), _text(message, "type")
    if not (own and sender and ours) or what in _SILENT or (what == "reaction" and not tell_reactions):
        return None
    text, more = _READERS[what](_of(message, what)) if what in _READERS else ("", {})
    about: JsonObject = {"kind": what or "unknown", "sent_at": _text(message, "timestamp"), **more}
    if name := names.get(sender):
        about["profile_name"] = name
    if _of(message, "context").get("forwarded") is True:
        about["forwarded"] = True
    kind: Kind = "message" if text else "unreadable"
    return Inbound(own, Address(ours, sender), text, kind, about)


def _status(status: Mapping[str, Any], ours: str) -> Status | None:
    own, to, state = _text(status, "id"), _text(status, "recipient_id"), _text(status, "status")
    if not (own and ours) or state not in STATES:
        return None
    codes = [error.get("code") for error in _list(status, "errors")]
    code = str(codes[0]) if codes and isinstance(codes[0], int) else ""
    known: State = next(known for known in STATES if known == state)
    return Status(own, Address(ours, to), known, code, _OUTSIDE_WINDOW in codes)


# -- types of messages ---------------------------------------------------------------------------------------


def _plain(content: Mapping[str, Any]) -> Read:
    return _text(content, "body"), {}


def _button(content: Mapping[str, Any]) -> Read:
    """A quick-reply button of a template."""
    return _text(content, "text"), {"reply_id": _text(content, "payload", MOST_NAME)}


def _interactive(content: Mapping[str, Any]) -> Read:
    """A chosen button or row of a list, or a filled-in form."""
    what = _text(content, "type")
    chosen = _of(content, what)
    if what == "nfm_reply":
        return _text(chosen, "response_json"), {"reply_id": _text(chosen, "name", MOST_NAME)}
    return _text(chosen, "title"), {"reply_id": _text(chosen, "id", MOST_NAME)}


def _reaction(content: Mapping[str, Any]) -> Read:
    emoji = _text(content, "emoji", 32)
    return (f"[The user reacted with {emoji} to an earlier message.]" if emoji else ""), {"emoji": emoji}


def _location(content: Mapping[str, Any]) -> Read:
    place = content.get("latitude"), content.get("longitude")
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in place):
        return "", {}
    named = ", ".join(filter(None, (_text(content, key, MOST_NAME) for key in ("name", "address"))))
    about = {"latitude": place[0], "longitude": place[1], "name": named}
    return f"[The user sent a location: {named + ' ' if named else ''}({place[0]}, {place[1]})]", about


def _media(what: str) -> Callable[[Mapping[str, Any]], Read]:
    def read(content: Mapping[str, Any]) -> Read:
        attached = {
            "id": _text(content, "id", MOST_NAME),
            "mime_type": _text(content, "mime_type", MOST_NAME),
            "filename": _text(content, "filename", MOST_NAME),
            "voice": content.get("voice") is True,
        }
        text = _text(content, "caption")
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


# -- JSON of unknown shape -----------------------------------------------------------------------------------


def _of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _list(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(data: Mapping[str, Any], key: str, most: int = MOST_TEXT) -> str:
    value = data.get(key)
    return value[:most] if isinstance(value, str) else ""
