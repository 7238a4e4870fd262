"""The rules hold for any workflow: no deadlock, no merge fired twice, nothing left over, at any timing.

`make reliability` tries far more workflows (ASTROMESH_FUZZ_EXAMPLES per property).
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astromesh.config.workflow import WorkflowFile
from astromesh.workflow.plan import analyze, compile_plan, successors_of
from astromesh.workflow.state_machine import StateMachine
from tests.unit.workflow.random_workflows import trial, workflows

EXAMPLES = int(os.environ.get("ASTROMESH_FUZZ_EXAMPLES", "30"))
SEEDS = st.integers(0, 2**20)
slow = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@slow
@given(workflow=workflows(), world=SEEDS, timing=SEEDS)
def test_every_run_ends_and_leaves_nothing_behind(workflow: WorkflowFile, world: int, timing: int) -> None:
    """When no stage is under way, the root has ended, and so has every other Task."""
    done = trial(workflow, world, timing)
    assert done.flow.root.state == "ended"
    assert [path for path, task in done.flow.tasks.items() if task.is_live] == []
    assert done.flow.live == 0


@slow
@given(workflow=workflows(), world=SEEDS, timing=SEEDS)
def test_e36_no_stage_runs_and_no_merge_fires_twice(workflow: WorkflowFile, world: int, timing: int) -> None:
    """Within a Task; `StateMachine` itself asserts that nobody comes to a merge that has fired (E36)."""
    done = trial(workflow, world, timing)
    assert [one for one, times in Counter(done.executed).items() if times > 1] == []
    assert [one for one, times in Counter(done.fired).items() if times > 1] == []


@slow
@given(workflow=workflows(), world=SEEDS, timings=st.lists(SEEDS, min_size=2, max_size=2, unique=True))
def test_timing_decides_nothing_where_every_branch_has_a_merge(
    workflow: WorkflowFile, world: int, timings: list[int]
) -> None:
    """The outcome, and what each Task came to by its lineage, are the same in any order of events."""
    stages = compile_plan(workflow, "s").stages.values()
    if any(stage.role == "branch" and not stage.recombined for stage in stages):
        return
    one, other = (trial(workflow, world, timing) for timing in timings)
    assert one.outcome == other.outcome
    assert one.by_lineage == other.by_lineage


@slow
@given(workflow=workflows(), world=SEEDS, timing=SEEDS)
def test_counts_of_pending_tokens_come_down_to_zero(workflow: WorkflowFile, world: int, timing: int) -> None:
    """R3 is kept by counting; a count that is not zero at the end would have held a merge up for ever."""
    done = trial(workflow, world, timing)
    joins = [join for task in done.flow.tasks.values() for join in (task.joins or {}).values()]
    assert [(join.scope.path, join.merge, join.pending) for join in joins if join.pending] == []


@slow
@given(workflow=workflows(), world=SEEDS, timing=SEEDS)
def test_r3_by_counting_is_r3_by_its_words(workflow: WorkflowFile, world: int, timing: int) -> None:
    """After every event, a merge's count is the number of tokens below its scope that can still reach it.

    Those that wait at it are not among them; and while anything waits, there is at least one.
    """
    reach = analyze(successors_of(workflow), "s").reach

    def look(flow: StateMachine) -> None:
        tokens = [task for task in flow.tasks.values() if task.state in ("running", "waiting")]
        for scope in [task for task in flow.tasks.values() if task.is_live and task.joins]:
            for merge, join in (scope.joins or {}).items():
                below = [t for t in tokens if t.path == scope.path or t.path.startswith(f"{scope.path}/")]
                awaited = [t for t in below if t.stage != merge and merge in reach.get(t.stage, ())]
                assert join.pending == len(awaited), (scope.path, merge)
                assert not join.waiting or awaited, f"{merge} is due and did not fire"

    trial(workflow, world, timing, look)
