"""How PostgreSQL finds what begins next among many queued runs: by an index, not by a look at all."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from astromesh.durable.postgres import PostgresRuns
from astromesh.plugins import Deps, Plugins
from astromesh.storage.queries import store_queries

_QUEUED = """
INSERT INTO astromesh.runs (run_id, tenant, owner, agent, session_id, trace_id, parent, status, durable,
    segment, worker, priority, created_at, queued_at, finished_at, deadline_at, wake_at, input_tokens,
    output_tokens, cached_tokens, cost_usd, estimated, request, caller, attempts, ordered)
SELECT 'run_' || n, 't' || n % 3, 'o', 'a' || n % 10, 's' || n, '', '', 'queued', TRUE,
    1, '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, FALSE, '{}', '{}', '[]', TRUE
FROM generate_series(1, 20000) n
"""


def steps_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(step for part in plan.get("Plans", ()) for step in steps_of(part))]


@pytest.mark.parametrize(
    ("query", "values", "index"),
    [
        ("redispatch", (1.0, 1.0, 100, []), "runs_queued_of_tenant"),
        ("next_of_agent", ("a1", 1.0), "runs_queued_of_agent_and_tenant"),
        ("claim", (["run_1"], [1], ["w"], 1.0, []), "runs_run_id_key"),
    ],
)
async def test_what_begins_next_is_found_by_an_index(
    postgres_database: str, query: str, values: tuple[object, ...], index: str
) -> None:
    deps = Deps(storage_url=postgres_database)
    store = await Plugins().open("run_stores", "postgres", {}, deps)
    await store.ping()
    await store.close()
    await deps.resources.close()
    statement = store_queries("astromesh.durable", "runs", "postgres", PostgresRuns.fragments("postgres"))[
        query
    ]
    connection = await asyncpg.connect(postgres_database)
    try:
        await connection.execute(_QUEUED)
        await connection.execute("ANALYZE astromesh.runs")
        explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement}", *values)
    finally:
        await connection.close()
    steps = steps_of(json.loads(explained)[0]["Plan"])
    scans = [step for step in steps if step.get("Relation Name") == "runs" and "Index Name" in step]
    assert index in [step["Index Name"] for step in scans]
    # `o`: the older runs of a session, and runs that have killed their process, if there are any
    whole = [step["Alias"] for step in steps if step["Node Type"] == "Seq Scan"]
    assert not {"runs", "runs_1", "r"} & set(whole)
