"""Pure: where the output of a stage sends Tasks, what a merge is given and refuses, what a policy answers."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.config.workflow import NodeSpec, PolicySpec
from astromesh.types import JsonObject
from astromesh.workflow.base import Entry, StageFault, Task
from astromesh.workflow.merge import STRATEGIES, merge_error, merge_input, without_run_fields
from astromesh.workflow.plan import Edge, Stage, decide, fork_children
from astromesh.workflow.tools import PolicyRequest, denial_reason


def node(role: str, **more: Any) -> NodeSpec:
    return NodeSpec.model_validate(
        {"id": "n", "kind": "deterministic", "role": role, "context": "none", **more}
    )


def stage(role: str, *labels: str, **more: Any) -> Stage:
    return Stage(
        "n", node(role, **more), tuple(Edge(i, "n", f"t{i}", label) for i, label in enumerate(labels))
    )


def fault(function: Any, of: Stage, output: Any) -> tuple[str, str]:
    with pytest.raises(StageFault) as raised:
        function(of, output)
    return raised.value.code, str(raised.value)


# -- decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "label", "passed_on"),
    [
        ({"selected_edge": "no", "output": 7}, "no", 7),
        ({"selected_edge": "yes", "why": "so"}, "yes", {"selected_edge": "yes", "why": "so"}),
        ({"selected_edge": "no", "output": None}, "no", None),
    ],
)
def test_e39_a_decision_goes_by_the_edge_that_it_names(output: Any, label: str, passed_on: Any) -> None:
    edge, value = decide(stage("decision", "yes", "no"), output)
    assert (edge.label, value) == (label, passed_on)


def test_e39_the_key_of_the_edge_may_be_another() -> None:
    edge, _ = decide(
        stage("decision", "yes", "no", selection_key="way"), {"way": "no", "selected_edge": "yes"}
    )
    assert edge.label == "no"


@pytest.mark.parametrize("output", ["yes", None, {}, {"selected_edge": 1}, {"way": "yes"}])
def test_e40_an_output_that_names_no_edge_is_no_decision(output: Any) -> None:
    assert fault(decide, stage("decision", "yes"), output) == (
        "invalid_decision",
        "The output must be an object with the text 'selected_edge'.",
    )


def test_e40_an_edge_that_is_not_there_is_told_with_those_that_are() -> None:
    told = fault(decide, stage("decision", "yes", "no"), {"selected_edge": "maybe"})
    assert told == ("invalid_decision", "There is no edge 'maybe'. Known edges: 'yes', 'no'.")


# -- forks ---------------------------------------------------------------------------------------------------


def children(of: Stage, output: Any) -> list[tuple[str, int, Any]]:
    return [(part.edge.label, part.position, part.value) for part in fork_children(of, output)]


def test_e23_a_branch_gives_every_edge_the_whole_output() -> None:
    assert children(stage("branch", "a", "b"), {"a": 1}) == [("a", 0, {"a": 1}), ("b", 0, {"a": 1})]


def test_e24_a_split_per_edge_gives_each_edge_its_own_value_or_the_whole() -> None:
    """That is how a split splits that says nothing else."""
    whole = {"a": 1}
    assert children(stage("split", "a", "b"), whole) == [("a", 0, 1), ("b", 1, whole)]
    assert children(stage("split", "a", "b"), "text") == [("a", 0, "text"), ("b", 1, "text")]


def items(*labels: str, **more: Any) -> Stage:
    return stage("split", *labels, split={"mode": "items", **more})


def test_e24_a_split_of_items_goes_round_the_edges() -> None:
    found = children(items("a", "b"), {"subtask_inputs": [1, 2, 3]})
    assert found == [("a", 0, 1), ("b", 1, 2), ("a", 2, 3)]
    assert children(items("a", items_key="pages"), {"pages": ["x"], "subtask_inputs": []}) == [("a", 0, "x")]


def test_e25_no_items_fail_unless_they_may() -> None:
    told = fault(fork_children, items("a"), {"subtask_inputs": []})
    assert told == ("empty_split", "The list 'subtask_inputs' is empty (split.on_empty: fail).")
    assert fork_children(items("a", on_empty="continue"), {"subtask_inputs": []}) == []


@pytest.mark.parametrize("output", [[1], None, {}, {"subtask_inputs": "12"}, {"subtask_inputs": {"0": 1}}])
def test_e26_items_must_be_a_list(output: Any) -> None:
    told = fault(fork_children, items("a"), output)
    assert told == ("malformed_split", "The output must be an object with the list 'subtask_inputs'.")


def test_e18_as_many_subtasks_as_may_be_and_no_more() -> None:
    assert len(fork_children(items("a", max_subtasks=2), {"subtask_inputs": [1, 2]})) == 2
    assert fault(fork_children, items("a", max_subtasks=2), {"subtask_inputs": [1, 2, 3]}) == (
        "limit_exceeded",
        "3 subtasks of the stage 'n' exceed the limit of 2 (split.max_subtasks).",
    )
    per_edge = stage("split", "a", "b", split={"max_subtasks": 1})
    assert fault(fork_children, per_edge, {})[0] == "limit_exceeded"


# -- merges --------------------------------------------------------------------------------------------------


def task(path: str, **more: Any) -> Task:
    made = Task(f"T{path}", path, "clone", None, ())
    for name, value in more.items():
        setattr(made, name, value)
    return made


def entry(stage: str, started_at: float, finished_at: float) -> Entry:
    made = Entry("T", stage, None, started_at)
    made.finished_at = finished_at
    return made


def test_e34_what_a_merge_is_told_of_its_inputs() -> None:
    entries = [entry("w", 1.0, 2.0), entry("x#2", 3.0, 4.5)]
    good = task("/b:x", entered_by=("x#2", "on"), index=3, status="partial", output={"a": 1}, entries=entries)
    told = merge_input([good, task("/b:y")], [])
    assert told["inputs"][0] == {
        "task_id": "T/b:x", "node_id": "x", "stage_id": "x#2", "edge": "on", "index": 3, "status": "partial",
        "output": {"a": 1}, "started_at": 3.0, "finished_at": 4.5, "lineage": "clone",
    }  # fmt: skip
    assert (told["inputs"][1]["started_at"], told["inputs"][1]["finished_at"]) == (None, None)
    assert told["failures"] == []


def test_e34_what_a_merge_is_told_of_its_failures() -> None:
    error = {"stage": "x", "code": "timeout", "message": "too late", "detail": 1}
    told = merge_input([], [task("/b:x", edge="x", index=2, error=error), task("/b:y")])
    assert told == {
        "inputs": [],
        "failures": [
            {
                "task_id": "T/b:x", "stage_id": "x", "edge": "x", "index": 2, "lineage": "clone",
                "error": {"code": "timeout", "message": "too late"},
            },
            {
                "task_id": "T/b:y", "stage_id": "", "edge": "", "index": 0, "lineage": "clone",
                "error": {"code": "", "message": ""},
            },
        ],
    }  # fmt: skip


def test_e53_what_a_model_is_asked_is_the_same_in_every_run() -> None:
    """Two runs differ in ids and times, and in nothing else that a merge is told."""
    runs = [
        merge_input(
            [task(f"/{run}", entered_by=("x", "x"), output="a", entries=[entry("x", run, run + 1)])],
            [task(f"/{run}", edge="y")],
        )
        for run in (1.0, 7.0)
    ]
    assert runs[0] != runs[1]
    assert without_run_fields(runs[0]) == without_run_fields(runs[1])
    [asked] = without_run_fields(runs[0])["inputs"]
    assert list(asked) == ["node_id", "stage_id", "edge", "index", "status", "output", "lineage"]


ONE, TWO = task("/1"), task("/2")


@pytest.mark.parametrize(
    ("rules", "inputs", "failures", "refused"),
    [
        (None, [ONE], [TWO], None),
        (None, [], [], "no_successful_inputs"),
        ({"on_failure": "halt"}, [ONE], [], None),
        ({"on_failure": "halt"}, [ONE], [TWO], "halted"),
        ({"min_success": 2}, [ONE, TWO], [], None),
        ({"min_success": 2}, [ONE], [TWO], "no_successful_inputs"),
        ({"min_success": 0}, [], [TWO], None),
    ],
)
def test_e32_e33_when_a_merge_must_not_run(
    rules: JsonObject | None, inputs: list[Task], failures: list[Task], refused: str | None
) -> None:
    found = merge_error(node("merge", merge=rules), inputs, failures)
    assert (found and found["code"]) == refused


def test_e32_e33_a_merge_that_must_not_run_says_why() -> None:
    halted = merge_error(node("merge", merge={"on_failure": "halt"}), [ONE], [TWO, TWO])
    assert halted == {"code": "halted", "message": "2 of its inputs failed (merge.on_failure: halt)."}
    few = merge_error(node("merge", merge={"min_success": 3}), [ONE], [])
    message = "1 input succeeded; the merge needs 3 (merge.min_success)."
    assert few == {"code": "no_successful_inputs", "message": message}


@pytest.mark.parametrize(
    ("strategy", "outputs", "merged"),
    [
        ("list", (1, 2), [1, 2]),
        ("list", (), []),
        ("first", ("a", "b"), "a"),
        ("first", (), None),
        ("concat", ("a", "b"), "a\nb"),
        ("concat", ("a", ["b"]), ["a", "b"]),
        ("concat", ([1], 2, [3, [4]]), [1, 2, 3, [4]]),
        ("concat", (), []),
        ("majority", (), None),
        ("majority", (1, 2, 2), 2),
        ("majority", (3, 1, 2), 3),
        ("majority", (1, 2, 2, 1), 1),
        ("majority", (5, {"a": 1, "b": 2}, {"b": 2, "a": 1}), {"a": 1, "b": 2}),
    ],
)
def test_what_a_strategy_makes_of_outputs(strategy: str, outputs: tuple[Any, ...], merged: Any) -> None:
    assert STRATEGIES[strategy](outputs) == merged


# -- policies ------------------------------------------------------------------------------------------------


def policy(default: str, *rules: JsonObject) -> PolicySpec:
    made = [{"target": "tool", "target_id": "t", "action": "allow", **rule} for rule in rules]
    return PolicySpec.model_validate({"name": "p", "default": default, "rules": made}, strict=False)


DENY: JsonObject = {"action": "deny"}


@pytest.mark.parametrize(
    ("policies", "why"),
    [
        ([policy("allow", DENY)], "The policy 'p' denies tool 't'."),
        ([policy("allow", {**DENY, "reason": "too dear"})], "The policy 'p' denies tool 't': too dear."),
        ([policy("deny")], "The policy 'p' does not allow tool 't' for the node 'n'."),
        ([policy("deny", {})], ""),
        ([policy("allow", {**DENY, "target": "agent"})], ""),
        ([policy("allow", {**DENY, "target_id": "other"}, DENY)], "The policy 'p' denies tool 't'."),
        ([policy("allow", {**DENY, "nodes": ["other"]}, DENY)], "The policy 'p' denies tool 't'."),
        ([policy("allow", {**DENY, "nodes": ["n"]})], "The policy 'p' denies tool 't'."),
        ([policy("allow", {**DENY, "target_id": "*"})], "The policy 'p' denies tool 't'."),
        ([policy("deny", {"target": "agent"})], "The policy 'p' does not allow tool 't' for the node 'n'."),
        ([policy("deny"), policy("allow", {})], ""),
        ([policy("deny"), policy("allow")], "The policy 'p' does not allow tool 't' for the node 'n'."),
    ],
)
def test_e57_a_denial_says_which_policy_denies_and_why(policies: list[PolicySpec], why: str) -> None:
    assert denial_reason(policies, PolicyRequest("tool", "t", "n")) == why
