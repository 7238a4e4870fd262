"""HTTP as uvicorn speaks it; what a parser keeps to itself is bounded (reliability.md S8).

The parser collects a request line, header lines, chunk extensions and trailers until they are whole, however
long they get. Applications cannot see that: it is bounded where the bytes come in.
"""

from __future__ import annotations

from astromesh.api.border import MOST_HEADERS, MOST_TARGET
from astromesh.cli.arrivals import TimedHttp
from astromesh.errors import PayloadTooLarge

_MOST = MOST_HEADERS + MOST_TARGET


class BoundedHttp(TimedHttp):
    """Closes a connection that sends more than fits into the head of a request without completing it."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.unread > _MOST and not self.transport.is_closing():
            self.refuse(PayloadTooLarge(f"The head of a request may have {_MOST} bytes."))
