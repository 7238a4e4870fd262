"""The caller's `traceparent` (W3C Trace Context)."""

from __future__ import annotations

import pytest

from astromesh.api.trace import incoming_span_id, incoming_trace_id
from astromesh.runtime.recorded import asked_to_json, request_of
from astromesh.runtime.records import RunRequest

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-{SPAN}-01", f" 00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-more"]
)
def test_trace_and_span_are_the_callers(header: str) -> None:
    """A later version may say more; what this one knows stands in the same place."""
    headers = {"traceparent": header}
    assert (incoming_trace_id(headers), incoming_span_id(headers)) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nothing",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
    ],
)
def test_what_is_not_valid_is_not_there(header: str) -> None:
    """A broken header starts a trace of the run's own: neither half of it is believed."""
    headers = {"traceparent": header}
    assert (incoming_trace_id(headers), incoming_span_id(headers)) == ("", "")
    assert (incoming_trace_id({}), incoming_span_id({})) == ("", "")


def test_a_run_kept_on_disk_still_knows_its_callers_span() -> None:
    """Who goes on with it in another process exports it under the same parent."""
    asked = RunRequest("q", "s", remote_span=SPAN)
    assert request_of(asked_to_json(asked)) == asked
