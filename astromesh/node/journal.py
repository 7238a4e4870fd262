"""The seam by which the calls of a durable run are recorded, and answered from the record.

A run that is worked off for good in one process has no journal (`scope.journal` is None): its calls pay for
reading that and for nothing else. The implementation is `astromesh.runtime.journal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from astromesh.abc.tool import Asked, ToolContext, ToolPort
from astromesh.types import CompletionRequest, CompletionResult, JsonObject, ToolCall, ToolResult

#: asks the model, as this step of the run
Ask = Callable[[int], Awaitable[CompletionResult]]
#: calls the tool
Do = Callable[[ToolContext], Awaitable[ToolResult]]
#: books a tool call that is answered from the record as one that was made
Retell = Callable[[ToolResult], None]


class Journal(Protocol):
    """What one run has done, by where in its tree it did it. `scope` is the caller's place in the run.

    Raises (all of them):
        Divergence: the record holds another request at this place.
    """

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: Ask
    ) -> CompletionResult:
        """A model call: as recorded, else asked and recorded before it is answered.

        Args:
            step: number of the call where it is the first of the run at this place.
        """

    async def tool(self, scope: Any, tools: ToolPort, call: ToolCall, do: Do, retell: Retell) -> ToolResult:
        """A tool call: as recorded, else made and recorded before it is answered."""

    async def person(self, scope: Any, ticket: str, asked: Asked) -> JsonObject:
        """What a person decided, as `ToolStep.ask` answers it; the run waits for that, as a row.

        Args:
            ticket: of the question: the same when the run is taken up again.
        """
