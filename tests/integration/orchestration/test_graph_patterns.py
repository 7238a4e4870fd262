"""plan_and_execute, parallel_fan_out, pipeline and autonomous: what each does when things go wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import ProviderUnauthorized
from astromesh.testing import RecordingSink, Reply, ScriptedProvider, plugin_of
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.orchestration.pattern_cases import CASES, LOOK, QUESTION, Case, by_words, runtime_for

BODY = {"query": QUESTION, "session_id": "s"}
UNFINISHED = "I could not finish this within the limits that are set for me."
DOWN = ProviderUnauthorized("no")
MEMORY = {"conversational": {"backend": "sqlite"}}


# -- plan_and_execute --------------------------------------------------------------------------------------

PLAN = CASES["plan_and_execute"]


async def test_a_failed_step_is_planned_anew_with_what_is_known(tmp_path: Path) -> None:
    """The second plan knows what was done and what failed, and why."""
    script = ["1. a\n2. b", "did a", "FAILED: no data", "1. c", "did c", "answer"]
    runtime, provider = runtime_for(tmp_path, PLAN, script)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "answer"
    assert (answer.metadata["plan"], answer.metadata["replans"]) == (["c"], 1)
    planning = provider.requests[3].messages[-1].content
    assert "Done: a\ndid a" in planning and "Failed: b\nno data" in planning
    assert "did a" in provider.requests[4].messages[-1].content


@pytest.mark.parametrize(
    ("said", "replans"), [("FAILED", 1), ("**FAILED:** no data", 1), ("FAILED_LOGINS has 3 rows", 0)]
)
async def test_a_step_fails_by_the_word_and_not_by_a_name_that_begins_with_it(
    tmp_path: Path, said: str, replans: int
) -> None:
    script = ["1. a\n2. b", said, "1. c\n2. d", "did d", "answer", "answer"]
    runtime, _ = runtime_for(tmp_path, PLAN, script)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.metadata["replans"] == replans


async def test_when_no_plan_is_left_the_answer_says_what_was_found(tmp_path: Path) -> None:
    """`max_replans: 0`: the answer is written from the results so far and the failure."""
    script = ["1. a\n2. b", "did a", "FAILED: no data", "only a is known"]
    runtime, provider = runtime_for(tmp_path, PLAN, script, orchestration={"max_replans": 0})
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "only a is known"
    assert "no data" in provider.requests[-1].messages[0].content


async def test_a_plan_of_one_step_is_carried_out_as_the_answer(tmp_path: Path) -> None:
    """Also where the model wrote no plan: one call more than react, and the answer streams."""
    runtime, provider = runtime_for(tmp_path, PLAN, ["I cannot plan.", LOOK, "Tea costs 3."])
    sink = RecordingSink()
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s", sinks=[sink])
    assert answer.response == "Tea costs 3."
    assert answer.metadata["plan"] == [QUESTION]
    assert [m.content for m in provider.requests[1].messages] == ["You are helper. Helps.", QUESTION]


@pytest.mark.parametrize(
    ("script", "calls", "reason"),
    [
        ((LOOK, "Tea costs 3."), 2, "completed"),
        (("1. a\n2. b", "did a", "did b", LOOK, "Tea costs 3."), 5, "completed"),
        (("1. a\n2. b", "did a", "did b", *[LOOK] * 2), 5, "max_iterations"),
    ],
)
async def test_planner_and_answer_that_ask_for_tools_they_lack_are_bounded(
    tmp_path: Path, script: tuple[Any, ...], calls: int, reason: str
) -> None:
    """The planner's call of a tool is no plan; the answer's is refused, `max_iterations` times."""
    runtime, provider = runtime_for(tmp_path, PLAN, script, orchestration={"max_iterations": 2})
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (len(provider.requests), answer.metadata["stop_reason"]) == (calls, reason)
    assert answer.metadata["tools_called"].count("lookup") <= 2
    assert answer.response == ("Tea costs 3." if reason == "completed" else UNFINISHED)


async def test_max_iterations_bounds_each_step_by_itself(tmp_path: Path) -> None:
    """Two calls for the first step, two for the second; a third one of a step is not made."""
    script = ["1. a\n2. b", LOOK, "did a", LOOK, Reply("still looking", [LOOK])]
    runtime, provider = runtime_for(tmp_path, PLAN, script, orchestration={"max_iterations": 2})
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.metadata["stop_reason"] == "max_iterations"
    assert answer.response == "still looking"
    assert len(provider.requests) == len(script)


# -- parallel_fan_out --------------------------------------------------------------------------------------


def fan_out(*names: str, merge: str = "concat", **more: Any) -> Case:
    branches = [{"name": name, "prompt": f"You are {name}."} for name in names]
    orchestration = {"pattern": "parallel_fan_out", "branches": branches, "merge": merge, **more}
    return Case(orchestration, (), "", frozenset(), 0)


async def test_branches_run_at_once_and_see_nothing_of_each_other(tmp_path: Path) -> None:
    """The second is asked before the first has answered; order of the answers is that of the branches."""
    both = asyncio.Barrier(2)

    async def say(request: Any) -> str:
        await both.wait()
        return "I am first" if "You are first." in request.messages[0].content else "I am other"

    runtime, provider = runtime_for(tmp_path, fan_out("first", "other"), [say, say])
    async with runtime, asyncio.timeout(10):
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "## first\n\nI am first\n\n## other\n\nI am other"
    assert [len(r.messages) for r in provider.requests] == [2, 2]


async def test_a_branch_that_fails_does_not_sink_the_rest(tmp_path: Path) -> None:
    """It is named in the metadata with its error."""
    line = by_words(one=DOWN, two="from two")
    runtime, _ = runtime_for(tmp_path, fan_out("one", "two"), [line, line])
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "from two"
    failed, well = sorted(answer.metadata["branches"], key=lambda b: b["ok"])
    assert (failed["name"], well["name"]) == ("one", "two")
    assert failed["error"]


@pytest.mark.parametrize("merge", ["concat", "vote"])
async def test_a_branch_that_says_nothing_wins_no_vote(tmp_path: Path, merge: str) -> None:
    line = by_words(one=" ", two="", three="from three")
    runtime, _ = runtime_for(tmp_path, fan_out("one", "two", "three", merge=merge), [line] * 3)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert answer.response == "from three"
    assert [branch["ok"] for branch in answer.metadata["branches"]] == [True, False, False]


async def test_a_branch_at_its_limit_is_one_that_failed(tmp_path: Path) -> None:
    """Where all are, the run says so."""
    case = fan_out("one", "two", max_iterations=1)
    line = by_words(one=LOOK, two="from two")
    tools = CASES["plan_and_execute"].spec
    runtime, _ = runtime_for(tmp_path / "some", case, [line, line], **tools)
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == "from two"
    runtime, provider = runtime_for(tmp_path / "all", case, [LOOK, LOOK], **tools)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.metadata["stop_reason"], len(provider.requests)) == ("max_iterations", 2)
    assert answer.response == UNFINISHED


@pytest.mark.parametrize(
    ("verdict", "chosen"), [('{"best": 2}', "two"), ("neither, really", "one"), (LOOK, "one"), (DOWN, "one")]
)
async def test_the_judge_picks_and_where_it_does_not_the_vote_decides(
    tmp_path: Path, verdict: Any, chosen: str
) -> None:
    """The judge sees question and answers, no tools and nothing of the branches' work."""
    line = by_words(**{"You are one.": "from one", "You are two.": "from two"})
    runtime, provider = runtime_for(tmp_path, fan_out("one", "two", merge="judge"), [line, line, verdict])
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.response, answer.metadata["chosen"]) == (f"from {chosen}", chosen)
    assert provider.requests[2].role == "judge"
    assert (
        provider.requests[2].messages[-1].content.startswith(f"Question: {QUESTION}\n\n## Answer 1\nfrom one")
    )


async def test_the_vote_takes_what_most_say(tmp_path: Path) -> None:
    case = fan_out("one", "two", "three", merge="vote")
    line = by_words(**{"You are one.": "Two", "You are two.": "Three.", "You are three.": "three"})
    runtime, _ = runtime_for(tmp_path, case, [line] * 3)
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == "Three."


async def test_branches_have_models_and_roles_of_their_own(tmp_path: Path) -> None:
    """A role of the agent, a block, a name: each branch asks its own model."""
    models = {
        name: ScriptedProvider(f"I am {name}", name=f"{name}/m") for name in ("scripted", "red", "blue")
    }
    branches: list[dict[str, Any]] = [
        {},
        {"role": "careful"},
        {"model": "red/m"},
        {"name": "block", "model": {"provider": "red", "model": "other"}},
    ]
    model = {
        "primary": {"provider": "scripted", "model": "m"},
        "roles": {"careful": {"primary": {"provider": "blue", "model": "m"}}},
    }
    models["red"] = ScriptedProvider("I am red", "I am the block", name="red/m")
    agent = manifest(orchestration={"pattern": "parallel_fan_out", "branches": branches}, model=model)
    plugins = {"providers": {name: plugin_of(provider) for name, provider in models.items()}}
    runtime = runtime_of(write(tmp_path, agent), models["scripted"], plugins=plugins)
    async with runtime:
        assert runtime.broken == {}
        answer = await runtime.run("helper", QUESTION, "s")
    for line in (
        "## branch 1\n\nI am scripted",
        "## careful\n\nI am blue",
        "## red:m\n\nI am red",
        "## block",
    ):
        assert line in answer.response


# -- pipeline ----------------------------------------------------------------------------------------------


async def test_each_output_is_the_next_ones_input(tmp_path: Path) -> None:
    """A stage sees the question and the result before it, not how that came about; its prompt is its own."""
    runtime, provider = runtime_for(tmp_path, CASES["pipeline"], CASES["pipeline"].script)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    system, question = provider.requests[2].messages
    assert "Write." in system.content and "Find." not in system.content
    assert question.content == f"{QUESTION}\n\n## Result of find\ntea: 3"
    assert answer.metadata["stages"] == ["find", "write"]


async def test_a_stage_at_its_limit_ends_the_run(tmp_path: Path) -> None:
    """No later stage builds on what is not there."""
    case = CASES["pipeline"]
    runtime, provider = runtime_for(tmp_path, case, [LOOK], orchestration={"max_iterations": 1})
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.metadata["stop_reason"], len(provider.requests)) == ("max_iterations", 1)


# -- autonomous --------------------------------------------------------------------------------------------

FREE = CASES["autonomous"]


async def test_a_node_that_fails_is_told_to_the_model(tmp_path: Path) -> None:
    """It chooses again, knowing that."""
    script = ['{"next_node": "look"}', DOWN, '{"next_node": "end"}', "Nothing found."]
    runtime, provider = runtime_for(tmp_path, FREE, script)
    async with runtime:
        assert (await runtime.run("helper", QUESTION, "s")).response == "Nothing found."
    assert "look failed" in provider.requests[2].messages[0].content


async def test_a_model_that_cannot_choose_is_helped_on(tmp_path: Path) -> None:
    """Asked twice, then the node that fits runs; at the end the terminal one has answered."""
    runtime, provider = runtime_for(tmp_path, FREE, ["hm", "hm", "tea: 3", "hm", "hm", "Tea costs 3."])
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.response, answer.metadata["stop_reason"]) == ("Tea costs 3.", "completed")
    assert len(provider.requests) == 6


@pytest.mark.parametrize("bound", [{"max_steps": 2}, {"max_iterations": 3}])
async def test_steps_and_iterations_bound_it(tmp_path: Path, bound: dict[str, int]) -> None:
    """`max_steps` counts choices, `max_iterations` node executions; the last words are the answer."""
    script = ['{"next_node": "look"}', "tea: 3"] * 4
    runtime, provider = runtime_for(tmp_path, FREE, script, orchestration=bound)
    async with runtime:
        answer = await runtime.run("helper", QUESTION, "s")
    assert (answer.metadata["stop_reason"], answer.response) == ("max_iterations", "tea: 3")
    assert len(provider.requests) <= 5
