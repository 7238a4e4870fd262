"""`type: agent`: the complete pipeline of another agent as a tool."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import AstromeshError, ConfigError, DeadlineExceeded, ToolError, ToolFailed, ToolTimeout
from astromesh.plugins import Deps, Transform
from astromesh.tools.base import RunAgent, ToolContext
from astromesh.types import JsonObject, ToolSpec


class AgentTool:
    """Runs another agent with its own memory, guardrails and tools; returns the answer of that run."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        agent: str = Field(min_length=1, description="Name of the agent that is run.")
        context_transform: str = Field(
            "",
            description="Jinja2 template of a JSON object, rendered with the call's arguments: the `context` "
            "of the nested run.",
        )

    def __init__(self, agent: str, run_agent: RunAgent, transform: Transform | None) -> None:
        self.spec = ToolSpec(
            agent,
            f"Asks the agent {agent}.",
            {
                "type": "object",
                "properties": {
                    "query": {
                        "type": "string",
                        "description": "The question, with all that the agent must know.",
                    }
                },
                "required": ["query"],
            },
            "external",
            repeatable=True,  # the nested run has a journal of its own
            trusted=True,  # untrusted text that its tools read taints the whole tree of runs
        )
        self._agent = agent
        self._run = run_agent
        self._transform = transform

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> AgentTool:
        """Raises: ConfigError: the template is invalid, or no runtime is available."""
        if deps.run_agent is None:
            raise ConfigError(f"The agent {options.agent!r} cannot be a tool here: no runtime is available.")
        transform = None
        if options.context_transform:
            if deps.compile_transform is None:
                raise ConfigError("context_transform needs a runtime.")
            transform = deps.compile_transform(options.context_transform)
        return cls(options.agent, deps.run_agent, transform)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Raises: ToolTimeout, ToolFailed: the nested run failed; the calling model receives the error."""
        shaped: JsonObject = self._transform(arguments) if self._transform else {}
        try:
            answer = await self._run(self._agent, _query(arguments), shaped, context)
        except ToolError:
            raise
        except DeadlineExceeded as error:
            raise ToolTimeout(f"The agent {self._agent!r} did not finish in time: {error}") from error
        except AstromeshError as error:
            # a limit of the nested run is its own; a limit of the whole tree stops the caller at its next
            # step
            raise ToolFailed(f"The agent {self._agent!r} failed ({error.code}): {error}") from error
        return answer["response"]


def _query(arguments: dict[str, Any]) -> str:
    """Returns the query; a tool with other parameters passes them on as JSON."""
    query = arguments.get("query")
    return query if isinstance(query, str) else orjson.dumps(arguments).decode()
