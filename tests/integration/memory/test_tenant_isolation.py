"""Tenants and owners never see each other (reliability.md S3): any names, any order, every store."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astromesh.errors import SessionNotFound
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.plugins import Deps, Plugins
from astromesh.telemetry.clock import SystemClock
from astromesh.types import SessionKey, Turn

SETS = {
    "in_memory": ("in_memory", "in_memory", "in_memory"),
    "sqlite": ("sqlite", "sqlite", "sqlite"),
    "servers": ("redis", "pgvector", "postgres"),
    "postgres": ("postgres", "pgvector", "postgres"),
}
#: names that an encoding might confuse: separators, wildcards, prefixes of one another, case, accents
NAMES = [
    "a",
    "a:b",
    "b",
    "a:",
    ":",
    "a%",
    "_",
    "A",
    "á",
    "a b",
    "a\\b",
    "'a'",
    "ab",
    "a\u2028b",
    "*",
    "[a]",
    "1",
]
name = st.sampled_from(NAMES)


class Said(NamedTuple):
    """Somebody says something of its own."""

    key: SessionKey
    owner: str


said = st.builds(Said, st.builds(SessionKey, name, name, name), name)


class Stores(NamedTuple):
    conversations: Any
    passages: Any
    events: Any


@pytest.mark.parametrize("backends", SETS)
def test_nobody_finds_what_another_said(backends, request):
    """What is said is a word of its own; whoever asks for it finds it, or nothing, by whose it is."""
    postgres = request.getfixturevalue("postgres_database") if backends in ("servers", "postgres") else ""
    redis = request.getfixturevalue("redis_url") if backends == "servers" else ""
    round_ = iter(range(10_000))

    @settings(
        max_examples=15, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )  # fmt: skip
    @given(told=st.lists(said, min_size=2, max_size=8), erased=st.tuples(name, name))
    def holds(told: list[Said], erased: tuple[str, str]) -> None:
        unique = f"t{next(round_)}-"  # servers keep what earlier examples said; tenants part them
        mine = [one._replace(key=one.key._replace(tenant=unique + one.key.tenant)) for one in told]
        asyncio.run(checked(SETS[backends], mine, (unique + erased[0], erased[1]), postgres, redis))

    holds()


async def checked(
    backends: tuple[str, ...], told: list[Said], erased: tuple[str, str], postgres: str, redis: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        deps = Deps(
            clock=SystemClock(), data_dir=Path(folder), storage_url=postgres, redis_url=redis,
            embedder=HashingEmbedder(),
        )  # fmt: skip
        try:
            stores = await opened(backends, deps)
            truth = await say(stores, told)
            await seen(stores, truth)
            await erase(stores, erased)
            kept = [(one, word) for one, word in truth if (one.key.tenant, one.owner) != erased]
            await seen(stores, kept, gone=[pair for pair in truth if pair not in kept])
        finally:
            await deps.resources.close()


async def opened(backends: tuple[str, ...], deps: Deps) -> Stores:
    groups = ("conversation_stores", "semantic_stores", "episodic_stores")
    return Stores(*[await Plugins().open(g, b, {}, deps) for g, b in zip(groups, backends, strict=True)])


async def say(stores: Stores, told: list[Said]) -> list[tuple[Said, str]]:
    """Who said what, of those that a session let in."""
    owners: dict[SessionKey, str] = {}
    truth = []
    for n, one in enumerate(told):
        word = f"secret{n}"
        try:
            await stores.conversations.append(one.key, one.owner, [Turn("user", word)])
        except SessionNotFound:
            assert owners[one.key] != one.owner
            continue
        assert owners.setdefault(one.key, one.owner) == one.owner, "a session had two owners"
        about = {"source": "conversation", "session_id": one.key.session_id}
        await stores.passages.add(one.key.tenant, one.key.agent, one.owner, [(f"the {word} is safe", about)])
        await stores.events.record(one.key, one.owner, [{"event": word}], now=1.0)
        truth.append((one, word))
    return truth


async def seen(stores: Stores, truth: list[tuple[Said, str]], gone: Any = ()) -> None:
    """Everybody asks for everything, and gets all of its own and nothing else."""
    turns, passages, events, sessions = (defaultdict(set) for _ in range(4))
    for one, word in truth:
        turns[one.key].add(word)
        passages[one.key.tenant, one.key.agent, one.owner].add(f"the {word} is safe")
        events[one.key, one.owner].add(word)
        sessions[one.key.tenant, one.key.agent, one.owner].add(one.key.session_id)
    everybody = {one for one, _ in [*truth, *gone]}
    for one in everybody:
        recalled = await stores.conversations.recall(one.key, 100)
        assert {t.content for t in recalled.turns} == turns[one.key]
        recent = await stores.events.recent(one.key, 100, owner=one.owner)
        assert {e["event"] for e in recent} == events[one.key, one.owner]
        scope = (one.key.tenant, one.key.agent, one.owner)
        listed = await stores.conversations.sessions(*scope[:2], owner=one.owner)
        assert [s.session_id for s in listed] == sorted(sessions[scope])
        words = " ".join(word for _, word in truth) or "secret0"
        found = await stores.passages.search(*scope, words, top_k=100)
        assert {r.content for r in found} == passages[scope]


async def erase(stores: Stores, erased: tuple[str, str]) -> None:
    for store in stores:
        await store.erase_owner(*erased)
