"""Answers HEAD as GET without the body (RFC 9110, 9.3.2)."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send


def as_get(scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
    """Returns a HEAD request as a GET request whose client leaves after the head: a stream ends there."""
    answered, is_read = asyncio.Event(), False

    async def receive_nothing() -> Message:
        nonlocal is_read
        if is_read:
            await answered.wait()
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            answered.set()

    return {**scope, "method": "GET"}, receive_nothing, send_head
