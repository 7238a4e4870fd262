"""The rules R1 to R7 and the decisions about branches, splits and merges, each on a workflow of its own."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.testing import RecordingSink
from astromesh.workflow import Engine
from tests.unit.workflow.samples import project, run, states

A, B, C, D = ({"op": f"add_{letter}"} for letter in "abcd")
BAD: dict[str, Any] = {"op": "fail"}
FORK = "s>b b>x b>y x>m y>m m>e"


# -- merges and their scopes ---------------------------------------------------------------------------------


async def test_r1_a_forked_task_has_no_token_until_it_is_resolved() -> None:
    """Between the fork and the merge the Task itself begins no stage; its children do."""
    sink = RecordingSink()
    await Engine(project(FORK, {}), new_id=lambda: "T").run("-", sinks=[sink])
    told = [(e.type, e.data["task"]) for e in sink.events if e.type in ("stage.started", "task.cloned",
            "merge.fired")]  # fmt: skip
    forked, merged = told.index(("task.cloned", "T")), told.index(("merge.fired", "T"))
    assert {task for _, task in told[forked + 1 : merged]} == {"T/b:x", "T/b:y"}


async def test_r2_the_scope_of_a_merge_is_the_nearest_task_that_executed_its_anchor() -> None:
    """Tokens of inner clones go to the Task of the outer fork; those of a split in a clone to that clone."""
    outer = await run("s>b b>x b>b2 b2>u b2>v x>m u>m v>m m>e")
    assert [entry.task for entry in outer.history["m"]] == [""]
    inner = await run("s>b b>x b>p p>u p>v u>m2 v>m2 m2>m x>m m>e", {"x": {"op": "all_of_it"}}, [1, 2])
    assert [entry.task for entry in inner.history["m2"]] == ["/b:p"]
    assert [entry.task for entry in inner.history["m"]] == [""]


async def test_r3_a_merge_does_not_wait_for_dead_paths() -> None:
    """One arm failed and one has gone to its own exit: the merge fires with the other two."""
    edges = "s>b b>x b>y b>d b>z d>m:on d>e2:off x>m y>m z>m m>e"
    result = await run(edges, {"d": {"op": "turn_off"}, "z": BAD})
    assert [one["stage_id"] for one in result.history["m"][0].input["inputs"]] == ["x", "y"]


@pytest.mark.parametrize(
    ("edges", "nodes", "input", "status", "output"),
    [
        ("s>b b>x b>y x>e y>e2", {"x": BAD, "y": B}, "-", "success", "-b"),
        ("s>b b>x b>y b>z x>e2 y>m z>m m>e", {"x": A}, "-", "success", ["-", "-"]),
        ("s>b b>x b>y x>e y>e2", {"x": BAD, "y": BAD}, "-", "failure", None),
        ("s>p p>x x>e", {}, [1, 2], "success", 2),
        ("s>b b>p b>y p>u p>v u>m v>m y>m m>e", {}, [1, 2], "success", [1, 2, [1, 2]]),
    ],
    ids=["first success", "merged before early exit", "no success", "all subtasks", "children merged upward"],
)
async def test_r6_how_a_forked_task_is_resolved(
    edges: str, nodes: Any, input: Any, status: str, output: Any
) -> None:
    result = await run(edges, nodes, input)
    found = result.output
    if isinstance(found, dict):
        found = len(found["subtasks"])
    assert (result.status, found) == (status, output)


async def test_r6_of_two_merged_clones_the_merge_that_is_declared_first_wins() -> None:
    """Its first inbound edge decides, not the place of its inputs among the edges of the branch."""
    edges = "s>b b>x b>y b>u b>v u>m1 v>m1 x>m2 y>m2 m1>e m2>e2"
    result = await run(edges, {"x": A, "y": B, "u": C, "v": D}, "-")
    assert result.output == ["-c", "-d"]


@pytest.mark.parametrize(
    ("edges", "nodes", "status"),
    [
        ("s>x x>e", {}, "success"),
        ("s>x x>e", {"x": BAD}, "failure"),
        ("s>x x>e", {"x": {**BAD, "continue_on_failure": True}}, "partial"),
        (FORK, {"y": BAD}, "partial"),
        (FORK, {"x": BAD, "y": BAD}, "failure"),
        ("s>b b>x b>y x>e y>e", {"x": {**BAD, "continue_on_failure": True}, "y": BAD}, "partial"),
        ("s>x x>y y>e", {"x": {**BAD, "continue_on_failure": True}, "y": BAD}, "failure"),
    ],
)
async def test_r7_a_status_only_ever_gets_worse(edges: str, nodes: Any, status: str) -> None:
    assert (await run(edges, nodes)).status == status


async def test_r5_a_closing_merge_resumes_the_task_that_forked() -> None:
    """The children become merged, and the Task itself goes on with the list of their outputs."""
    result = await run(FORK, {"x": A, "y": B}, "-")
    assert (result.status, result.output) == ("success", ["-a", "-b"])
    assert states(result) == {"": "ended", "/b:x": "merged", "/b:y": "merged"}


async def test_e1_nested_branches_close_from_the_inside() -> None:
    """The inner merge closes first, and its clone is one input of the outer one."""
    edges = "s>b b>x b>b2 b2>u b2>v u>m2 v>m2 m2>m x>m m>e"
    result = await run(edges, {"x": A, "u": C, "v": D})
    assert result.output == [["c", "d"], "a"], "the edge m2>m is declared before x>m"


async def test_e1_without_an_inner_merge_the_inner_clones_are_inputs_of_the_outer_one() -> None:
    """Inputs are a, c, d; the inner parent becomes merged with its children."""
    result = await run("s>b b>x b>b2 b2>u b2>v x>m u>m v>m m>e", {"x": A, "u": C, "v": D})
    assert result.output == ["a", "c", "d"]
    assert states(result)["/b:b2"] == "merged"


async def test_e2_a_merge_of_a_split_inside_a_clone_resumes_the_clone() -> None:
    """The clone arrives at the outer merge as one input."""
    result = await run("s>b b>x b>p p>u p>v u>m2 v>m2 m2>m x>m m>e", {"x": {"op": "all_of_it"}}, [1, 2, 3])
    assert result.output == [[1, 3, 2], [1, 2, 3]]


async def test_e3_a_decision_between_two_merges_is_waited_for_by_the_chosen_one_only() -> None:
    """Both merges anchor at the branch; the one whose arm was not chosen fires with the others."""
    edges = "s>b b>x b>d b>y d>m1:one d>m2:two x>m1 y>m2 m1>e m2>e"
    result = await run(edges, {"x": A, "y": B}, "one")
    fired = {entry.stage: [one["stage_id"] for one in entry.input["inputs"]] for entry in result.trace
             if entry.node in ("m1", "m2")}  # fmt: skip
    assert fired == {"m1": ["d", "x"], "m2": ["y"]}
    assert result.output == ["one", "onea"], "both are merged clones; R6 takes the first by edge order"


async def test_e4_a_partial_merge_makes_a_merged_clone() -> None:
    """a and b merge into a clone of the parent, which is one input of the closing merge beside c."""
    result = await run("s>b b>x b>y b>z x>m1 y>m1 m1>m2 z>m2 m2>e", {"x": A, "y": B, "z": C})
    assert result.output == [["a", "b"], "c"]
    merged = next(task for task in result.tasks if task["lineage"] == "merge")
    assert merged["merged_from"] == ["T/b:x", "T/b:y"] and merged["state"] == "merged"


async def test_e5_arms_of_a_decision_join_in_the_task_itself() -> None:
    """An XOR join has one input, and there is no clone."""
    result = await run("s>d d>x:one d>y:two x>m y>m m>e", {"x": A, "y": B}, "two")
    assert result.output == ["twob"] and len(result.tasks) == 1


async def test_e6_a_fork_inside_a_decision_arm_reaches_the_join_directly() -> None:
    """The anchor is the decision, the scope the Task that took it."""
    edges = "s>d d>b:fork d>y:plain b>x b>z x>m z>m y>m m>e"
    forked = await run(edges, {"x": A, "z": C, "y": B}, "fork")
    assert forked.output == ["forka", "forkc"]
    plain = await run(edges, {"x": A, "z": C, "y": B}, "plain")
    assert plain.output == ["plainb"]


async def test_e7_an_early_exit_counts_only_if_nothing_merged_succeeds() -> None:
    """One arm exits while the others merge: the merged result wins; if that fails, the early exit does."""
    edges = "s>b b>x b>y b>z z>e x>m y>m m>t t>e2"
    good = await run(edges, {"x": A, "y": B, "z": C})
    assert good.output == ["a", "b"]
    failed = await run(edges, {"x": A, "y": B, "z": C, "t": BAD})
    assert failed.output == "c"


async def test_e29_a_branch_leads_directly_into_a_merge() -> None:
    """That clone arrives with the branch's own output."""
    result = await run("s>b b>m b>x x>m m>e", {"x": A}, "-")
    assert result.output == ["-", "-a"]


async def test_r4_inputs_come_in_the_order_of_edges_then_items() -> None:
    """Items go round robin over two occurrences: those of the first edge come first."""
    result = await run("s>p p>x p>x#2 x>m x#2>m m>e", {}, [0, 1, 2, 3, 4])
    assert result.output == [0, 2, 4, 1, 3]


async def test_e34_an_input_says_who_it_comes_from() -> None:
    result = await run(FORK, {"x": A, "y": BAD, "m": {"op": "all_of_it"}}, "-")
    (given,), (failure,) = result.output["inputs"], result.output["failures"]
    wanted = {"task_id": "T/b:x", "node_id": "x", "stage_id": "x", "edge": "m", "index": 0, "output": "-a"}
    wanted |= {"status": "success", "lineage": "clone"}
    assert {key: given[key] for key in wanted} == wanted
    assert given["finished_at"] >= given["started_at"]
    assert failure["task_id"] == "T/b:y" and failure["error"]["code"] == "operation_error"


async def test_e34_the_merge_s_schema_sees_inputs_and_failures() -> None:
    schema = {"type": "object", "properties": {"inputs": {"maxItems": 1}}, "required": ["inputs", "failures"]}
    result = await run(FORK, {"m": {"schema_in": schema}})
    assert result.status == "failure" and result.error and result.error["code"] == "invalid_input"


# -- failures and merges -------------------------------------------------------------------------------------


async def test_e32_a_failed_input_is_excluded_and_makes_the_task_partial() -> None:
    result = await run(FORK, {"x": A, "y": BAD})
    assert (result.status, result.output) == ("partial", ["a"])


async def test_e32_halt_fails_the_merge_after_waiting() -> None:
    """Its operation does not run, and it did wait for the good input."""
    result = await run(FORK, {"x": A, "y": BAD, "m": {"merge": {"on_failure": "halt"}}})
    assert result.status == "failure" and result.error and result.error["code"] == "halted"
    assert result.path.index("x") < result.path.index("m")


async def test_e33_without_a_successful_input_the_task_fails() -> None:
    result = await run(FORK, {"x": BAD, "y": BAD})
    assert result.error and (result.error["code"], result.error["stage"]) == ("no_successful_inputs", "m")


async def test_e33_with_min_success_0_the_merge_runs_with_nothing() -> None:
    nodes: dict[str, Any] = {"x": BAD, "y": BAD, "m": {"op": "count_inputs", "merge": {"min_success": 0}}}
    result = await run(FORK, nodes)
    assert (result.status, result.output) == ("partial", {"inputs": 0, "failures": 2})


async def test_e33_too_few_successful_inputs_fail_the_merge() -> None:
    result = await run(FORK, {"y": BAD, "m": {"merge": {"min_success": 2}}})
    assert result.error and result.error["code"] == "no_successful_inputs"


async def test_e35_a_partial_child_is_a_successful_input_and_makes_the_result_partial() -> None:
    result = await run(
        FORK, {"x": {**BAD, "continue_on_failure": True}, "y": B, "m": {"op": "all_of_it"}}, "-"
    )
    assert result.status == "partial"
    assert [one["status"] for one in result.output["inputs"]] == ["partial", "success"]
    assert result.output["inputs"][0]["output"] == "-", "E42: the previous output is kept"


async def test_e41_a_failure_before_a_merge_ends_only_that_task() -> None:
    result = await run("s>b b>x b>y x>t t>m y>m m>e", {"x": BAD, "y": B})
    assert states(result)["/b:x"] == "ended" and result.output == ["b"]
    assert "t" not in result.path


# -- branches without a merge --------------------------------------------------------------------------------

RACE = "s>b b>x b>y x>e1 y>e2"


async def test_e21_in_sequential_mode_the_first_edge_wins() -> None:
    result = await run(RACE, {"x": A, "y": B}, scheduler={"scheduler": {"max_stage_concurrency": 1}})
    assert result.output == "a" and states(result)["/b:y"] == "cancelled"


async def test_e22_a_failed_sibling_is_only_logged() -> None:
    result = await run(RACE, {"x": BAD, "y": B})
    assert (result.status, result.output) == ("success", "b")


async def test_e22_clone_failures_partial_degrades_the_task() -> None:
    result = await run(RACE, {"x": BAD, "y": B}, status={"clone_failures": "partial"})
    assert result.status == "partial"


async def test_e20_a_clone_at_an_error_exit_is_no_success() -> None:
    result = await run(RACE, {"x": A, "y": B, "e1": {"always_fail": True}})
    assert (result.status, result.output) == ("success", "b")


async def test_e20_no_successful_clone_fails_the_task() -> None:
    result = await run(RACE, {"x": BAD, "y": BAD})
    assert result.status == "failure" and result.error and result.error["code"] == "no_successful_child"


async def test_e19_wait_all_lets_the_others_finish_without_changing_the_result() -> None:
    nodes: dict[str, Any] = {"x": A, "y": B, "b": {"branch": {"on_exit": "wait_all"}}}
    result = await run(RACE, nodes, scheduler={"scheduler": {"max_stage_concurrency": 1}})
    assert result.output == "a" and states(result) == {"": "ended", "/b:x": "ended", "/b:y": "ended"}


async def test_e23_clones_start_with_copies_of_the_branch_s_output() -> None:
    """What one clone's operation changes in place, the other does not see."""
    result = await run(FORK, {"x": {"op": "change_in_place"}, "y": {"op": "echo"}}, {"n": 1})
    assert result.output == [{"n": 1, "changed": True}, {"n": 1}]
    assert result.trace[0].output == {"n": 1}, "nor does the history"


async def test_e23_a_failed_branch_makes_no_clones() -> None:
    result = await run(FORK, {"b": BAD})
    assert result.status == "failure" and len(result.tasks) == 1


# -- splits --------------------------------------------------------------------------------------------------

SPLIT = "s>p p>x x>e"


async def test_e24_items_become_input_and_current_output_of_subtasks() -> None:
    result = await run(SPLIT, {}, [10, 20])
    assert [one["output"] for one in result.output["subtasks"]] == [10, 20]
    assert [one["index"] for one in result.output["subtasks"]] == [0, 1]


async def test_e24_per_edge_makes_one_subtask_for_each_edge() -> None:
    """By the edge's label where the output has it, else with the whole output."""
    nodes: dict[str, Any] = {"p": {"op": "per_label", "split": {"mode": "per_edge"}}}
    result = await run("s>p p>x:left p>y x>e y>e", nodes)
    assert [one["output"] for one in result.output["subtasks"]] == [1, {"left": 1, "other": 2}]


async def test_e25_zero_items_fail_the_stage_by_default() -> None:
    result = await run(SPLIT, {}, [])
    assert result.error and result.error["code"] == "empty_split"


async def test_e25_zero_items_may_go_on_to_the_closing_merge() -> None:
    nodes: dict[str, Any] = {"p": {"split": {"on_empty": "continue"}}, "m": {"op": "count_inputs"}}
    result = await run("s>p p>x p>y x>m y>m m>e", nodes, [])
    assert (result.status, result.output) == ("success", {"inputs": 0, "failures": 0})


async def test_e25_zero_items_without_a_merge_are_a_success() -> None:
    result = await run(SPLIT, {"p": {"split": {"on_empty": "continue"}}}, [])
    assert (result.status, result.output) == ("success", {"subtasks": []})


async def test_e26_a_malformed_split_is_a_failure_of_the_stage() -> None:
    result = await run(SPLIT, {"p": {"op": "malformed"}})
    assert result.error and result.error["code"] == "malformed_split"


async def test_e27_some_failed_subtasks_make_the_task_partial() -> None:
    result = await run(SPLIT, {"x": {"op": "fail_if_bad"}}, ["good", "bad"])
    assert result.status == "partial"
    assert [one["status"] for one in result.output["subtasks"]] == ["success", "failure"]
    assert result.output["subtasks"][1]["error"]["code"] == "operation_error"


async def test_e27_all_failed_subtasks_fail_the_task() -> None:
    result = await run(SPLIT, {"x": {"op": "fail_if_bad"}}, ["bad", "bad"])
    assert result.status == "failure" and result.error and result.error["code"] == "no_successful_child"


async def test_e27_subtask_failures_may_only_be_logged() -> None:
    result = await run(
        SPLIT, {"x": {"op": "fail_if_bad"}}, ["good", "bad"], status={"subtask_failures": "log"}
    )
    assert result.status == "success"


async def test_e27_fail_fast_cancels_the_rest() -> None:
    nodes: dict[str, Any] = {"p": {"split": {"on_failure": "fail_fast"}}, "x": {"op": "fail_if_bad"}}
    result = await run(
        SPLIT, nodes, ["good", "bad", "good"], scheduler={"scheduler": {"max_stage_concurrency": 1}}
    )
    assert states(result)["/p:x[2]"] == "cancelled"
    assert result.output["subtasks"][2]["error"]["code"] == "cancelled"


async def test_e28_no_further_exit_runs_for_the_parent_of_subtasks() -> None:
    result = await run(SPLIT, {}, [1, 2])
    assert result.path.count("e") == 2


# -- limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "task"),
    [
        ({"p": {"split": {"max_subtasks": 2}}}, {}),
        ({}, {"max_live_tasks": 3}),
    ],
)
async def test_e18_too_many_subtasks_fail_the_stage(nodes: Any, task: Any) -> None:
    result = await run(SPLIT, nodes, [1, 2, 3], **task)
    assert result.status == "failure" and result.error and result.error["code"] == "limit_exceeded"
    assert result.error["stage"] == "p" and len(result.tasks) == 1
    assert "'p'" in result.error["message"]


async def test_e18_forks_may_be_max_depth_deep() -> None:
    result = await run("s>b b>x b>b2 b2>u b2>v x>m u>m v>m m>e", {"x": A}, max_depth=1)
    assert states(result)["/b:b2"] == "ended" and (result.status, result.output) == ("partial", ["a"])
    failed = next(entry for entry in result.trace if entry.error)
    assert failed.error and "'b2'" in failed.error["message"] and "task.max_depth" in failed.error["message"]


# -- decisions -----------------------------------------------------------------------------------------------

CHOICE = "s>d d>x:one d>y x>e y>e"


async def test_e39_the_output_key_becomes_the_current_output() -> None:
    result = await run(CHOICE, {"x": A}, {"selected_edge": "one", "output": "kept"})
    assert result.output == "kepta"


async def test_e39_without_an_output_key_the_whole_object_is_passed_on() -> None:
    result = await run(CHOICE, {}, {"selected_edge": "one", "why": "so"})
    assert result.output == {"selected_edge": "one", "why": "so"}


async def test_e39_other_keys_select_only_where_declared() -> None:
    result = await run(CHOICE, {"d": {"selection_key": "way"}}, {"way": "one"})
    assert result.status == "success"
    refused = await run(CHOICE, {}, {"way": "one"})
    assert refused.error and refused.error["code"] == "invalid_decision"


async def test_e9_an_edge_without_a_label_is_selected_by_its_target() -> None:
    result = await run(CHOICE, {}, "y")
    assert "y" in result.path


async def test_e40_an_invalid_selection_fails_the_task() -> None:
    result = await run(CHOICE, {}, "nowhere")
    assert result.status == "failure" and result.error
    assert result.error["code"] == "invalid_decision" and "'one'" in result.error["message"]


async def test_e40_a_default_edge_is_taken_where_declared() -> None:
    nodes: dict[str, Any] = {"d": {"default_edge": "one", "continue_on_failure": True}}
    result = await run(CHOICE, nodes, "nowhere")
    assert (result.status, result.output) == ("partial", "nowhere")


# -- failures, exits, status ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["s", "x"])
async def test_e42_a_stage_may_go_on_with_the_previous_output(stage: str) -> None:
    result = await run("s>x x>e", {stage: {**BAD, "continue_on_failure": True}}, "kept")
    assert (result.status, result.output) == ("partial", "kept")
    assert next(e for e in result.trace if e.stage == stage).status == "failure"


async def test_e42_a_branch_may_go_on_with_the_previous_output() -> None:
    result = await run(FORK, {"b": {**BAD, "continue_on_failure": True}}, "kept")
    assert (result.status, result.output) == ("partial", ["kept", "kept"])


async def test_task_failure_continue_is_the_default_of_nodes_that_can() -> None:
    assert (await run("s>x x>e", {"x": BAD}, "kept", failure="continue")).status == "partial"
    told = {"x": {**BAD, "continue_on_failure": False}}
    assert (await run("s>x x>e", told, "kept", failure="continue")).status == "failure"


async def test_e43_a_failure_does_not_jump_to_an_error_exit_by_itself() -> None:
    result = await run("s>d d>x:one d>e2:two x>e", {"x": BAD, "e2": {"always_fail": True}}, "one")
    assert result.status == "failure" and "e2" not in result.path


async def test_e43_a_declared_error_exit_finalizes_the_failed_task() -> None:
    nodes: dict[str, Any] = {"x": {**BAD, "on_failure": "e2"}, "e2": {"always_fail": True}}
    result = await run("s>x x>e", nodes, "input")
    assert (result.status, result.path) == ("failure", ("s", "x", "e2"))
    assert result.error and (result.error["code"], result.error["stage"]) == ("operation_error", "x")


async def test_e20_an_error_exit_fails_the_task() -> None:
    result = await run("s>e", {"e": {"always_fail": True}}, "x")
    assert result.status == "failure" and result.error and result.error["code"] == "error_exit"
    assert result.output == "x"


async def test_e44_an_exit_formats_and_cannot_change_the_task() -> None:
    result = await run("s>x x>e", {"e": {"op": "change_in_place"}}, {"n": 1})
    assert result.output == {"n": 1, "changed": True}
    assert result.trace[1].output == {"n": 1}


async def test_e44_a_failed_exit_fails_the_task_with_the_unformatted_output() -> None:
    result = await run("s>e", {"e": BAD}, {"n": 1})
    assert result.status == "failure" and result.error and result.error["output"] == {"n": 1}


async def test_e45_the_status_is_computed_before_the_exit_and_never_gets_better() -> None:
    nodes: dict[str, Any] = {"x": {**BAD, "continue_on_failure": True}, "y": B}
    result = await run("s>x x>y y>e", nodes, "-")
    assert (result.status, result.output) == ("partial", "-b")


# -- starts --------------------------------------------------------------------------------------------------


async def test_e12_starts_may_share_stages_and_merges_get_what_their_start_can_send() -> None:
    edges = "s>b b>x b>y x>m y>m s2>m m>e"
    assert (await run(edges, {"x": A, "y": B}, "-")).output == ["-a", "-b"]
    assert (await run(edges, {"x": A, "y": B}, "-", start="s2")).output == ["-"]


# -- strategies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "items", "merged"),
    [
        ("list", [1, 2], [1, 2]),
        ("first", [1, 2], 1),
        ("concat", [[1], [2, 3]], [1, 2, 3]),
        ("concat", ["a", "b"], "a\nb"),
        ("concat", [[1], 2], [1, 2]),
        ("majority", [1, 2, 2], 2),
        ("majority", [{"a": 1, "b": 2}, 5, {"b": 2, "a": 1}], {"a": 1, "b": 2}),
        ("majority", [2, 1], 2),
    ],
)
async def test_merge_strategies(strategy: str, items: list[Any], merged: Any) -> None:
    """What comes out of the inputs in their order; of equally frequent ones the first wins."""
    edges = "s>p p>x p>x#2 p>x#3 x>m x#2>m x#3>m m>e"
    result = await run(edges, {"m": {"merge": {"strategy": strategy}}}, items)
    assert result.output == merged


def test_a_project_of_this_file_is_sound() -> None:
    """The helper refuses workflows with faults, so that no test runs on one by accident."""
    with pytest.raises(AssertionError):
        project("s>x x>e y>e")
