"""A listener that keeps what it heard."""

from __future__ import annotations

from astromesh.types import Event, JsonObject


class RecordingSink:
    """An `EventSink` that keeps every event.

    Args:
        wants_deltas: as a socket does; False as the trace store does.
    """

    def __init__(self, *, wants_deltas: bool = True) -> None:
        self.wants_deltas = wants_deltas
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        """The types of all events, in order."""
        return [event.type for event in self.events]

    def of(self, *types: str) -> list[Event]:
        """The events of these types, in order."""
        return [event for event in self.events if event.type in types]

    def data(self, kind: str) -> list[JsonObject]:
        """The payloads of one type, in order."""
        return [event.data for event in self.events if event.type == kind]

    def one(self, kind: str) -> JsonObject:
        """The payload of the only event of this type.

        Raises:
            AssertionError: there are none or several.
        """
        found = self.data(kind)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} events of type {kind!r} in {self.types}")
        return found[0]

    def text(self, role: str = "assistant") -> str:
        """What one role streamed, joined."""
        return "".join(data["content"] for data in self.data("model.delta") if data.get("role", role) == role)

    def clear(self) -> None:
        self.events.clear()
