"""Guards, pre- and postprocessors around nodes that do not see to them: functions, routers, loops …

A PromptNode has them inside its nine steps. For every other node they are the same in kind: the preprocessor
comes first, guards look at the final output, the postprocessor makes another one of it, and what it made is
guarded again. A guard of mode `retry` has the node executed again; `context["_retry_error"]` says why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from astromesh.graph.base import BaseNode
from astromesh.graph.config import NodeConfig
from astromesh.graph.containers import engine_forget, engine_write
from astromesh.graph.function import as_result
from astromesh.graph.nodes.guards import Checked, Guard, as_guards, check_all
from astromesh.graph.own_keys import RETRY_ERROR
from astromesh.graph.records import NodeResult, as_json
from astromesh.graph.signature import Processor, postprocessor, preprocessor
from astromesh.graph.state import GraphState

Body = Callable[..., Awaitable[Any]]


def processed(node: BaseNode, body: Body, *, alone: bool) -> Body | None:
    """A body with what its node was given around it, or None where there is nothing.

    Args:
        alone: the body takes the state without a config.
    """
    own = node.handles
    guards = () if "guards" in own else as_guards(node.guards)
    before = None if "preprocessor" in own else preprocessor(node.preprocessor)
    after = None if "postprocessor" in own else postprocessor(node.postprocessor)
    if not guards and before is None and after is None:
        return None

    async def run(state: GraphState, config: NodeConfig) -> NodeResult:
        if before is not None:
            await before(state, config)
        tries = 0
        try:
            while True:
                value = await (body(state) if alone else body(state, config))
                result, checked = await _judged(as_result(node.name, value), guards, after, state, config)
                if not checked.refused or not checked.may_retry(tries):
                    return result
                tries += 1
                engine_write(state.context, RETRY_ERROR, checked.feedback)
        finally:
            if tries:
                engine_forget(state.context, RETRY_ERROR)

    return run


async def _judged(
    result: NodeResult,
    guards: tuple[Guard, ...],
    after: Processor | None,
    state: GraphState,
    config: NodeConfig,
) -> tuple[NodeResult, Checked]:
    """A result after guards and postprocessor; failures and steps on the way are not looked at."""
    sent_back = result.guards_failed and result.output is None
    if result.error or result.stop_reason or result.wants_tools or sent_back:
        return result, Checked()
    checked = await check_all(guards, result.output, state)
    if after is not None and not checked.refused:
        said = result.output
        made = await after(said, state, config)
        result = replace(result, output=made, messages_added=_rewritten(result, said, made))
        if made is not said and made != said:
            checked = await check_all(guards, made, state)
    if checked.refused:
        kept = result.output if result.raw_output is None else result.raw_output
        error = f"The output of {result.node_name!r} was {checked.error}"
        return NodeResult(
            result.node_name,
            None,
            kept,
            guards_passed=checked.passed,
            guards_failed=checked.failed,
            error=error,
            exception=checked.refusal(error),
        ), checked
    result.guards_passed = (*result.guards_passed, *checked.passed)
    result.guards_failed = (*result.guards_failed, *checked.failed)
    return result, checked


def _rewritten(result: NodeResult, said: Any, made: Any) -> list[Any]:
    """What the conversation gains, in the words that are let out."""
    old, new = (value if isinstance(value, str) else as_json(value) for value in (said, made))
    return [
        replace(m, content=new) if m.role == "assistant" and m.content == old else m
        for m in result.messages_added
    ]
