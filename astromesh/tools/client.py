"""Tools that the client of a run executes: the run hands a call out, waits for the result, and goes on.

A call is one more question of a durable run (`HumanQuestion` of the kind `client_tool`), so it is recorded,
survives a restart, and is answered as every question is. The policies of `tools.policies` stand before it:
arguments that do not fit go back to the model, not to the client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from astromesh.errors import ClientToolExpired, ToolDenied, ToolFailed
from astromesh.tools.base import HumanQuestion, ToolContext
from astromesh.types import JsonObject, ToolSpec

CLIENT_TOOL: Literal["client_tool"] = "client_tool"
#: seconds for which a run waits for the result of a call
WAIT_SECONDS = 600.0


class ClientTools(Struct, frozen=True):
    """The tools that a request brings.

    Args:
        choice: `auto`, `required` or a tool's name, for the first model call that offers tools.
    """

    specs: tuple[ToolSpec, ...] = ()
    choice: str = "auto"

    def __bool__(self) -> bool:
        return bool(self.specs)


NO_CLIENT_TOOLS = ClientTools()


class ClientTool:
    """A `Tool` whose call the client executes.

    Args:
        released: returns arguments as clients may see them.
    """

    def __init__(self, spec: ToolSpec, released: Callable[[JsonObject], Any]) -> None:
        self.spec, self._released = spec, released

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Returns the client's result.

        Raises:
            ToolDenied: the client refuses the call.
            ClientToolExpired: there was no result in time; the run ends.
        """
        name, step = self.spec.name, context.step
        if step is None:
            raise ToolFailed(f"The client's tool {name!r} can be called in durable runs only.")
        question = HumanQuestion(CLIENT_TOOL, name, self._released(arguments), seconds=WAIT_SECONDS)
        decision = await step.ask(question)
        if decision["decision"] == "expired":
            raise ClientToolExpired(name, WAIT_SECONDS)
        if decision["decision"] != "answer":
            raise ToolDenied(f"The client has refused this call of {name!r}.")
        context.run.tool_choice = decision.get("tool_choice", "auto")
        return decision["answer"]
