"""Deltas of a run that is kept, packed: a few bytes beside the text of each, instead of five hundred."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from astromesh.types import Event

#: bytes that a packed delta counts for, beside its text: seq, length, time
EACH = 16
#: deltas and characters of one pack; packs are dropped as a whole
_MOST, _MOST_TEXT = 512, 16 * 1024


class PackedDeltas:
    """Consecutive deltas of one voice, to be had back as they were.

    Args:
        about: what their payloads have in common: everything but `content`.
    """

    __slots__ = ("_about", "_lengths", "_run_id", "_seqs", "_stamps", "_text", "_type")

    def __init__(self, about: Mapping[str, Any], events: list[Event]) -> None:
        self._about = about
        self._run_id, self._type = events[0].run_id, events[0].type
        self._seqs = array("Q", [event.seq for event in events])
        self._stamps = array("d", [event.ts for event in events])
        said = [event.data["content"] for event in events]
        self._lengths = array("I", map(len, said))
        self._text = "".join(said)

    @property
    def last(self) -> int:
        """`seq` of the last one."""
        return self._seqs[-1]

    @property
    def size(self) -> int:
        """Bytes, estimated."""
        return len(self._text) + EACH * len(self._seqs)

    def events(self) -> Iterator[Event]:
        at = 0
        for seq, ts, length in zip(self._seqs, self._stamps, self._lengths, strict=True):
            content = self._text[at : (at := at + length)]
            yield Event(self._run_id, seq, ts, self._type, {**self._about, "content": content})


def pack(deltas: Iterable[Event]) -> Iterator[PackedDeltas]:
    """Packs deltas, in order: one pack for each stretch of one voice, none of them long."""
    for _, same in groupby(deltas, key=_voice):
        part: list[Event] = []
        text = 0
        for event in same:
            part.append(event)
            text += len(event.data["content"])
            if len(part) == _MOST or text >= _MOST_TEXT:
                yield _packed(part)
                part, text = [], 0
        if part:
            yield _packed(part)


def _packed(part: list[Event]) -> PackedDeltas:
    return PackedDeltas({key: value for key, value in part[0].data.items() if key != "content"}, part)


def _voice(event: Event) -> tuple[Any, ...]:
    return event.data.get("step"), event.data.get("role"), len(event.data)
