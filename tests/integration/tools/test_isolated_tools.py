"""`type: internal` with `isolation: process`: the same tool in a worker process."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pydantic import ValidationError

from astromesh.plugins import Deps
from astromesh.tools.base import ToolContext
from astromesh.tools.kinds.internal import InternalTool
from astromesh.tools.process_pool import ISOLATED
from astromesh.tools.toolbox import ToolBox
from astromesh.types import CallerContext, SessionKey, ToolCall, ToolResult
from tests.integration.tools import worker_handlers

CONTEXT = ToolContext(
    "r", "c", "helper", SessionKey("t", "helper", "s"), CallerContext("ann", "t", "secret"), run=object(),
    idempotency_key="k",
)  # fmt: skip


async def called(name: str, arguments: str, **options: Any) -> ToolResult:
    function = f"{worker_handlers.__name__}:{name}"
    tool = await InternalTool.open(InternalTool.Options(function=function, **options), Deps())
    return await ToolBox([tool]).execute(ToolCall("c", name, arguments), CONTEXT)


async def test_arguments_have_their_types_and_the_context_has_ids_alone() -> None:
    result = await called("seen", '{"when": "2026-01-02"}', isolation="process")
    assert result.ok, result.content
    assert result.value.pop("pid") != os.getpid()
    assert result.value == {
        "when": "2026-01-02", "times": 1, "ids": ["r", "c", "helper", "k", *CONTEXT.session],
        "caller": ["ann", ""], "run": None,
    }  # fmt: skip


async def test_a_tool_is_isolated_where_its_stage_is_suspected() -> None:
    here = await called("seen", '{"when": "2026-01-02"}')
    token = ISOLATED.set(lambda takes_context: True)
    try:
        there = await called("seen", '{"when": "2026-01-02"}')
    finally:
        ISOLATED.reset(token)
    assert here.value["pid"] == os.getpid() != there.value["pid"]


@pytest.mark.parametrize(
    ("arguments", "error", "content"),
    [('{"how": "exit"}', "tool_failed", "The process that it ran in died (exit code 4)."),
     ('{"how": "raise"}', "tool_failed", "ValueError: as told"),
     ('{"what": 1}', "invalid_tool_call", "is a required property")],
)  # fmt: skip
async def test_failures_are_results_of_the_call(arguments: str, error: str, content: str) -> None:
    result = await called("fatal", arguments, isolation="process")
    assert (result.ok, result.error) == (False, error)
    assert content in result.content


def test_a_memory_limit_needs_a_process() -> None:
    with pytest.raises(ValidationError, match="max_memory_mb needs isolation: process"):
        InternalTool.Options(function=f"{worker_handlers.__name__}:seen", max_memory_mb=64)
