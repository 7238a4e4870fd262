"""Tables of every earlier version are brought up to date with what they hold, by many processes at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from astromesh.durable.base import IdempotencyKey
from astromesh.durable.sql_inbox import SqlInbox
from astromesh.durable.sql_runs import SqlRuns
from astromesh.errors import ConfigError
from astromesh.knowledge import semantic_postgres
from astromesh.knowledge import semantic_sqlite as sqlite_passages
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.memory.backends import postgres, sqlite
from astromesh.memory.backends import postgres as postgres_events
from astromesh.memory.backends import sqlite as sqlite_events
from astromesh.plugins import Deps, Plugins
from astromesh.storage.migrations import Schema, statements, store_schema
from astromesh.storage.postgres import Address, Connection, Postgres
from astromesh.storage.sqlite import FILE, Database
from astromesh.types import SessionKey
from tests.platform.at_rest import places_of

KEY = SessionKey("acme", "support", "s-1", "ann")


class Seam(NamedTuple):
    """A store, what is written to a table of each version, and how it is found again."""

    group: str
    backend: str
    schema: Schema
    #: statements by version, that fill tables of that version by hand
    filled: Mapping[int, str]
    found: Callable[[Any], Awaitable[object]]
    file: str = FILE


async def _recalled(store: Any) -> object:
    return [t.content for t in (await store.recall(KEY, 10)).turns]


async def _recent(store: Any) -> object:
    return [e["n"] for e in await store.recent(KEY, 10)]


async def _searched(store: Any) -> object:
    return [r.content for r in await store.search("acme", "support", "ann", "router")]


_SESSION = """
INSERT INTO {p}sessions (tenant, agent, session_id, owner, last_seq, created_at, updated_at, expires_at)
VALUES ('acme', 'support', 's-1', 'ann', 1, 1, 1, 0);
INSERT INTO {p}turns (session, seq, role, content, created_at, run_id, status, tokens)
VALUES (1, 1, 'user', 'kept', 1, 'run_1', 'complete', 0);
"""
#: since version 2 there are leases beside the turns
_LEASED = (
    _SESSION
    + """
INSERT INTO {p}session_leases (tenant, agent, session_id, holder, expires_at)
VALUES ('acme', 'support', 's-1', 'a process that is gone', 1);
"""
)
#: since version 3 of sessions, and 2 of events, the id has the principal
_STORED_ID = "s-1\x1eann"
_EVENT = """
INSERT INTO {p}events (tenant, agent, session_id, owner, expires_at, event)
VALUES ('acme', 'support', 's-1', 'ann', 0, '{{"n": "kept"}}');
"""


def _events(p: str) -> Mapping[int, str]:
    return {1: _EVENT.format(p=p), 2: _EVENT.format(p=p).replace("s-1", _STORED_ID)}


_PASSAGE_SQLITE = """
INSERT INTO scopes (tenant, agent, owner) VALUES ('acme', 'support', 'ann');
INSERT INTO passages (scope, hash, session_id, content, metadata, created_at, expires_at, space)
VALUES (1, x'00', 's-1', 'kept', '{}', 1, 0, '');
INSERT INTO passage_words (rowid, scope, content) VALUES (1, 1, 'router kept');
"""
_PASSAGE_POSTGRES = """
INSERT INTO astromesh.passages
    (tenant, agent, owner, session_id, hash, content, metadata, created_at, expires_at)
VALUES ('acme', 'support', 'ann', 's-1', '\\x00', 'router', '{}', 1, 0);
"""


async def _waiting(inbox: Any) -> object:
    return [kept.content.decode() for kept in await inbox.pending("q", 10)]


_LETTER = """
INSERT INTO {p}inbox_queues (queue, channel, tenant, principal, address, due_at, updated_at)
VALUES ('q', 'whatsapp', 'acme', 'ann', {address}, 1, 1);
INSERT INTO {p}inbox_letters (channel, id, queue, content, due_at, received_at)
VALUES ('whatsapp', '1', 'q', {content}, 1, 1);
"""
_LETTER_SQLITE = _LETTER.format(p="", address="x'00'", content="x'6b657074'")
_LETTER_POSTGRES = _LETTER.format(p="astromesh.", address="'\\x00'", content="'\\x6b657074'")


async def _stored_query(store: Any) -> object:
    return [(await store.get("run_1")).request["query"]]


_RUN = """
INSERT INTO {p}runs (run_id, tenant, owner, agent, session_id, trace_id, parent, status, durable, segment,
    worker, priority, created_at, queued_at, finished_at, deadline_at, wake_at, input_tokens, output_tokens,
    cached_tokens, cost_usd, estimated, request, caller, attempts)
VALUES ('run_1', 'acme', 'ann', 'support', 's-1', 't', '', 'queued', {true}, 1,
    '', 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, {false}, '{{"query": "kept"}}', '{{}}', '[]');
"""
_RUN_SQLITE = _RUN.format(p="", true="1", false="0")
_RUN_POSTGRES = _RUN.format(p="astromesh.", true="TRUE", false="FALSE")

SEAMS = (
    Seam(
        "run_stores",
        "sqlite",
        store_schema(SqlRuns, "sqlite"),
        dict.fromkeys(range(1, 21), _RUN_SQLITE),
        _stored_query,
    ),
    Seam(
        "run_stores",
        "postgres",
        store_schema(SqlRuns, "postgres"),
        dict.fromkeys(range(1, 20), _RUN_POSTGRES),
        _stored_query,
    ),
    Seam("inboxes", "sqlite", store_schema(SqlInbox, "sqlite"), {1: _LETTER_SQLITE}, _waiting),
    Seam("inboxes", "postgres", store_schema(SqlInbox, "postgres"), {1: _LETTER_POSTGRES}, _waiting),
    Seam(
        "conversation_stores",
        "sqlite",
        sqlite.SCHEMA,
        {
            1: _SESSION.format(p=""),
            2: _LEASED.format(p=""),
            **dict.fromkeys((3, 4), _LEASED.format(p="").replace("s-1", _STORED_ID)),
        },
        _recalled,
    ),
    Seam(
        "conversation_stores",
        "postgres",
        postgres.SCHEMA,
        {
            1: _SESSION.format(p="astromesh."),
            2: _LEASED.format(p="astromesh."),
            **dict.fromkeys((3, 4), _LEASED.format(p="astromesh.").replace("s-1", _STORED_ID)),
        },
        _recalled,
    ),
    Seam(
        "episodic_stores",
        "sqlite",
        sqlite_events.EVENT_SCHEMA,
        _events(""),
        _recent,
    ),
    Seam(
        "episodic_stores",
        "postgres",
        postgres_events.EVENT_SCHEMA,
        _events("astromesh."),
        _recent,
    ),
    Seam(
        "semantic_stores",
        "sqlite",
        sqlite_passages.SCHEMA,
        dict.fromkeys((1, 2), _PASSAGE_SQLITE),
        _searched,
        "semantic.db",
    ),
    Seam(
        "semantic_stores",
        "pgvector",
        semantic_postgres.SCHEMA,
        dict.fromkeys((1, 2), _PASSAGE_POSTGRES),
        _searched,
    ),
)
VERSIONS = [(seam, version) for seam in SEAMS for version in range(1, len(seam.schema.steps()) + 1)]


def named(seam: Seam) -> str:
    return f"{seam.group}-{seam.backend}"


@pytest.mark.parametrize(
    ("seam", "version"), VERSIONS, ids=lambda v: named(v) if isinstance(v, Seam) else str(v)
)
async def test_what_an_earlier_version_wrote_is_found(seam, version, tmp_path, request):
    assert version in seam.filled, "say here what tables of this version hold"
    deps = deps_of(seam, tmp_path, request)
    await left_by_version(seam, version, deps)
    store = await Plugins().open(seam.group, seam.backend, {}, deps)
    assert await seam.found(store) in (["kept"], ["router"])
    await deps.resources.close()


@pytest.mark.parametrize("seam", SEAMS, ids=named)
async def test_a_newer_version_is_left_alone(seam, tmp_path, request):
    deps = deps_of(seam, tmp_path, request)
    await left_by_version(seam, len(seam.schema.steps()), deps, said=99)
    with pytest.raises(ConfigError, match="newer astromesh"):
        await Plugins().open(seam.group, seam.backend, {}, deps)
    await deps.resources.close()


@pytest.mark.parametrize("seam", SEAMS, ids=named)
async def test_many_processes_at_once_make_the_tables_once(seam, tmp_path, request):
    """Each has a pool or a file of its own, as processes do."""
    many = [deps_of(seam, tmp_path, request) for _ in range(5)]
    stores = await asyncio.gather(*(Plugins().open(seam.group, seam.backend, {}, deps) for deps in many))
    await asyncio.gather(*(store.ping() for store in stores))
    for deps in many:
        await deps.resources.close()


@pytest.mark.parametrize("seam", SEAMS[:2], ids=named)
async def test_idempotency_keys_that_were_stored_as_text_are_hashed(seam, tmp_path, request):
    """Since version 7 of the runs. They still name the same run, and their text is nowhere."""
    deps, text = deps_of(seam, tmp_path, request), "order-of-ann-4711"
    key = f"VALUES ('acme', 'ann', 'route', '{text}', 'body', 'run_1', 9e9)"
    table = "astromesh.idempotency_keys" if deps.storage_url else "idempotency_keys"
    filled = {6: f"{seam.filled[6]}INSERT INTO {table} {key};\n"}
    await left_by_version(seam._replace(filled=filled), 6, deps)
    assert places_of(text, tmp_path, deps.storage_url)
    store = await Plugins().open(seam.group, seam.backend, {}, deps)
    asked = IdempotencyKey("acme", "ann", "route", text, "body", 9e9)
    assert await store.reserve_key(asked, "run_2") == "run_1"
    await deps.resources.close()
    assert places_of(text, tmp_path, deps.storage_url) == []


async def test_steps_events_and_traces_of_earlier_runs_stay_until_their_run_is_deleted(tmp_path, request):
    """Since version 20 of the runs their tables have a rowid. The trigger that deletes them is made anew."""
    seam, long = SEAMS[0], json.dumps("w" * 5000)
    log = f"""
    INSERT INTO run_traces VALUES ('run_1', '{long}');
    INSERT INTO run_events VALUES ('run_1', 2, 4.0, 'model.finished', '{{"n": "kept"}}');
    INSERT INTO run_steps VALUES ('run_1', '', 2, 'model', 'h', 'done', '{long}', 1, 2.0, 3.0, NULL);
    INSERT INTO run_steps VALUES ('run_1', '', 1, 'node', 'h', 'done', NULL, 0, 1.0, 2.0, 'a');
    """
    deps = deps_of(seam, tmp_path, request)
    await left_by_version(seam._replace(filled={19: f"{seam.filled[19]}{log}"}), 19, deps)
    store = await Plugins().open(seam.group, seam.backend, {}, deps)
    assert [(step.n, step.kind) for step in await store.steps("run_1")] == [(1, "node"), (2, "model")]
    assert [(event.seq, event.data) for event in await store.events("run_1", 0, 10)] == [(2, {"n": "kept"})]
    await deps.resources.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        assert database.execute("SELECT events FROM run_traces").fetchall() == [(long,)]
        assert database.execute("SELECT output, about FROM run_steps ORDER BY n DESC").fetchone() == (
            long,
            None,
        )
        database.execute("DELETE FROM runs")
        for table in ("run_traces", "run_steps", "run_events"):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


# -- tables as an earlier astromesh left them ----------------------------------------------------------------


def deps_of(seam: Seam, folder: Path, request: pytest.FixtureRequest) -> Deps:
    url = request.getfixturevalue("postgres_database") if seam.backend in ("postgres", "pgvector") else ""
    return Deps(data_dir=folder, storage_url=url, embedder=HashingEmbedder())


async def left_by_version(seam: Seam, version: int, deps: Deps, *, said: int = 0) -> None:
    steps = seam.schema.steps("postgres" if deps.storage_url else "sqlite")[:version]
    if deps.storage_url:
        async with Postgres(Address.parse(deps.storage_url)) as database:
            await database.transact(partial(_made_in_postgres, seam, steps, said or version))
        return
    async with Database(deps.data_dir / seam.file) as database:
        await database.write(_made_in_sqlite, (seam, steps, said or version))


async def _made_in_postgres(seam: Seam, steps: list[str], version: int, connection: Connection) -> None:
    await connection.execute("CREATE SCHEMA astromesh")
    await connection.execute(
        "CREATE TABLE astromesh.schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"
    )
    for step in (*steps, seam.filled[len(steps)]):
        await connection.execute(step)
    await connection.execute("INSERT INTO astromesh.schemas VALUES ($1, $2)", seam.schema.name, version)


def _made_in_sqlite(connection, items):
    for seam, steps, version in items:
        connection.execute(
            "CREATE TABLE schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
        )
        for step in (*steps, seam.filled[len(steps)]):
            for statement in statements(step):
                connection.execute(statement)
        connection.execute("INSERT INTO schemas VALUES (?, ?)", (seam.schema.name, version))
    return [None] * len(items)


async def test_the_schema_of_the_former_dispatcher_is_dropped(postgres_database, tmp_path):
    deps = Deps(data_dir=tmp_path, storage_url=postgres_database)
    async with Postgres(Address.parse(postgres_database)) as database:
        await database.write("CREATE SCHEMA astromesh_dbos")
        await database.write("CREATE TABLE astromesh_dbos.workflow_status (workflow_uuid TEXT)")
    await Plugins().open("run_stores", "postgres", {}, deps)
    await deps.resources.close()
    async with Postgres(Address.parse(postgres_database)) as database:
        found = await database.read("SELECT to_regnamespace('astromesh_dbos') IS NULL")
    assert found[0][0]
