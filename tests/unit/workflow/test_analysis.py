"""The static analysis against what its words mean, by looking at every path."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.workflow.plan import analyze, components, find_cycle, reachable

Ways = dict[str, list[str]]


@st.composite
def dags(draw: st.DrawFn) -> Ways:
    """Up to nine stages; edges lead from lower to higher numbers; the first leads to some."""
    size = draw(st.integers(2, 9))
    ways: Ways = {str(i): [] for i in range(size)}
    for i in range(size - 1):
        ways[str(i)] = [str(j) for j in range(i + 1, size) if draw(st.booleans())]
    if not ways["0"]:
        ways["0"] = ["1"]
    return ways


def paths(ways: Ways, start: str) -> list[list[str]]:
    """Every way from a stage to an end."""
    if not ways[start]:
        return [[start]]
    return [[start, *rest] for after in ways[start] for rest in paths(ways, after)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(dags())
def test_reach_dominators_and_postdominators_are_what_every_path_says(ways: Ways) -> None:
    found = analyze(ways, "0")
    every = paths(ways, "0")
    for stage in found.order:
        through = [path for path in every if stage in path]
        before = [set(path[: path.index(stage) + 1]) for path in through]
        behind = [set(path[path.index(stage) :]) for path in through]
        assert found.reach[stage] == set.union(*behind) - {stage}
        assert found.dom[stage] == set.intersection(*before)
        assert found.pdom[stage] == set.intersection(*behind)
        strict = found.dom[stage] - {stage}
        if strict:
            assert found.idom[stage] == max(strict, key=lambda one: len(found.dom[one]))
        else:
            assert stage not in found.idom


@settings(max_examples=200, deadline=None, derandomize=True)
@given(dags())
def test_open_merges_are_those_that_a_token_may_reach_with_the_anchor_behind_it(ways: Ways) -> None:
    """A token has run the anchor iff every path to its stage did, where the merge can still be reached."""
    found = analyze(ways, "0")
    merges = [stage for stage in found.order if sum(stage in after for after in ways.values()) > 1]
    merges = [merge for merge in merges if merge in found.idom]
    for stage in found.order:
        to_here = [path[: path.index(stage)] for path in paths(ways, "0") if stage in path]
        expected = [
            merge
            for merge in merges
            if merge in found.reach[stage] and any(found.idom[merge] in path for path in to_here)
        ]
        assert list(found.open_at(stage, merges)) == expected


def test_cycles_are_named_along_their_path() -> None:
    assert find_cycle({"a": ["b"], "b": ["c", "d"], "c": [], "d": ["b"]}) == ("b", "d", "b")
    assert find_cycle({"a": ["a"]}) == ("a", "a")
    assert find_cycle({"a": ["b", "c"], "b": ["c"], "c": []}) == ()


def test_components_are_weakly_connected() -> None:
    assert components("abcd", {"a": ["b"], "c": ["b"], "d": []}) == [{"a", "b", "c"}, {"d"}]


def test_a_chain_of_thousands_of_stages_needs_no_recursion() -> None:
    ways = {str(i): [str(i + 1)] for i in range(3000)} | {"3000": []}
    assert len(reachable(ways, ["0"])) == 3001 and find_cycle(ways) == ()
