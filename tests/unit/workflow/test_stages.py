"""What stands around a stage: context and memory, tools, policies, agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from astromesh.config.workflow import ContextProfile, PolicySpec
from astromesh.errors import ProviderUnavailable
from astromesh.testing import Reply, ScriptedProvider
from astromesh.tools.base import NestedRunOptions, ToolContext
from astromesh.types import JsonObject, ToolCall
from astromesh.workflow import Engine
from astromesh.workflow.execution import TaskProjection
from astromesh.workflow.history import Recording
from astromesh.workflow.journal import Recorder
from astromesh.workflow.memory import Item, assemble_context
from astromesh.workflow.replay import Replay
from astromesh.workflow.tools import PolicyRequest, denial_reason
from tests.unit.workflow.samples import OPS, project, run, states

TOOLS = {
    "tools": [
        {
            "id": name,
            "entrypoint": f"{OPS}:{name}",
            "schema_in": {
                "type": "object",
                "properties": {"number": {"type": "integer"}},
                "required": ["number"],
            },
        }
        for name in ("double", "broken_tool")
    ]
}
TASK_MEMORY = {"memory": {"context_profiles": [{"id": "own", "sources": [{"store": "task"}]}]}}
SEES: dict[str, Any] = {"op": "see_context", "context": "own"}


# -- context -------------------------------------------------------------------------------------------------


def items(*values: Any) -> list[Item]:
    return [Item(f"i{n}", "task", f"n{n}", (), value) for n, value in enumerate(values)]


def profile(policy: str, most: int = 1000) -> ContextProfile:
    return ContextProfile.model_validate_json(
        orjson.dumps(
            {"id": "p", "max_tokens": most, "retrieval_policy": policy, "sources": [{"store": "task"}]}
        )
    )


def test_recency_takes_the_newest_that_fit_and_hands_them_over_in_order() -> None:
    package = assemble_context(profile("recency", 20), items("a" * 40, "b" * 40, "c" * 40), "")
    assert [item.value[0] for item in package.items] == ["b", "c"]


def test_semantic_takes_what_shares_words_with_the_input() -> None:
    found = assemble_context(
        profile("semantic", 8), items("liability of partners", "weather of today", "x"), "liability clause"
    )
    assert found.ids == ("i0",)


def test_hybrid_takes_both_into_account() -> None:
    package = assemble_context(
        profile("hybrid", 10), items("liability of partners", "other", "newest words"), "liability"
    )
    assert package.ids == ("i0", "i2")


def test_a_package_says_what_it_holds_by_hash_and_ids() -> None:
    one, same, other = (assemble_context(profile("recency"), items(*v), "") for v in (("a",), ("a",), ("b",)))
    assert one.hash == same.hash != other.hash and one.ids == ("i0",)


async def test_a_stage_sees_only_what_its_profile_names() -> None:
    """Tags of the node's metadata, and the node's own id, are tags of what it wrote."""
    sources = [{"store": "task", "tags": ["policy"]}]
    memory = {"memory": {"context_profiles": [{"id": "own", "sources": sources}]}}
    nodes: dict[str, Any] = {
        "x": {"op": "add_a", "metadata": {"tags": ["policy"]}},
        "y": {"op": "add_b"},
        "z": SEES,
    }
    result = await run("s>x x>y y>z z>e", nodes, "-", memory=memory)
    assert result.output == {"profile": "own", "values": ["-a"], "nodes": ["x"]}
    entry = result.history["z"][0]
    assert entry.context_items == ("T@x",) and len(entry.context_hash) == 64


async def test_e37_clones_see_what_was_written_before_the_fork_and_their_own() -> None:
    """Not what their siblings write; the merge appends what its inputs wrote, in their order."""
    nodes: dict[str, Any] = {"x": {"op": "add_a"}, "y": {"op": "add_b"}, "x2": SEES, "y2": SEES, "z": SEES}
    edges = "s>b b>x b>y x>x2 y>y2 x2>m y2>m m>z z>e"
    result = await run(edges, nodes, "-", memory=TASK_MEMORY)
    seen = {entry.stage: entry.output["nodes"] for entry in result.trace if entry.node in ("x2", "y2", "z")}
    assert seen == {"x2": ["s", "x"], "y2": ["s", "y"], "z": ["s", "x", "x2", "y", "y2", "m"]}


# -- tools ---------------------------------------------------------------------------------------------------

CALLS = {"op": "call_tool", "tools": ["double", "broken_tool"]}


async def test_an_operation_calls_a_tool_and_the_call_is_on_record() -> None:
    result = await run("s>x x>e", {"x": CALLS}, {"tool": "double", "arguments": {"number": 4}}, tools=TOOLS)
    assert result.output["value"] == {"result": 8}
    (call,) = result.history["x"][0].tool_calls
    assert (call["tool"], call["status"]) == ("double", "success")


async def test_e46_a_tool_s_own_error_is_seen_by_the_node_which_goes_on() -> None:
    result = await run(
        "s>x x>e", {"x": CALLS}, {"tool": "broken_tool", "arguments": {"number": 1}}, tools=TOOLS
    )
    assert (result.status, result.output["ok"], result.output["error"]) == ("success", False, "tool_failed")
    assert result.history["x"][0].tool_calls[0]["status"] == "failure"


async def test_e46_a_node_may_fail_on_a_tool_s_own_error() -> None:
    nodes: dict[str, Any] = {"x": {**CALLS, "tool_on_error": "fail"}}
    result = await run("s>x x>e", nodes, {"tool": "broken_tool", "arguments": {"number": 1}}, tools=TOOLS)
    assert result.error and result.error["code"] == "tool_failed"


@pytest.mark.parametrize(
    ("tools", "asked"),
    [
        (["double"], {"tool": "broken_tool", "arguments": {"number": 1}}),
        (["double"], {"tool": "unheard_of"}),
        (["double"], {"tool": "double", "arguments": {"number": "four"}}),
    ],
)
async def test_e46_misuse_of_a_tool_fails_the_node(tools: list[str], asked: Any) -> None:
    """A tool that the node does not list, one that does not exist, arguments that do not fit."""
    result = await run("s>x x>e", {"x": {"op": "call_tool", "tools": tools}}, asked, tools=TOOLS)
    assert result.error and result.error["code"] == "tool_misuse"


# -- policies ------------------------------------------------------------------------------------------------


def policies(*rules: Any, default: str = "allow") -> list[PolicySpec]:
    made = [{"target": "tool", "target_id": i, "nodes": n, "action": a, "reason": "so"} for i, n, a in rules]
    return [PolicySpec.model_validate_json(orjson.dumps({"name": "p", "default": default, "rules": made}))]


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        (policies(), True),
        (policies(default="deny"), False),
        (policies(("t", [], "allow"), default="deny"), True),
        (policies(("t", ["n"], "allow"), default="deny"), True),
        (policies(("t", ["other"], "allow"), default="deny"), False),
        (policies(("t", [], "allow"), ("t", ["n"], "deny")), False),
        (policies(("*", [], "deny")), False),
        (policies(("t", ["other"], "deny")), True),
        (policies(("t", [], "allow")) + policies(default="deny"), True),
    ],
)
def test_e57_explicit_deny_then_allow_then_default(given: list[PolicySpec], allowed: bool) -> None:
    assert (denial_reason(given, PolicyRequest("tool", "t", "n")) == "") is allowed


async def test_e57_a_denied_context_fails_the_stage() -> None:
    policy = {
        "policies": [
            {"name": "least", "rules": [{"target": "context", "target_id": "own", "action": "deny"}]}
        ]
    }
    result = await run("s>x x>e", {"x": SEES}, policy=policy, memory=TASK_MEMORY)
    assert result.error and result.error["code"] == "policy_denied" and "x" in result.path


@pytest.mark.parametrize(("tags", "seen"), [([], ["s", "x"]), (["kept"], ["z"]), (["y"], ["y"])])
async def test_a_stage_that_passes_its_input_on_stores_no_second_copy(
    tags: list[str], seen: list[str]
) -> None:
    """Stored is what begins a Task, what a stage makes, what a profile finds by an identity's tag or id."""
    memory = {"context_profiles": [{"id": "own", "sources": [{"store": "task", "tags": tags}]}]}
    nodes: dict[str, Any] = {"x": {"op": "add_a"}, "y": {}, "z": {"metadata": {"tags": ["kept"]}}, "u": SEES}
    result = await run("s>x x>y y>z z>u u>e", nodes, "-", memory={"memory": memory})
    assert result.output["nodes"] == seen


async def test_e57_a_denied_memory_layer_fails_the_stage_that_would_read_it() -> None:
    rules = [{"target": "store", "target_id": "task", "action": "deny", "reason": "not here"}]
    policy = {"policies": [{"name": "least", "rules": rules}]}
    result = await run("s>x x>e", {"x": SEES}, policy=policy, memory=TASK_MEMORY)
    assert result.error and result.error["code"] == "policy_denied" and "not here" in result.error["message"]


async def test_e57_a_denied_agent_is_never_asked() -> None:
    rules = [{"target": "agent", "target_id": "clerk", "nodes": ["x"], "action": "deny"}]
    result, model = await clerk("Hi", policy={"policies": [{"name": "least", "rules": rules}]})
    assert result.error and result.error["code"] == "policy_denied" and not model.requests


async def test_e57_a_denied_tool_fails_the_stage() -> None:
    policy = {
        "policies": [
            {"name": "least", "rules": [{"target": "tool", "target_id": "double", "action": "deny"}]}
        ]
    }
    asked = {"tool": "double", "arguments": {"number": 1}}
    result = await run("s>x x>e", {"x": CALLS}, asked, policy=policy, tools=TOOLS)
    assert result.error and result.error["code"] == "policy_denied"


# -- agents --------------------------------------------------------------------------------------------------

AGENTS = {
    "agents": [
        {
            "id": "clerk",
            "model": "m",
            "system_prompt": "You are a clerk.",
            "tools": ["double"],
            "config": {"temperature": 0},
        }
    ]
}
CLERK: dict[str, Any] = {"kind": "agent", "agent": "clerk"}
SCHEMA = {"type": "object", "required": ["risk"]}


async def clerk(*script: Any, node: dict[str, Any] | None = None, input: Any = "Hello", **more: Any) -> Any:
    model = ScriptedProvider(*script)
    nodes: dict[str, Any] = {"x": {**CLERK, **(node or {})}}
    result = await run("s>x x>e", nodes, input, agents=AGENTS, tools=TOOLS, models={"m": model}, **more)
    return result, model


async def test_an_agent_node_asks_its_model_with_prompt_input_and_parameters() -> None:
    result, model = await clerk('{"risk": 1}', input={"text": "clause"})
    request = model.requests[0]
    assert [m.role for m in request.messages] == ["system", "user"]
    assert request.messages[0].content == "You are a clerk." and '"clause"' in request.messages[1].content
    assert request.parameters["temperature"] == 0 and request.tools == ()
    assert result.output == {"risk": 1} and result.history["x"][0].usage["output_tokens"] > 0


async def test_an_agent_may_answer_in_words() -> None:
    result, _ = await clerk("Good day.")
    assert result.output == "Good day."


async def test_e47_fences_around_the_json_are_taken_off_and_that_is_recorded() -> None:
    result, _ = await clerk('Here:\n```json\n{"risk": 2}\n```', node={"schema_out": SCHEMA})
    assert result.output == {"risk": 2} and result.history["x"][0].usage["repaired"] is True


async def test_e47_an_agent_has_one_attempt_to_repair_its_answer() -> None:
    result, model = await clerk('{"no": 1}', '{"risk": 3}', node={"schema_out": SCHEMA})
    assert result.output == {"risk": 3} and "does not fit" in model.requests[1].messages[-1].content


async def test_e47_a_second_misfit_fails_the_stage() -> None:
    result, _ = await clerk('{"no": 1}', '{"no": 2}', node={"schema_out": SCHEMA})
    assert result.error and result.error["code"] == "invalid_output"


async def test_e48_an_error_of_the_provider_fails_the_stage() -> None:
    result, _ = await clerk(ProviderUnavailable("no connection"))
    assert result.status == "failure" and result.error and result.error["code"] == "provider_error"


async def test_a_node_s_tools_are_those_that_its_agent_also_has() -> None:
    call = ToolCall("c1", "double", '{"number": 4}')
    node = {"tools": ["double", "broken_tool"]}
    result, model = await clerk(Reply(tool_calls=[call]), "done", node=node)
    assert [tool.name for tool in model.requests[0].tools] == ["double"]
    assert result.output == "done" and result.history["x"][0].tool_calls[0]["result"] == '{"result":8}'


async def test_e46_a_model_that_misuses_a_tool_fails_its_node() -> None:
    call = ToolCall("c1", "double", '{"number": "four"}')
    result, model = await clerk(Reply(tool_calls=[call]), "done", node={"tools": ["double"]})
    assert result.error and result.error["code"] == "tool_misuse" and len(model.requests) == 1


async def test_a_context_package_stands_in_the_prompt() -> None:
    _, model = await clerk("ok", node={"context": "own"}, memory=TASK_MEMORY)
    assert "Context:\n- s: Hello" in model.requests[0].messages[1].content


async def test_an_agent_may_decide() -> None:
    model = ScriptedProvider('{"selected_edge": "two", "output": "kept"}')
    nodes: dict[str, Any] = {"d": CLERK, "x": {"op": "add_a"}, "y": {"op": "add_b"}}
    result = await run("s>d d>x:one d>y:two x>e y>e", nodes, agents=AGENTS, tools=TOOLS, models={"m": model})
    assert result.output == "keptb"


async def test_e38_an_agent_merges() -> None:
    """The inputs stand in its prompt; its failure is the merge's."""
    nodes: dict[str, Any] = {"m": {**CLERK, "merge": {"strategy": "agent"}}, "x": {"op": "add_a"}}
    edges = "s>b b>x b>y x>m y>m m>e"
    model = ScriptedProvider('"both"', ProviderUnavailable("away"))
    async with Engine(project(edges, nodes, agents=AGENTS, tools=TOOLS), models={"m": model}) as made:
        merged, failed = await made.run("-"), await made.run("-")
    assert merged.output == "both" and '"-a"' in model.requests[0].messages[1].content
    assert failed.error and (failed.error["code"], failed.error["stage"]) == ("provider_error", "m")


class RecordingLog:
    """A log that keeps the records of one run."""

    def __init__(self) -> None:
        self.records: list[JsonObject] = []

    async def commit(self, task_id: str, records: Sequence[JsonObject]) -> None:
        self.records += records


async def test_e53_an_agent_that_merges_replays_too() -> None:
    """It is asked the same in every run: neither times nor ids of the run stand in its prompt."""
    nodes: dict[str, Any] = {"m": {**CLERK, "merge": {"strategy": "agent"}}, "y": {"op": "fail"}}
    made = project("s>b b>x b>y x>m y>m m>e", nodes, agents=AGENTS, tools=TOOLS)
    model, log = ScriptedProvider('"one"'), RecordingLog()
    async with Engine(made, models={"m": model}, log=log, journal=Recorder()) as engine:
        result = await engine.run("-")
    stored = Recording.from_records(TaskProjection(made.plan(), result.task_id), log.records, result.status)
    replay = Replay(stored.stages)
    async with Engine(made, models={"m": model}, log=replay, journal=replay) as engine:
        told = replay.report(await engine.run("-"))
    assert told["divergence"] is None and told["output"] == result.output == "one"


async def test_a_replay_waits_for_operations_that_take_long() -> None:
    """Concurrent subtasks replay one after the other: together they may take longer than a stalled replay."""
    made, log = project("s>p p>x x>e", {"x": {"op": "nap"}}), RecordingLog()
    async with Engine(made, log=log, journal=Recorder()) as engine:
        result = await engine.run([1, 2, 3, 4])
    stored = Recording.from_records(TaskProjection(made.plan(), result.task_id), log.records, result.status)
    replay = Replay(stored.stages, stall_seconds=0.02)
    async with Engine(made, log=replay, journal=replay) as engine:
        told = replay.report(await engine.run([1, 2, 3, 4]))
    assert (result.status, told["divergence"], told["reproduced"]) == ("success", None, True)


async def test_an_agent_node_may_name_an_agent_of_the_runtime() -> None:
    """One run of it, in the workflow's run, without a stored conversation."""
    asked: list[Any] = []

    async def run_agent(
        agent: str, query: str, context: Mapping[str, Any], parent: ToolContext, terms: NestedRunOptions
    ) -> Mapping[str, Any]:
        asked.append((agent, query, parent.run_id, terms.history))
        return {"response": '{"risk": 5}', "metadata": {"usage": {"input_tokens": 3}}}

    nodes: dict[str, Any] = {"x": {"kind": "agent", "agent": "support", "schema_out": SCHEMA}}
    result = await run("s>x x>e", nodes, "Help", run_agent=run_agent)
    assert result.output == {"risk": 5} and asked == [("support", "Help", "T", ())]
    assert states(result) == {"": "ended"}
