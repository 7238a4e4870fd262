"""A fake Slack Web API that records its calls, and the events that Slack would post.

async with FakeSlackApi() as slack:
    … api_base: slack.url …
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Self
from urllib.parse import urlencode

import orjson
from aiohttp import web

from astromesh.types import JsonObject

SLACK_TOKEN, SIGNING_SECRET = "slack-bot-token-of-a-test", "the-secret-that-signs"
#: the app, a person, and their direct messages
APP_USER, MEMBER, DIRECT = "U0APP", "U0MEMBER", "D0DIRECT"


class FakeSlackApi:
    """An async context manager on a free port of this machine.

    Attributes:
        calls: method and content of every accepted call, in order. tokens: the `Authorization` of each.
        files: the files at `url` + `/files/NAME`.
        messages: the present text of each posted message, by `ts`.
    """

    def __init__(self) -> None:
        self._failures: deque[tuple[str, int, str, int]] = deque()
        self._changed = asyncio.Condition()
        self.calls: list[tuple[str, JsonObject]] = []
        self.tokens: list[str] = []
        self.files: dict[str, bytes] = {}
        self.messages: dict[str, str] = {}
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes([web.get("/files/{name}", self._file), web.post("/{method}", self._call)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def fail(
        self, status: int, error: str, retry_after: int = 0, *, method: str = "chat.postMessage"
    ) -> None:
        """Sets the response to the next call of a method."""
        self._failures.append((method, status, error, retry_after))

    def of(self, method: str) -> list[JsonObject]:
        """Returns the contents of the calls of a method."""
        return [content for called, content in self.calls if called == method]

    async def until(self, reached: Callable[[Self], bool], seconds: float = 60.0) -> None:
        """Waits until a condition holds after a call. Raises: TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: reached(self))

    async def _call(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        if self._failures and self._failures[0][0] == method:
            _, status, error, pause = self._failures.popleft()
            headers = {"retry-after": str(pause)} if pause else {}
            return _json({"ok": False, "error": error}, status, headers)
        self.tokens.append(request.headers.get("authorization", ""))
        content = orjson.loads(await request.read())
        async with self._changed:
            self.calls.append((method, content))
            stamp = str(content.get("ts") or f"1700000000.{len(self.calls):06}")
            if method in ("chat.postMessage", "chat.update"):
                self.messages[stamp] = str(content.get("markdown_text", content.get("text", "")))
            self._changed.notify_all()
        return _json({"ok": True, "ts": stamp, "channel": content.get("channel", "")})

    async def _file(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {SLACK_TOKEN}":
            return web.Response(status=403)
        name = request.match_info["name"]
        return web.Response(body=self.files[name]) if name in self.files else web.Response(status=404)


def event(id: str, text: str = "", user: str = MEMBER, **content: Any) -> JsonObject:
    """Returns the callback of a direct message. Args: content: replaces or adds keys of its event."""
    message = {
        "type": "message", "channel": DIRECT, "channel_type": "im", "user": user, "text": text,
        "ts": f"1700000000.{id.rjust(6, '0')}", **content,
    }  # fmt: skip
    app = [{"user_id": APP_USER, "is_bot": True}]
    return {"type": "event_callback", "event_id": id, "authorizations": app, "event": message}


def press(value: str, user: str = MEMBER, channel: str = DIRECT, **message: Any) -> bytes:
    """Returns the body of a pressed button. Args: value: that of the button; message: with its `ts`."""
    payload = {
        "type": "block_actions", "user": {"id": user}, "channel": {"id": channel}, "message": message,
        "actions": [{"type": "button", "action_id": "astromesh_decision_x", "value": value}],
    }  # fmt: skip
    return urlencode({"payload": orjson.dumps(payload).decode()}).encode()


def sign_event(
    data: JsonObject | bytes, secret: str = SIGNING_SECRET, *, sent_at: float | None = None
) -> tuple[bytes, dict[str, str]]:
    """Returns the body of a webhook and its headers. Args: sent_at: seconds since the epoch; None: now."""
    body = data if isinstance(data, bytes) else orjson.dumps(data)
    stamp = str(int(time.time() if sent_at is None else sent_at))
    digest = hmac.new(secret.encode(), f"v0:{stamp}:".encode() + body, sha256).hexdigest()
    return body, {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={digest}"}


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )
