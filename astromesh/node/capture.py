"""The seam by which traces keep what models and tools are told and answer, where an operator asks for it.

A run whose content is not captured has none (`scope.capture` is None) and pays for reading that alone. The
implementation is `astromesh.runtime.captured`.
"""

from __future__ import annotations

from typing import Protocol

from astromesh.types import CompletionRequest, CompletionResult, ToolCall, ToolResult


class Capture(Protocol):
    """Called right behind the event that ends a call."""

    def model(self, step: int, request: CompletionRequest, result: CompletionResult | None) -> None:
        """A model call of this step; None: it failed."""

    def tool(self, call: ToolCall, result: ToolResult) -> None: ...
