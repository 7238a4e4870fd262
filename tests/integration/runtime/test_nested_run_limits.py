"""How deep agents may call agents, and how often one run and all below it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astromesh.runtime.run import MAX_DEPTH, MAX_NESTED_RUNS
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write


def asks(agent: str) -> dict[str, Any]:
    return {"tools": [{"name": "ask", "type": "agent", "agent": agent}]}


def results(request: CompletionRequest) -> list[str]:
    return [message.content for message in request.messages if message.role == "tool"]


async def test_a_chain_of_agents_ends_where_it_is_too_deep(tmp_path: Path) -> None:
    """The call that would go deeper is a failed tool; everybody above hears what came back, and answers."""
    last = MAX_DEPTH + 2
    chain = [manifest(f"a{n}", **asks(f"a{n + 1}")) for n in range(last)]

    def say(request: CompletionRequest) -> Any:
        heard = results(request)
        return heard[0] if heard else ToolCall("c", "ask", '{"query": "go on"}')

    model = ScriptedProvider(say, repeat=True)
    async with runtime_of(write(tmp_path, *chain, manifest(f"a{last}")), model) as runtime:
        answer = await runtime.run("a0", "go", "s")
    assert f"may call agents at most {MAX_DEPTH} levels deep" in answer.response
    assert len(model.requests) == 2 * (MAX_DEPTH + 1)


async def test_a_run_and_all_below_it_may_call_agents_so_often_and_no_more(tmp_path: Path) -> None:
    """Two levels that each ask twenty times: what is beyond the bound is refused and told, nothing hangs."""
    width = 20

    def say(request: CompletionRequest) -> Any:
        if results(request) or not request.tools:
            return "done"
        return [ToolCall(f"c{n}", "ask", '{"query": "go on"}') for n in range(width)]

    model = ScriptedProvider(say, repeat=True)
    agents = [manifest("top", **asks("middle")), manifest("middle", **asks("bottom")), manifest("bottom")]
    async with runtime_of(write(tmp_path, *agents), model) as runtime:
        answer = await runtime.run("top", "go", "s")
    limit = f"at most {MAX_NESTED_RUNS} times"
    refused = [r for request in model.requests for r in results(request) if limit in r]
    assert answer.response == "done"
    assert len(refused) == width + width * width - MAX_NESTED_RUNS
