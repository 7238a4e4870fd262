"""Tools of tools.yaml, and the tools of one stage."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from astromesh.config.workflow import PolicySpec
from astromesh.errors import ToolFailed
from astromesh.graph.scope import Journal, Scope
from astromesh.plugins import Deps, Plugins
from astromesh.testing import RecordingTool, plugin_of
from astromesh.tools.base import HumanQuestion, Tool, ToolContext
from astromesh.tools.process_pool import Port
from astromesh.tools.toolbox import ToolBox
from astromesh.types import JsonObject, ToolCall, ToolSpec
from astromesh.workflow.base import StageFault
from astromesh.workflow.questions import Question
from astromesh.workflow.tools import StagePort, StageTools, open_tools, run_tool, tool_policy
from tests.unit.workflow.samples import FOLDER, OPS, project

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
CONTEXT = ToolContext()


async def opened(*tools: JsonObject, plugins: Mapping[str, type[Any]] | None = None) -> dict[str, Tool]:
    declared = project("s>e", tools={"tools": list(tools)})
    return await open_tools(declared, Plugins({"tools": plugins or {}}), Deps())


# -- tools.yaml --------------------------------------------------------------------------------------------


async def test_a_python_tool_is_its_function_as_the_file_describes_it() -> None:
    double = {"id": "twice", "entrypoint": f"{OPS}:double"}
    tools = await opened(
        {**double, "description": "Doubles.", "schema_in": NUMBER, "effect": "read"},
        {**double, "id": "plain"},
        {**double, "id": "gone", "entrypoint": f"{OPS}:is_not_there"},
    )
    assert {name: tool.spec for name, tool in tools.items()} == {
        "twice": ToolSpec("twice", "Doubles.", NUMBER, "read"),
        "plain": ToolSpec("plain", "plain", {"type": "object"}, "external"),
    }
    assert await tools["twice"].call({"number": 4}, CONTEXT) == {"result": 8}


@pytest.mark.parametrize(("schema", "fits"), [({"type": "object"}, True), ({"type": "string"}, False)])
async def test_the_result_of_a_python_tool_has_the_schema_of_the_file(schema: JsonObject, fits: bool) -> None:
    tools = await opened({"id": "twice", "entrypoint": f"{OPS}:double", "schema_out": schema})
    if fits:
        assert await tools["twice"].call({"number": 4}, CONTEXT) == {"result": 8}
        return
    with pytest.raises(ValueError, match='is not of type "string"'):
        await tools["twice"].call({"number": 4}, CONTEXT)


async def test_a_tool_of_the_runtime_is_opened_with_the_options_that_the_file_sets() -> None:
    lookup = RecordingTool("lookup", "found")
    lookup.spec = ToolSpec("lookup", "Looks up.", NUMBER, "write")
    plugin = plugin_of(lookup)
    tools = await opened(
        {"id": "mine", "type": "lookup", "options": {"depth": 3}},
        {"id": "other", "type": "lookup", "root": "data", "allow_network": False, "schema_in": NUMBER},
        {"id": "third", "type": "lookup", "allow_shell": True, "description": "Mine.", "schema_in": NUMBER},
        plugins={"lookup": plugin},
    )
    options = [one.model_dump() for one in plugin.opened]
    assert options == [{"depth": 3}, {"root": "data", "allow_network": False}, {"allow_shell": True}]
    assert [tool.spec for tool in tools.values()] == [
        ToolSpec("mine", "Looks up.", NUMBER, "write"),
        ToolSpec("other", "other", NUMBER, "external"),
        ToolSpec("third", "Mine.", NUMBER, "external"),
    ]
    context = ToolContext(call_id="c1")
    assert await tools["mine"].call({"number": 4}, context) == "found"
    assert (lookup.calls, lookup.contexts) == ([{"number": 4}], [context])


@pytest.mark.parametrize(
    ("function", "arguments", "result"),
    [
        ("double", {"number": 4}, {"result": 8}),
        ("sync_echo", {"input": {1}, "context": None, "tools": None}, ["1"]),
    ],
)
async def test_a_tool_in_a_process_of_its_own_calls_the_function_of_the_payload(
    function: str, arguments: JsonObject, result: Any
) -> None:
    payload = {"folder": str(FOLDER), "function": f"{OPS}:{function}", "arguments": arguments}
    assert await run_tool(payload, cast("Port", None)) == result


@pytest.mark.parametrize("approval", ["none", "required"])
def test_a_tool_is_used_as_the_file_allows(approval: str) -> None:
    tools = {"tools": [{"id": "twice", "entrypoint": f"{OPS}:double", "timeout_s": 7, "approval": approval}]}
    (spec,) = project("s>e", tools=tools).tools.tools
    policy = tool_policy(spec)
    assert (policy.timeout_seconds, policy.approval, policy.approve_if) == (7.0, approval, None)


def test_a_person_approves_the_calls_that_the_file_selects() -> None:
    rule = {"when": "number > 10"}
    tools = {"tools": [{"id": "twice", "entrypoint": f"{OPS}:double", "timeout_s": 7, "approval": rule}]}
    (spec,) = project("s>e", tools=tools).tools.tools
    policy = tool_policy(spec)
    assert (policy.timeout_seconds, policy.approval) == (7.0, "required")
    assert policy.approve_if is not None
    assert [policy.approve_if({"number": n}) for n in (10, 11)] == [False, True]


# -- one stage ---------------------------------------------------------------------------------------------


def deny(tool: str) -> PolicySpec:
    rule = {"target": "tool", "target_id": tool, "nodes": ["x"], "action": "deny", "reason": "so"}
    return PolicySpec.model_validate({"name": "p", "rules": [rule]}, strict=False)


GOOD, BROKEN = RecordingTool("good", {"n": 1}, parameters=NUMBER), RecordingTool("broken", ToolFailed("No."))


def port(on_error: str = "continue", **more: Any) -> StagePort:
    return StagePort(ToolBox([GOOD, BROKEN]), "x", [deny("broken")] if more.pop("denies", False) else [],
                     on_error, **more)  # fmt: skip


async def test_calls_are_recorded_with_their_results() -> None:
    stage = port()
    assert stage.specs() == (GOOD.spec, BROKEN.spec)
    result = await stage.execute(ToolCall("c1", "good", '{"number": 1}'), CONTEXT)
    failed = await stage.execute(ToolCall("c2", "broken", "{}"), CONTEXT)
    assert (result.ok, result.ends_run, failed.ok, failed.ends_run, stage.fault) == (
        True, False, False, False, None,
    )  # fmt: skip
    durations = [call.pop("duration_ms") for call in stage.calls]
    assert durations == [result.duration_ms, failed.duration_ms]
    assert stage.calls == [
        {"tool": "good", "arguments": '{"number": 1}', "status": "success", "result": '{"n":1}', "error": ""},
        {"tool": "broken", "arguments": "{}", "status": "failure", "result": failed.content,
         "error": "tool_failed"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "options", "code", "error"),
    [
        (("good", "{}"), {}, "tool_misuse", "invalid_tool_call"),
        (("unheard_of", "{}"), {}, "tool_misuse", "invalid_tool_call"),
        (("broken", "{}"), {"on_error": "fail"}, "tool_failed", "tool_failed"),
        (("broken", "{}"), {"denies": True}, "policy_denied", "policy_denied"),
    ],
)
async def test_a_call_that_fails_the_stage_ends_it(
    call: tuple[str, str], options: Any, code: str, error: str
) -> None:
    stage = port(**options)
    result = await stage.execute(ToolCall("c1", *call), CONTEXT)
    assert stage.fault is not None
    assert (stage.fault.code, str(stage.fault)) == (code, result.content)
    assert (result.call_id, result.name, result.ok, result.error) == ("c1", call[0], False, error)
    assert result.ends_run
    assert stage.calls[0]["error"] == error


async def test_a_denied_call_says_which_policy_denies_it_and_reaches_no_tool() -> None:
    BROKEN.calls.clear()
    result = await port(denies=True).execute(ToolCall("c1", "broken", "{}"), CONTEXT)
    assert result.content == "The policy 'p' denies tool 'broken': so."
    assert BROKEN.calls == []


class Record:
    """The journal of a fork, which has the calls of some names."""

    def __init__(self, is_fork: bool, *known: str) -> None:
        self.is_fork, self._known = is_fork, known

    def effect_of(self, call: ToolCall) -> object | None:
        return {} if call.name in self._known else None


@pytest.mark.parametrize(
    ("journal", "is_new"),
    [(None, False), (Record(False), False), (Record(True), True), (Record(True, "good"), False)],
)
async def test_a_question_about_a_call_names_the_call_by_its_number_in_the_stage(
    journal: Record | None, is_new: bool
) -> None:
    asked: list[tuple[str, Question]] = []

    async def ask(ticket: str, question: Question) -> JsonObject:
        asked.append((ticket, question))
        return {"decision": "approve"}

    stage = port(denies=True, ask=ask, journal=cast("Journal", journal))
    GOOD.contexts.clear()
    for name in ("good", "broken", "good"):  # a denied call has no number
        await stage.execute(ToolCall("c1", name, '{"number": 1}'), ToolContext(call_id="c1"))
    steps = [context.step for context in GOOD.contexts]
    for step in steps:
        assert step is not None
        assert step.is_fork is is_new
        await step.ask(HumanQuestion("approval", "good", {"number": 1}))
    tickets = [ticket.rsplit(":", 1) for ticket, _ in asked]
    assert [number for _, number in tickets] == ["1", "2"]
    assert tickets[0][0] == tickets[1][0]
    assert [context.call_id for context in GOOD.contexts] == ["c1", "c1"]


def tools_of(stage: StagePort, path: str) -> StageTools:
    def tool_context(call_id: str, name: str) -> ToolContext:
        return ToolContext(call_id=call_id, tool=name)

    return StageTools(stage, cast("Scope", SimpleNamespace(path=path, tool_context=tool_context)))


async def test_an_operation_calls_by_name_and_the_call_has_the_same_id_whenever_it_runs_again() -> None:
    GOOD.calls.clear()
    GOOD.contexts.clear()
    for path in ("a", "a", "b"):
        tools = tools_of(port(), path)
        assert tools.names == ("good", "broken")
        for _ in range(2):
            result = await tools.call("good", number=4)
            assert (result.call_id, result.value) == (GOOD.contexts[-1].call_id, {"n": 1})
        assert tools.fault is None
    assert GOOD.calls == [{"number": 4}] * 6
    ids = [context.call_id for context in GOOD.contexts]
    assert ids[:2] == ids[2:4]
    assert len({*ids}) == 4
    assert {context.tool for context in GOOD.contexts} == {"good"}


async def test_calls_that_an_operation_makes_at_once_have_ids_of_their_own() -> None:
    slow = RecordingTool("slow", lambda: asyncio.sleep(0))
    tools = tools_of(StagePort(ToolBox([slow]), "x", [], "continue"), "a")
    results = await asyncio.gather(*(tools.call("slow") for _ in range(3)))
    assert len({result.call_id for result in results}) == 3


async def test_misuse_by_an_operation_is_raised_and_stays_the_fault_of_the_stage() -> None:
    tools = tools_of(port(), "a")
    with pytest.raises(StageFault) as raised:
        await tools.call("good", number="four")
    assert raised.value.code == "tool_misuse"
    assert tools.fault is raised.value
