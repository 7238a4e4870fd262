"""Which words propose passages, two rankings as one, and a model's grades."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from astromesh.errors import ProviderUnavailable
from astromesh.knowledge.base import Chunk, Document, IngestReport, ListedDocument, Passage
from astromesh.knowledge.ranking import (
    EVERYWHERE,
    MAX_RANKED,
    diversify,
    fuse_rankings,
    plan_query,
    reciprocal_rank_fusion,
    word_score,
)
from astromesh.knowledge.reranking import ModelGrader, RerankingPipeline, read_grades
from astromesh.testing import ScriptedProvider

# -- which words propose -------------------------------------------------------------------------------------


def test_rare_words_propose_frequent_ones_together_and_those_everywhere_not_at_all():
    """Rarest first, as many as there is room for."""
    plan = plan_query({"the": EVERYWHERE, "tea": 5000, "steep": 40, "matcha": 3, "hot": MAX_RANKED})
    assert (plan.rare, plan.frequent, plan.everywhere) == (("matcha", "steep"), ("hot", "tea"), ("the",))
    assert plan.frequent_limit == MAX_RANKED - 43


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=5), st.integers(0, EVERYWHERE), max_size=20))
def test_every_word_has_a_place_and_what_is_ranked_is_bounded(counts):
    """Property: the cost of a query does not grow with how many passages have its words."""
    plan = plan_query(counts)
    assert sorted((*plan.rare, *plan.frequent, *plan.everywhere)) == sorted(counts)
    assert sum(counts[word] for word in plan.rare) <= MAX_RANKED
    assert MAX_RANKED // 5 <= plan.frequent_limit <= MAX_RANKED


def test_a_passage_needs_all_words_of_a_short_query_and_half_of_those_of_a_long_one():
    """BM25 decides between equals."""
    assert [word_score(matched, 4, 2.0, 2.0) for matched in (0, 2, 4)] == [0.0, 0.5, 1.0]
    assert [word_score(matched, 12, 2.0, 2.0) for matched in (3, 6, 12)] == [0.5, 1.0, 1.0]
    assert word_score(4, 4, 1.0, 2.0) == pytest.approx(0.8)
    assert word_score(4, 4, 0.0, 0.0) == 1.0


# -- two rankings --------------------------------------------------------------------------------------------


def test_what_both_rank_comes_before_what_one_ranks_first():
    """Reciprocal rank fusion; scores between nothing and all."""
    assert [one for one, _ in reciprocal_rank_fusion([["a", "b"], ["b", "c"]])] == ["b", "a", "c"]
    assert reciprocal_rank_fusion([["a"], ["a"]]) == [("a", 1.0)]
    assert reciprocal_rank_fusion([[], []]) == []


@given(st.lists(st.lists(st.integers(0, 9), unique=True), min_size=1, max_size=4))
def test_fused_scores_fall_and_stay_in_bounds(rankings):
    """Property: everything that any of them holds, once, best first."""
    found = reciprocal_rank_fusion(rankings)
    assert {one for one, _ in found} == {one for ranking in rankings for one in ranking}
    assert [points for _, points in found] == sorted((points for _, points in found), reverse=True)
    assert all(0.0 < points <= 1.0 for _, points in found)


def test_neighbours_that_are_far_say_nothing_beside_words():
    """Less than half as near as the nearest: left out."""
    found = fuse_rankings([(1, 0.9), (2, 0.5)], [(3, 0.8), (4, 0.3)], semantic=False)
    assert [one for one, _ in found] == [1, 3, 2]
    assert all(score <= 0.9 for _, score in found)
    assert fuse_rankings([], [], semantic=False) == fuse_rankings([], [], semantic=True) == []


def test_meaning_weighs_most_and_its_score_is_a_likelihood():
    """Words decide between near neighbours only; what has no vector scores at most 0.5."""
    found = fuse_rankings([(2, 1.0), (9, 1.0)], [(1, 0.6), (2, 0.4), (3, 0.1)], semantic=True)
    assert [one for one, _ in found] == [1, 2, 9, 3]
    assert dict(found)[1] > 0.9
    assert dict(found)[9] == 0.5
    assert dict(found)[3] < 0.1
    assert [one for one, _ in fuse_rankings([(2, 1.0)], [(1, 0.5), (2, 0.49)], semantic=True)] == [2, 1]


def test_near_duplicates_make_room():
    """A copy of the best comes after passages that say something else."""
    words = {"a": frozenset("wxyz"), "copy": frozenset("wxyz"), "b": frozenset("klmn")}
    found = [("a", 0.9), ("copy", 0.89), ("b", 0.6)]
    assert diversify(found, words, 2) == ["a", "b"]
    assert diversify(found, words, 3) == ["a", "b", "copy"]
    assert diversify([], {}, 3) == []


# -- a model's grades ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "grades"),
    [
        ('{"grades": [1, 10, 0.5]}', [1.0, 10.0, 0.5]),
        ('```json\n{"grades": [1, 2, 3]}\n```', [1.0, 2.0, 3.0]),
        ('{"grades": [99, -1, 5]}', [10.0, 0.0, 5.0]),
        ('{"grades": [1, 2]}', None),
        ('{"grades": ["x", 1, 2]}', None),
        ('{"other": 1}', None),
        ("I think the second.", None),
        ("", None),
        ('{"grades": 3}', None),
    ],
)
def test_grades_are_read_or_there_are_none(text, grades):
    """One for each passage, bounded; anything else is no answer."""
    assert read_grades(text, 3) == grades


class Three:
    """A pipeline that always finds the same."""

    name = "three"

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.tenants: list[str] = []

    async def query(self, query, *, tenant="default", top_k=None, filters=None) -> tuple[Passage, ...]:
        self.asked.append(top_k)
        self.tenants.append(tenant)
        return tuple(Passage(Chunk(f"d{n}", f"text {n}", 0, 6), 1 - n / 10) for n in range(3))

    async def documents(self, *, tenant="default", of="tenant", after="", limit=100):
        self.tenants.append(tenant)
        return (ListedDocument(f"{of}{after}{limit}", {}),)

    async def document(self, name, *, tenant="default"):
        self.tenants.append(tenant)

    async def ingest(self, documents, progress=None, *, tenant="default") -> IngestReport:
        self.tenants.append(tenant)
        return IngestReport(added=len(documents))

    async def ingest_path(self, path, progress=None, *, tenant="default") -> IngestReport:
        self.tenants.append(tenant)
        return IngestReport(added=1)

    async def remove(self, ids, *, tenant="default") -> IngestReport:
        self.tenants.append(tenant)
        return IngestReport(removed=len(ids))

    async def refresh(self, progress=None, *, load_model=True) -> IngestReport:
        return IngestReport(unchanged=3)

    async def embed_again(self, progress=None) -> IngestReport:
        return IngestReport()

    async def warning(self, *, tenant: str | None = None) -> str:
        return ""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


async def test_a_model_puts_passages_in_order():
    """It is shown the candidates and answers grades, which become scores."""
    model, inner = ScriptedProvider('{"grades": [2, 9, 5]}'), Three()
    found = await RerankingPipeline(inner, ModelGrader(model), candidates=20, top_k=2).query("which?")
    assert [(p.chunk.document, p.score) for p in found] == [("d1", 0.9), ("d2", 0.5)]
    [request] = model.requests
    assert (request.role, inner.asked) == ("reranker", [20])
    assert '"query":"which?"' in request.messages[1].content
    assert "text 2" in request.messages[1].content


@pytest.mark.parametrize("line", [ProviderUnavailable("gone"), "no grades", '{"grades": [1]}'])
async def test_a_model_that_does_not_answer_changes_nothing(line):
    """The order stays, and the log says why."""
    with capture_logs() as logs:
        found = await RerankingPipeline(Three(), ModelGrader(ScriptedProvider(line))).query("which?", top_k=2)
    assert [p.chunk.document for p in found] == ["d0", "d1"]
    assert [entry["event"] for entry in logs] == ["passages_not_reranked"]


async def test_everything_else_goes_to_the_pipeline_within(tmp_path):
    """A wrapper adds grades and takes nothing away: the tenant is who asks."""
    inner = Three()
    outer = RerankingPipeline(inner, ModelGrader(ScriptedProvider('{"grades": [1, 2, 3]}')))
    assert await outer.ingest([Document("a", "b")], tenant="t") == IngestReport(added=1)
    assert await outer.ingest_path(tmp_path, tenant="t") == IngestReport(added=1)
    assert await outer.remove(["a"], tenant="t") == IngestReport(removed=1)
    assert len(await outer.query("which?", tenant="t")) == 3
    (listed,) = await outer.documents(tenant="t", of="shared", after="a", limit=7)
    assert (listed.id, inner.tenants) == ("shareda7", ["t"] * 5)
    assert await outer.refresh() == IngestReport(unchanged=3)
    await outer.ping()
    await outer.close()
