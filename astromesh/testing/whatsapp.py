"""A fake WhatsApp Business Cloud API that records its messages, and the webhooks that Meta would send.

    async with FakeWhatsAppApi() as whatsapp:
        … api_base: graph.url …
        body, headers = signed("app-secret", webhook(text_message("wamid.1", "Hello")))

`python -m astromesh.testing.whatsapp --port 9200` serves one: `GET /sent` lists the messages, and
`POST /script` queues responses.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self

import orjson
from aiohttp import web

from astromesh.types import JsonObject

PHONE_NUMBER_ID = "106540352242922"
SENDER = "16505551234"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error response.

    Args:
        code: Graph error code, e.g. 131047; 0 for a body that is not JSON.
    """

    status: int = 500
    code: int = 131000
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file to download. Args: url: the location that the API returns; empty: at the API itself."""

    data: bytes
    mime_type: str = "image/png"
    url: str = ""
    size: int = 0


class FakeWhatsAppApi:
    """An async context manager, by default on a free port.

    Attributes:
        messages: bodies of the accepted messages, in order; their ids are `wamid.out.1`, …
        seen: bodies that mark a message as read.
        tokens: the Authorization header of every call.
        paths: the path of every call.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._failures: deque[Failure] = deque()
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Condition()
        self.messages: list[JsonObject] = []
        self.read_receipts: list[JsonObject] = []
        self.tokens: list[str] = []
        self.paths: list[str] = []
        self.media: dict[str, MediaFile] = {}
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 24)
        app.add_routes(
            [
                web.get("/sent", self._sent),
                web.post("/script", self._script),
                web.get("/files/{id}", self._file),
                web.post("/v23.0/{number}/messages", self._message),
                web.get("/v23.0/{id}", self._about),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v23.0"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def fail(self, *failures: Failure) -> None:
        """Sets the responses to the next messages, one each."""
        self._failures.extend(failures)

    async def until(self, reached: Callable[[Self], bool], seconds: float = 60.0) -> None:
        """Waits until a condition holds after a call. Raises: TimeoutError."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: reached(self))

    def texts(self) -> list[str]:
        """Returns the sent texts, in order; a template counts as `template:NAME`."""
        return [
            m["text"]["body"] if m["type"] == "text" else f"template:{m['template']['name']}"
            for m in self.messages
        ]

    # -- routes ----------------------------------------------------------------------------------------------

    async def _message(self, request: web.Request) -> web.Response:
        body: JsonObject = orjson.loads(await request.read())
        self._record_request(request)
        if body.get("status") == "read":
            return await self._record(self.read_receipts, body, {"success": True})
        if self._failures:
            return await self._failure(self._failures.popleft())
        answer = {
            "messaging_product": "whatsapp",
            "messages": [{"id": f"wamid.out.{len(self.messages) + 1}"}],
        }
        return await self._record(self.messages, body, answer)

    async def _record(self, where: list[JsonObject], body: JsonObject, answer: JsonObject) -> web.Response:
        async with self._changed:
            where.append(body)
            self._changed.notify_all()
        return _json(answer)

    async def _failure(self, failure: Failure) -> web.Response:
        async with self._changed:
            self._changed.notify_all()
        if not failure.code:
            return web.Response(status=failure.status, text="<html>", headers=failure.headers)
        error = {"error": {"message": "asked to fail", "code": failure.code, "type": "OAuthException"}}
        return _json(error, failure.status, failure.headers)

    async def _about(self, request: web.Request) -> web.Response:
        self._record_request(request)
        file = self.media.get(request.match_info["id"])
        if file is None:
            return _json({"error": {"message": "no such object", "code": 100}}, 400)
        url = file.url or f"{self.url.removesuffix('/v23.0')}/files/{request.match_info['id']}"
        about = {"url": url, "mime_type": file.mime_type, "file_size": file.size or len(file.data)}
        return _json(about)

    async def _file(self, request: web.Request) -> web.Response:
        self._record_request(request)
        file = self.media[request.match_info["id"]]
        return web.Response(body=file.data, content_type=file.mime_type)

    async def _sent(self, _: web.Request) -> web.Response:
        return _json({"messages": self.messages, "seen": self.read_receipts})

    async def _script(self, request: web.Request) -> web.Response:
        self.fail(*(Failure(**one) for one in orjson.loads(await request.read())))
        return _json({})

    def _record_request(self, request: web.Request) -> None:
        self.tokens.append(request.headers.get("authorization", ""))
        self.paths.append(request.path)


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, headers=headers, content_type="application/json"
    )


# -- what Meta sends -----------------------------------------------------------------------------------------


def text_message(id: str, text: str, sender: str = SENDER) -> JsonObject:
    return message(id, "text", {"body": text}, sender)


def message(id: str, kind: str, content: Any, sender: str = SENDER) -> JsonObject:
    """Returns a message. Args: content: the value of the key that is named like the kind."""
    return {"from": sender, "id": id, "timestamp": "1700000000", "type": kind, kind: content}


def status(id: str, state: str, *, code: int = 0, sender: str = SENDER) -> JsonObject:
    errors = {"errors": [{"code": code, "title": "asked to fail"}]} if code else {}
    return {"id": id, "status": state, "timestamp": "1700000001", "recipient_id": sender, **errors}


def webhook(
    *messages: JsonObject, statuses: tuple[JsonObject, ...] = (), number: str = PHONE_NUMBER_ID
) -> JsonObject:
    """Returns a webhook of one entry with one change."""
    value: JsonObject = {
        "messaging_product": "whatsapp",
        "metadata": {"display_phone_number": "15550001111", "phone_number_id": number},
    }
    if messages:
        people = dict.fromkeys(str(one["from"]) for one in messages)
        value["contacts"] = [{"profile": {"name": "Ann"}, "wa_id": one} for one in people]
        value["messages"] = list(messages)
    if statuses:
        value["statuses"] = list(statuses)
    change = {"value": value, "field": "messages"}
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [change]}]}


def sign_webhook(secret: str, data: JsonObject | bytes) -> tuple[bytes, dict[str, str]]:
    """Returns the body of a webhook and its headers."""
    body = data if isinstance(data, bytes) else orjson.dumps(data)
    signature = hmac.new(secret.encode(), body, sha256).hexdigest()
    return body, {"x-hub-signature-256": f"sha256={signature}", "content-type": "application/json"}


async def _serve(port: int) -> None:
    async with FakeWhatsAppApi(port) as graph:
        sys.stdout.write(f"Graph API stand-in at {graph.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=9200)
    asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
