"""Agents and knowledge as tools: what the nested run is given, and how its errors come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from astromesh.core.prompt_engine import compile_transform
from astromesh.errors import (
    AllProvidersFailed,
    BudgetExhausted,
    ConfigError,
    DeadlineExceeded,
    GuardrailBlocked,
    ToolFailed,
    ToolTimeout,
)
from astromesh.plugins import Deps
from astromesh.tools.base import DEFAULT_NESTED_RUN_OPTIONS, NestedRunOptions, ToolContext
from astromesh.tools.kinds.agent import AgentTool
from astromesh.tools.kinds.knowledge import KnowledgeTool

PARENT = ToolContext(run_id="run_1", call_id="c1", agent="front", tool="billing")


class Billing:
    """Another agent, as `RunAgent` sees it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[tuple[str, str, Mapping[str, Any], ToolContext]] = []
        self._error = error

    async def __call__(
        self,
        agent: str,
        query: str,
        context: Mapping[str, Any],
        parent: ToolContext,
        terms: NestedRunOptions = DEFAULT_NESTED_RUN_OPTIONS,
    ) -> Mapping[str, Any]:
        self.runs.append((agent, query, context, parent))
        if self._error:
            raise self._error
        return {"response": "paid"}


async def agent_tool(billing: Billing, transform: str = "") -> AgentTool:
    options = AgentTool.Options(agent="billing-agent", context_transform=transform)
    return await AgentTool.open(options, Deps(run_agent=billing, compile_transform=compile_transform))


async def test_the_nested_run_gets_query_context_and_its_parent():
    """`context_transform` shapes the call's arguments into the context of the nested run."""
    billing = Billing()
    tool = await agent_tool(billing, '{"customer": "{{ customer_id }}"}')
    assert await tool.call({"query": "paid?", "customer_id": "c-7"}, PARENT) == "paid"
    assert billing.runs == [("billing-agent", "paid?", {"customer": "c-7"}, PARENT)]


async def test_without_parameters_it_takes_a_query():
    """The default of api.md section 4."""
    tool = await agent_tool(Billing())
    assert tool.spec.parameters["required"] == ["query"]
    assert tool.spec.effect == "external"


async def test_parameters_without_a_query_are_passed_on_as_json():
    """The other agent reads them as its question."""
    billing = Billing()
    await (await agent_tool(billing)).call({"invoice": 7}, PARENT)
    assert billing.runs[0][1] == '{"invoice":7}'


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (GuardrailBlocked("topic_filter", "I can't help with that."), ToolFailed, "I can't help with that"),
        (AllProvidersFailed([]), ToolFailed, "all_providers_failed"),
        (BudgetExhausted("over"), ToolFailed, "budget_exhausted"),
        (DeadlineExceeded("120 s"), ToolTimeout, "did not finish in time"),
    ],
)
async def test_errors_of_the_nested_run_are_the_tools(error, raised, says):
    """They do not end the calling run; its model is told."""
    with pytest.raises(raised, match=says):
        await (await agent_tool(Billing(error))).call({"query": "x"}, PARENT)


async def test_a_wrong_template_is_found_when_the_tool_is_opened():
    """Not at the first call."""
    with pytest.raises(ConfigError, match="context_transform"):
        await agent_tool(Billing(), '{"a": {{ }')


async def test_an_unknown_pipeline_names_the_nearest():
    """The operator learns what there is."""
    deps = Deps(knowledge={"product-knowledge": Billing()})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="Did you mean `product-knowledge`"):
        await KnowledgeTool.open(KnowledgeTool.Options(pipeline="product-knowlege"), deps)
