"""The request that runs an agent."""

from __future__ import annotations

from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response

from astromesh.api.accepting import wants_stream
from astromesh.api.access import RequiredScope, caller_of, runtime_of
from astromesh.api.body import ClientGone, run_asked, unless_gone
from astromesh.api.headers import headers_of
from astromesh.api.idempotency import name_of
from astromesh.api.outbox import Outbox
from astromesh.api.sse import RunStreamResponse
from astromesh.errors import ApprovalRequired
from astromesh.types import JsonObject

RUN = "/v1/agents/{name}/run"
MAY_RUN = RequiredScope("agents:run", "name")


async def run(name: str, request: Request) -> Response:
    """One run, answered when it is done; with `Accept: text/event-stream` as server-sent events."""
    runtime = runtime_of(request)
    agent = runtime.agent(name)
    asked = await run_asked(request)
    start = partial(runtime.start, agent, asked, caller=caller_of(request), key=await name_of(request))
    if wants_stream(headers_of(request.scope).get("accept", "")):
        outbox = Outbox()
        return RunStreamResponse(
            outbox, partial(start, sinks=(outbox,)), keep_running=agent.outlives_its_client
        )
    try:
        answer = await (start() if agent.outlives_its_client else unless_gone(request, start()))
    except ClientGone:
        return Response(status_code=499)
    except ApprovalRequired as waits:
        return _waiting(waits)
    return Response(orjson.dumps(answer.to_json()), media_type="application/json")


def links(run_id: str) -> JsonObject:
    """Where to ask about a run."""
    path = f"/v1/runs/{run_id}"
    return {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}


def _waiting(waits: ApprovalRequired) -> Response:
    """The run has paused for a person; it goes on without this caller."""
    body = {
        "run_id": waits.run_id,
        "status": "waiting",
        "waiting_for": waits.waiting_for,
        "links": links(waits.run_id),
    }
    return Response(orjson.dumps(body), 202, media_type="application/json")
