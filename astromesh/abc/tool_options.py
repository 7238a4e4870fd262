"""The keys that every tool block in YAML has, whatever its type; each kind's `Options` adds its own."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.tool import RateLimit, ToolPolicy
from astromesh.types import Effect


class RateLimitOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_calls: int = Field(ge=1, description="Calls that fit into the window.")
    window_seconds: float = Field(gt=0, description="Length of the sliding window in seconds.")


class ToolOptions(BaseModel):
    """One entry of `spec.tools` without its `type`; the defaults of `effect` and timeout differ by kind."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="The tool's name as the model sees it: letters, digits, `_` and `-`, at most 64.",
    )
    description: str = Field("", description="What the tool does and when to use it, for the model.")
    effect: Effect = Field(
        "read", description="`read` may be repeated after a crash; `write` and `external` may not."
    )
    idempotency: Literal["none", "key"] = Field(
        "none", description="`key`: every call carries a key by which the other side knows a repeat."
    )
    approval: Literal["none", "required"] = Field(
        "none", description="`required`: a person is asked before every call."
    )
    timeout_seconds: float = Field(30.0, gt=0, description="Seconds that one call may take.")
    rate_limit: RateLimitOptions | None = Field(
        None, description="At most `max_calls` in `window_seconds`, by agent, tool and caller."
    )
    max_result_tokens: int = Field(
        8000, ge=1, description="Tokens of a result that the model is shown; the rest is cut off with a note."
    )

    def policy(self) -> ToolPolicy:
        """What of these keys the tool registry enforces."""
        limit = self.rate_limit
        return ToolPolicy(
            timeout_seconds=self.timeout_seconds,
            max_result_tokens=self.max_result_tokens,
            rate_limit=RateLimit(limit.max_calls, limit.window_seconds) if limit else None,
            idempotency=self.idempotency,
            approval=self.approval,
        )
