"""The meeting rooms of a company."""

from __future__ import annotations

ROOMS = {"Ada": 4, "Grace": 12}


def free_rooms(people: int) -> list[str]:
    """The free rooms that are large enough.

    Args:
        people: how many people meet.
    """
    return [name for name, seats in ROOMS.items() if seats >= people]


def book(room: str) -> str:
    """Books a room for the next hour. A person must approve it.

    Args:
        room: its name.
    """
    return f"{room} is booked."
