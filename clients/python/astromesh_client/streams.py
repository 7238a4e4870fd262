"""Streams of events, typed, that go on after a broken connection: nothing is lost and nothing comes twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast
from urllib.parse import quote

import httpx
from attrs import frozen

from astromesh_client.api.runs import accept_run
from astromesh_client.client import Client
from astromesh_client.connection import ApiError
from astromesh_client.events import EVENTS, RunEvent, TaskEvent
from astromesh_client.models import AcceptedOut, RunBody

#: reconnections in a row without a new event, after which a stream raises
MAX_RECONNECTS = 8
#: the last event of a run
ENDS = frozenset({"run.completed", "run.failed", "run.cancelled"})


@frozen
class UnknownEvent:
    """An event of a newer server."""

    id: int
    event: str
    data: Any


def stream_run(client: Client, name: str, body: RunBody) -> Iterator[RunEvent | UnknownEvent]:
    """Starts a durable run of an agent, and yields its events until it ends."""
    accepted = cast("AcceptedOut", accept_run.sync(name, client=client, body=body))
    yield from follow_run(client, accepted.run_id)


async def astream_run(client: Client, name: str, body: RunBody) -> AsyncIterator[RunEvent | UnknownEvent]:
    """As `stream_run`."""
    accepted = cast("AcceptedOut", await accept_run.asyncio(name, client=client, body=body))
    async for event in afollow_run(client, accepted.run_id):
        yield event


def follow_run(client: Client, run_id: str, after: int = 0) -> Iterator[RunEvent | UnknownEvent]:
    """Yields the events of a run after the event `after`, past and to come, until it ends.

    Raises:
        ApiError: The server refuses, e.g. because there is no such run.
        httpx.TransportError: The connection cannot be made again.
    """
    return _follow(client, f"/v1/runs/{quote(run_id, safe='')}/events", after)


def afollow_run(client: Client, run_id: str, after: int = 0) -> AsyncIterator[RunEvent | UnknownEvent]:
    """As `follow_run`."""
    return _afollow(client, f"/v1/runs/{quote(run_id, safe='')}/events", after)


def follow_task(client: Client, task_id: str, after: int = 0) -> Iterator[TaskEvent | UnknownEvent]:
    """Yields the events of a Task of a workflow, as `follow_run`."""
    return _follow(client, f"/v1/tasks/{quote(task_id, safe='')}/events", after)


def afollow_task(client: Client, task_id: str, after: int = 0) -> AsyncIterator[TaskEvent | UnknownEvent]:
    """As `follow_task`."""
    return _afollow(client, f"/v1/tasks/{quote(task_id, safe='')}/events", after)


def _follow(client: Client, path: str, after: int) -> Iterator[Any]:
    reader, failures = _Reader(after), 0
    http = client.get_httpx_client()
    while True:
        try:
            with http.stream("GET", path, headers=reader.headers, timeout=_UNLIMITED) as response:
                if response.status_code == 204:
                    return
                for line in response.iter_lines():
                    if (event := reader.read(line)) is not None:
                        failures = 0
                        yield event
                        if event.event in ENDS:
                            return
        except (httpx.TransportError, ApiError) as error:
            if failures >= MAX_RECONNECTS or (isinstance(error, ApiError) and not error.is_of_proxy):
                raise
        else:  # a proxy has ended it
            failures = 0
        failures += 1
        time.sleep(_pause(failures))


async def _afollow(client: Client, path: str, after: int) -> AsyncIterator[Any]:
    reader, failures = _Reader(after), 0
    http = client.get_async_httpx_client()
    while True:
        try:
            async with http.stream("GET", path, headers=reader.headers, timeout=_UNLIMITED) as response:
                if response.status_code == 204:
                    return
                async for line in response.aiter_lines():
                    if (event := reader.read(line)) is not None:
                        failures = 0
                        yield event
                        if event.event in ENDS:
                            return
        except (httpx.TransportError, ApiError) as error:
            if failures >= MAX_RECONNECTS or (isinstance(error, ApiError) and not error.is_of_proxy):
                raise
        else:  # a proxy has ended it
            failures = 0
        failures += 1
        await asyncio.sleep(_pause(failures))


#: a run may think for long between two events
_UNLIMITED = httpx.Timeout(30.0, read=None)


def _pause(failures: int) -> float:
    return min(0.1 * 2**failures, 5.0)


class _Reader:
    """Reads the lines of a stream (WHATWG HTML, 9.2), and knows the last event that was read whole."""

    def __init__(self, after: int) -> None:
        self._last = after
        self._fields: dict[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        """Returns the headers of the next request. What was read of an event without its end is void."""
        self._fields = {}
        return {"accept": "text/event-stream", **({"last-event-id": str(self._last)} if self._last else {})}

    def read(self, line: str) -> Any:
        """Returns an event if the line ends one, else None."""
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        self._last = int(fields["id"])
        decoded = {"id": self._last, "event": fields["event"], "data": json.loads(fields["data"])}
        model = EVENTS.get(fields["event"])
        return model.from_dict(decoded) if model is not None else UnknownEvent(**decoded)
