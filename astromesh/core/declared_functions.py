"""Functions of `@tool(…)` with keys, declared as the block of a tool in an agent's YAML is."""

from __future__ import annotations

from pydantic import ValidationError

from astromesh.config.agent import ToolBlock
from astromesh.core.tools import declare_tool
from astromesh.errors import AstromeshError, ConfigError, text_of
from astromesh.tools.base import DeclaredTool
from astromesh.tools.functions import FunctionTool


def declared(tool: FunctionTool[..., object]) -> DeclaredTool:
    """Returns a tool with the policy of its keys.

    Raises:
        ConfigError: a key has a value that it cannot have.
    """
    name = tool.spec.name
    keys = {**tool.policy, "name": name, "type": "internal", "effect": tool.spec.effect}
    try:
        return declare_tool(tool, ToolBlock.model_validate(keys))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"The keys of the tool {name!r} are not valid: {faults}") from error
    except (AstromeshError, ValueError) as error:  # of a rule for approvals
        raise ConfigError(f"The approval of the tool {name!r} is not valid: {text_of(error)}") from error
