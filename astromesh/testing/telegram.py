"""A fake Telegram Bot API that records its calls, and the updates that Telegram would post.

async with FakeTelegramApi() as bots:
    … api_base: bots.url …
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import orjson
from aiohttp import web

from astromesh.types import JsonObject

BOT_TOKEN, SECRET_TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", "the-secret-of-the-hook"
CHAT = 1111111


class FakeTelegramApi:
    """An async context manager on a free port of this machine.

    Attributes:
        calls: method and content of every call, in order. tokens: the bot's token of each call.
        files: the files of `getFile`, by id.
    """

    def __init__(self) -> None:
        self._failures: deque[tuple[int, int]] = deque()
        self._changed = asyncio.Condition()
        self.calls: list[tuple[str, JsonObject]] = []
        self.tokens: list[str] = []
        self.files: dict[str, bytes] = {}
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(
            [web.get("/file/bot{token}/{id}", self._file), web.route("*", "/bot{token}/{method}", self._call)]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def fail(self, status: int, retry_after: int = 0) -> None:
        """Sets the response to the next message."""
        self._failures.append((status, retry_after))

    def texts(self) -> list[str]:
        """Returns the texts of the accepted messages, in order."""
        return [content["text"] for method, content in self.calls if method == "sendMessage"]

    async def until(self, reached: Callable[[Self], bool], seconds: float = 60.0) -> None:
        """Waits until a condition holds after a call. Raises: TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: reached(self))

    async def _call(self, request: web.Request) -> web.Response:
        self.tokens.append(request.match_info["token"])
        method = request.match_info["method"]
        if method == "getFile":
            return self._found(request.query["file_id"])
        if method == "sendMessage" and self._failures:
            status, pause = self._failures.popleft()
            parameters = {"parameters": {"retry_after": pause}} if pause else {}
            return _json({"ok": False, "error_code": status, **parameters}, status)
        async with self._changed:
            self.calls.append((method, orjson.loads(await request.read())))
            self._changed.notify_all()
        return _json({"ok": True, "result": {"message_id": len(self.calls)}})

    def _found(self, id: str) -> web.Response:
        if id not in self.files:
            return _json({"ok": False, "error_code": 400}, 400)
        return _json({"ok": True, "result": {"file_path": id, "file_size": len(self.files[id])}})

    async def _file(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["id"]])


def update(id: int, chat: int = CHAT, kind: str = "private", **content: Any) -> JsonObject:
    """Returns an update with one message. Args: content: e.g. `text`, `photo`."""
    sender = {"id": chat, "type": kind, "first_name": "Ann"}
    return {"update_id": id, "message": {"message_id": id, "date": 1700000000, "chat": sender, **content}}


def sign_update(data: JsonObject | bytes, secret: str = SECRET_TOKEN) -> tuple[bytes, dict[str, str]]:
    """Returns the body of a webhook and its headers."""
    body = data if isinstance(data, bytes) else orjson.dumps(data)
    return body, {"x-telegram-bot-api-secret-token": secret, "content-type": "application/json"}


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
