"""Webhooks of messengers. They are public, because each is signed; messages are on disk before the 200."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from astromesh.api.schemas import ReceivedOut, answers, problems
from astromesh.channels.base import InboxWorker, WebhookRequest
from astromesh.errors import ChannelNotFound
from astromesh.types import JsonObject

router = APIRouter(prefix="/v1/channels", tags=["channels"])


@router.get("/{channel}/webhook", summary="Verify a webhook", response_class=PlainTextResponse)
async def verification(channel: str, request: Request) -> Response:
    """Answers the messenger's challenge as plain text; a wrong verify token is 403."""
    webhook = WebhookRequest("GET", dict(request.query_params), dict(request.headers))
    return PlainTextResponse(_inbox(request).challenge(channel, webhook))


@router.post(
    "/{channel}/webhook", summary="Receive messages", response_model=None,
    responses={**answers(ReceivedOut), **problems(401, 404, 413, 422)},
)  # fmt: skip
async def messages(channel: str, request: Request) -> JsonObject:
    """Stores the messages and answers 200; a wrong or missing signature is 401. Replies are sent later."""
    webhook = WebhookRequest("POST", dict(request.query_params), dict(request.headers), await request.body())
    return {"status": "received", **await _inbox(request).receive(channel, webhook)}


def _inbox(request: Request) -> InboxWorker:
    worker = inbox_worker_of(request)
    if worker is None:
        raise ChannelNotFound("channels.yaml configures no channel.")
    return worker


def inbox_worker_of(request: Request) -> InboxWorker | None:
    """Returns the worker of the configured channels; None: there is none."""
    return cast("InboxWorker | None", getattr(request.app.state, "inbox_worker", None))
