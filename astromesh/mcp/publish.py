"""Plugin `publishers: mcp`: what the API offers, as an MCP server; it says who may see and call what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from astromesh import __version__
from astromesh.abc.deps import Deps
from astromesh.mcp.server.serving import Serving


class Publisher:
    """Opens a `Serving`, which closes with the runtime."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        tools: Callable[..., Any] = Field(description="The tools that a request may see.")
        call: Callable[..., Any] = Field(description="One call: request, tool, arguments.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Serving:
        serving = Serving("astromesh", __version__, options.tools, options.call)
        await serving.open()
        deps.resources.on_close(serving.close)
        return serving
