"""A typed client of astromesh servers, on httpx, sync and async.

`api`, `models` and `events` are generated from the server's OpenAPI description. `connect` and the streams
are written by hand.
"""

from astromesh_client.client import AuthenticatedClient, Client
from astromesh_client.connection import ApiError, connect
from astromesh_client.streams import (
    afollow_run,
    afollow_task,
    astream_run,
    follow_run,
    follow_task,
    stream_run,
)
from astromesh_client.version import __version__

__all__ = [
    "ApiError",
    "AuthenticatedClient",
    "Client",
    "__version__",
    "afollow_run",
    "afollow_task",
    "astream_run",
    "connect",
    "follow_run",
    "follow_task",
    "stream_run",
]
