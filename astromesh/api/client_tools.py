"""Tools of clients in HTTP bodies, in OpenAI's form and in that of `/run`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from astromesh.tools.client import ClientTools
from astromesh.types import ToolSpec

#: the tools that one request may bring, as OpenAI limits them
MAX_TOOLS = 128


ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class FunctionIn(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON Schema of the arguments.")

    def spec(self) -> ToolSpec:
        spec = ToolSpec(self.name, self.description or "")
        return replace(spec, parameters=self.parameters) if self.parameters else spec


class ClientToolIn(FunctionIn):
    """A tool that the client executes."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FunctionToolIn(BaseModel):
    """A tool in OpenAI's form. Calls are always checked against the schema, as `strict` asks."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function"]
    function: FunctionIn


class FunctionName(BaseModel):
    name: str


class NamedChoice(BaseModel):
    """The choice of one tool."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["auto", "none", "required"] | NamedChoice


def client_tools(tools: list[FunctionToolIn], choice: ToolChoice | None) -> ClientTools:
    """Returns the tools of a request; with the choice `none`, they are not offered."""
    if choice == "none":
        return ClientTools()
    named = choice.function.name if isinstance(choice, NamedChoice) else choice or "auto"
    return ClientTools(tuple(tool.function.spec() for tool in tools), named)
