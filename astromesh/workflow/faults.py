"""From what a stage raised to the error of its entry: one table, most special first."""

from __future__ import annotations

from collections.abc import Sequence

from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    DeadlineExceeded,
    InvalidOutput,
    ProviderError,
    TemplateFailed,
)
from astromesh.node.tool_results import describe
from astromesh.types import JsonObject
from astromesh.workflow.routing import RoutingFault
from astromesh.workflow.values import NotJson


class StageFault(Exception):
    """A stage failed with a code of its own."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


#: exception → the code of the stage's error (E46 to E49)
CODES: Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], str]] = (
    ((ProviderError, AllProvidersFailed), "provider_error"),
    (InvalidOutput, "invalid_output"),
    (NotJson, "invalid_output"),
    (TemplateFailed, "template_failed"),
    ((TimeoutError, DeadlineExceeded), "timeout"),
)


def stage_error(error: BaseException) -> JsonObject:
    """`{code, message}`; a foreign exception's message without what looks like a secret."""
    if isinstance(error, StageFault | RoutingFault):
        return {"code": error.code, "message": str(error)}
    for kinds, code in CODES:
        if isinstance(error, kinds):
            return {"code": code, "message": str(error)}
    if isinstance(error, AstromeshError):
        return {"code": error.code, "message": str(error)}
    return {"code": "operation_error", "message": describe(error)}
