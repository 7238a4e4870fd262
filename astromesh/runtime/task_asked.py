"""What a Task is asked for with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astromesh.telemetry.traceparent import NO_PARENT, TraceParent


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller wants run.

    Args:
        input: a JSON value; what is none is refused before there is a Task (E61).
        caused_by: where the caller's own trace stands (`traceparent`).
    """

    input: Any = None
    start: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    caused_by: TraceParent = NO_PARENT
