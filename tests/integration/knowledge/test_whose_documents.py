"""Documents belong to the tenant that sent them, those of `sources` to the operator, in HTTP and runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from astromesh.access.scopes import ADMIN
from astromesh.api.auth import Auth
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.knowledge.rag_files import pipeline_file

SECRET = "zanzibarquince"
HASHING = {"provider": "hashing", "dimensions": 64}
TOOL = {"name": "look", "type": "rag", "pipeline": "notes"}


class Callers:
    async def authenticate(self, token: str) -> CallerContext | None:
        return CallerContext("ann", token, scopes=frozenset({ADMIN}))


def by(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {tenant}"}


def looks_it_up(request: CompletionRequest) -> Any:
    last = request.messages[-1]
    if last.role == "tool":
        return last.content
    return [ToolCall("1", "look", '{"query": "kettle quince"}')]


@pytest.fixture(params=["sqlite", "pgvector"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Pipelines: `notes` over a folder; `news`, which `editors` share. `helper` looks up `notes`."""
    write(tmp_path, manifest(tools=[TOOL]))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "kettle.md").write_text("# Kettle\n\nThe operator's kettle.")
    given = {"embeddings": HASHING, "store": {"backend": request.param}}
    pipeline_file(tmp_path, "notes", sources=[{"path": "../docs"}], **given)
    pipeline_file(tmp_path, "news", shared=True, owner="editors", **given)
    if request.param == "pgvector":
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        storage = {"url": request.getfixturevalue("postgres_database")}
        (tmp_path / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": storage}}))
    runtime = runtime_of(tmp_path, ScriptedProvider(looks_it_up, repeat=True))
    async with client_of(runtime, Auth((Callers(),))) as made:
        yield made


async def sends(
    client: httpx.AsyncClient, tenant: str, pipeline: str = "notes", **body: Any
) -> dict[str, Any]:
    answer = await client.post(f"/v1/rag/{pipeline}/documents", json=body, headers=by(tenant))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def texts(client: httpx.AsyncClient, tenant: str, pipeline: str = "notes") -> set[str]:
    body = {"query": f"kettle {SECRET}", "top_k": 50}
    answer = await client.post(f"/v1/rag/{pipeline}/query", json=body, headers=by(tenant))
    return {passage["text"] for passage in answer.json()["passages"]}


async def test_documents_are_read_and_removed_by_the_tenant_that_sent_them(client):
    """Another tenant finds none of it, removes none of it, and has a document of the same id of its own."""
    folder = {"# Kettle\n\nThe operator's kettle."}
    mine, theirs = f"My kettle {SECRET}", f"Their kettle {SECRET}"
    assert (await sends(client, "acme", documents=[{"id": "x", "text": mine}]))["added"] == 1
    assert await texts(client, "acme") == folder | {mine}
    assert await texts(client, "other") == await texts(client, "default") == folder
    assert (await sends(client, "other", remove=["x"]))["removed"] == 0
    assert (await sends(client, "other", documents=[{"id": "x", "text": theirs}]))["added"] == 1
    assert (await texts(client, "acme"), await texts(client, "other")) == (folder | {mine}, folder | {theirs})
    assert (await sends(client, "other", remove=["x"]))["removed"] == 1
    assert await texts(client, "acme") == folder | {mine}
    refused = await client.post("/v1/rag/notes/documents", json={"remove": ["kettle.md"]}, headers=by("acme"))
    assert refused.status_code == 422


async def listed(client: httpx.AsyncClient, tenant: str, pipeline: str, **asked: Any) -> list[str]:
    answer = await client.get(f"/v1/rag/{pipeline}/documents", params=asked, headers=by(tenant))
    assert answer.status_code == 200, answer.text
    return [document["id"] for document in answer.json()["documents"]]


async def test_a_list_has_documents_that_the_tenant_may_read(client):
    """Its own, those of the folders, those that are shared; page by page."""
    documents = [
        {"id": f"d{n}", "text": f"Text {n}", "title": f"T{n}", "metadata": {"n": n}} for n in range(3)
    ]
    await sends(client, "acme", documents=documents)
    await sends(client, "editors", "news", documents=documents[:1])
    path, params = "/v1/rag/notes/documents", {"limit": 2}
    page = (await client.get(path, params=params, headers=by("acme"))).json()
    assert page["documents"][1] == {"id": "d1", "title": "T1", "metadata": {"n": 1}}
    assert await listed(client, "acme", "notes", limit=2, after=page["next"]) == ["d2"]
    assert await listed(client, "acme", "notes", of="sources") == ["kettle.md"]
    assert await listed(client, "acme", "notes", of="shared") == await listed(client, "other", "notes") == []
    assert await listed(client, "other", "notes", of="sources") == ["kettle.md"]
    assert (
        await listed(client, "other", "news", of="shared")
        == await listed(client, "editors", "news")
        == ["d0"]
    )
    assert await listed(client, "other", "news") == []


async def test_all_tenants_read_what_an_owner_shares(client):
    """And keep to themselves what they send there."""
    await sends(client, "editors", "news", documents=[{"id": "a", "text": "kettle news"}])
    await sends(client, "acme", "news", documents=[{"id": "a", "text": "kettle of acme"}])
    assert await texts(client, "editors", "news") == await texts(client, "other", "news") == {"kettle news"}
    assert await texts(client, "acme", "news") == {"kettle news", "kettle of acme"}
    assert (await sends(client, "other", "news", remove=["a"]))["removed"] == 0
    assert await texts(client, "other", "news") == {"kettle news"}


@pytest.mark.parametrize("route", ["run", "runs"])
async def test_a_run_searches_for_its_tenant(client, route):
    """Its own documents and the operator's; the answer here is what the tool returned."""
    await sends(client, "acme", documents=[{"id": "x", "text": f"A kettle {SECRET}"}])
    shown = {}
    for tenant in ("acme", "other"):
        body = {"query": "Look", "session_id": "s"}
        answer = await client.post(f"/v1/agents/helper/{route}", json=body, headers=by(tenant))
        run_id = answer.json()["run_id"]
        async with asyncio.timeout(30):
            while not (run := await client.get(f"/v1/runs/{run_id}", headers=by(tenant))).json()[
                "finished_at"
            ]:
                await asyncio.sleep(0.01)
        shown[tenant] = run.json()["result"]["response"]
    assert ["operator's" in text for text in shown.values()] == [True, True]
    assert [SECRET in text for text in shown.values()] == [True, False]
