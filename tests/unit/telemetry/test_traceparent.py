"""The caller's `traceparent` (W3C Trace Context)."""

from __future__ import annotations

import pytest

from astromesh.runtime.records import RunRequest, new_request_to_json, request_of, request_to_json
from astromesh.telemetry.ids import NO_TRACE_PARENT, TraceParent, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f" 00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01-more", True),
    ],
)
def test_trace_span_and_sampling_are_the_callers(header: str, sampled: bool) -> None:
    """A later version may say more; what this one knows stands in the same place. One flag counts."""
    assert read_traceparent(header) == (TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nothing",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{TRACE}-{SPAN}-0g",
    ],
)
def test_what_is_not_valid_is_not_there(header: str | None) -> None:
    """A broken header starts a trace of the run's own: neither half of it is believed."""
    assert read_traceparent(header) is NO_TRACE_PARENT
    assert NO_TRACE_PARENT.header == ""


@pytest.mark.parametrize("sampled", [True, False])
def test_a_run_kept_on_disk_still_knows_its_callers_span(sampled: bool) -> None:
    """Who goes on with it in another process exports it under the same parent, and where that one does."""
    asked = RunRequest("q", "s", caused_by=TraceParent(TRACE, SPAN, sampled))
    assert request_of(new_request_to_json(asked)) == asked
    assert request_of(request_to_json(asked, "q")).caused_by == asked.caused_by
