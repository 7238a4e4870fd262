"""astromesh: an agent runtime."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astromesh.agents.agent import Agent as Agent
    from astromesh.agents.agent import Session as Session
    from astromesh.agents.agent import build_agent as build_agent
    from astromesh.agents.parameters import File as File
    from astromesh.agents.results import Question as Question
    from astromesh.agents.results import Result as Result
    from astromesh.agents.results import RunStream as RunStream
    from astromesh.errors import AstromeshError as AstromeshError
    from astromesh.errors import ModelRetry as ModelRetry
    from astromesh.runtime.engine import AgentRuntime as AgentRuntime
    from astromesh.tools.base import ToolContext as ToolContext
    from astromesh.tools.functions import tool as tool
    from astromesh.types import CallerContext as CallerContext
    from astromesh.types import Event as Event
    from astromesh.types import Image as Image
    from astromesh.types import Message as Message
    from astromesh.types import Usage as Usage
    from astromesh.types import get_current_caller as get_current_caller

__version__ = "0.2.0"

#: public name -> its module, which is imported on first access
_PUBLIC = {
    "Agent": "astromesh.agents.agent",
    "AgentRuntime": "astromesh.runtime.engine",
    "AstromeshError": "astromesh.errors",
    "CallerContext": "astromesh.types",
    "Event": "astromesh.types",
    "File": "astromesh.agents.parameters",
    "Image": "astromesh.types",
    "Message": "astromesh.types",
    "ModelRetry": "astromesh.errors",
    "Question": "astromesh.agents.results",
    "Result": "astromesh.agents.results",
    "RunStream": "astromesh.agents.results",
    "Session": "astromesh.agents.agent",
    "ToolContext": "astromesh.tools.base",
    "Usage": "astromesh.types",
    "build_agent": "astromesh.agents.agent",
    "get_current_caller": "astromesh.types",
    "tool": "astromesh.tools.functions",
}

__all__ = [
    "Agent",
    "AgentRuntime",
    "AstromeshError",
    "CallerContext",
    "Event",
    "File",
    "Image",
    "Message",
    "ModelRetry",
    "Question",
    "Result",
    "RunStream",
    "Session",
    "ToolContext",
    "Usage",
    "__version__",
    "build_agent",
    "get_current_caller",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'astromesh' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
