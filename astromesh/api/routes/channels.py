"""Webhooks of messengers: public, because each is signed; what they bring is on disk before the 200."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from astromesh.abc.channel import Desk, Webhook
from astromesh.errors import ChannelNotFound
from astromesh.types import JsonObject

router = APIRouter(prefix="/v1/channels", tags=["channels"])


@router.get("/{channel}/webhook", summary="Verify a webhook", response_class=PlainTextResponse)
async def verification(channel: str, request: Request) -> Response:
    """Answers the messenger's challenge as plain text; a wrong verify token is 403."""
    asked = Webhook("GET", dict(request.query_params), dict(request.headers))
    return PlainTextResponse(_desk(request).challenge(channel, asked))


@router.post("/{channel}/webhook", summary="Receive messages")
async def messages(channel: str, request: Request) -> JsonObject:
    """Takes what a messenger brings; a wrong or missing signature is 401. The answers go their own way."""
    webhook = Webhook("POST", dict(request.query_params), dict(request.headers), await request.body())
    await _desk(request).receive(channel, webhook)
    return {"status": "received"}


def _desk(request: Request) -> Desk:
    desk = cast("Desk | None", getattr(request.app.state, "desk", None))
    if desk is None:
        raise ChannelNotFound("No channel is set up in channels.yaml.")
    return desk
