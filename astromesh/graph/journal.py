"""The journal of a durable run: its calls are recorded, and answered from the record when the run is resumed.

Agent runs and graphs reach it as `scope.journal`, which is None for a run that ends in one process. All model
calls, tool calls and questions to people pass through it, so that a resumed run repeats none of them. The
implementation is `astromesh.durable.journal`. A workflow resumes by stage, so the journal of its stages
(`astromesh.workflow.journal`) only records and replays. Both store calls in the form of
`astromesh.graph.call_record`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from astromesh.tools.base import HumanQuestion, ToolContext, ToolPort
from astromesh.types import CompletionRequest, CompletionResult, JsonObject, ToolCall, ToolResult

#: Asks the model, as this step of the run.
AskModel = Callable[[int], Awaitable[CompletionResult]]
#: Calls the tool.
CallTool = Callable[[ToolContext], Awaitable[ToolResult]]
#: Emits and charges a tool call that is answered from the record.
ReplayTool = Callable[[ToolResult], None]


class Journal(Protocol):
    """The record of one run, by the place of each call in the run's tree. `scope` is that place.

    Every method raises Divergence if the record holds another request at this place.
    """

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: AskModel
    ) -> CompletionResult:
        """Returns the recorded answer of a model call, else makes the call and records its answer.

        Args:
            step: The number of the call, if it is the first one at this place.
        """

    async def tool(
        self, scope: Any, tools: ToolPort, call: ToolCall, do: CallTool, retell: ReplayTool
    ) -> ToolResult:
        """Returns the recorded result of a tool call, else makes the call and records its result.

        Args:
            do: Makes the call.
            retell: Emits and charges a recorded call.
        """

    async def person(self, scope: Any, ticket: str, asked: HumanQuestion) -> JsonObject:
        """Returns a person's decision, in the form of `RecordedToolCall.ask`. The run waits for it as a row.

        Args:
            ticket: The identity of the question, the same when the run is resumed.
        """
