"""`/mcp`: knowledge and runs as resources, templates as prompts, for those who may read them over `/v1`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import orjson
import pytest
import yaml
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from astromesh.api.app import create_app
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.api.test_mcp_publish import command_of
from tests.integration.knowledge.rag_files import pipeline_file
from tests.integration.mcp_servers import serving
from tests.unit.access.tokens import AUDIENCE, ISSUER, SECRET, claims, signed

FULL = "agents:run runs:read rag:query rag:write agents:manifest"
HIDDEN = "value-of-the-environment"


def headers(scope: str, sub: str = "alice", tenant: str = "acme") -> dict[str, str]:
    token = signed(claims(2e9, sub=sub, tenant=tenant, exp=3e9, iat=None, scope=scope))
    return {"authorization": f"Bearer {token}"}


def folder_of(folder: Path, **auth: Any) -> Path:
    if auth:
        whole = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": {"auth": auth}}
        (folder / "runtime.yaml").write_text(yaml.safe_dump(whole))
    prompts = {
        "system": "You are {{ agent_name }}. {{ rules }} {{ tier }} ${PRIVATE:-}",
        "variables": {"rules": "Be ${PRIVATE:-kind}."},
    }
    model = {"primary": {"provider": "embedded"}} if not auth else manifest()["spec"]["model"]
    silent = manifest("silent", model=model)
    del silent["spec"]["prompts"]
    write(folder, manifest("helper", prompts=prompts, model=model), silent)
    pipeline_file(folder, "notes")
    return folder


class House:
    def __init__(self, url: str) -> None:
        self.url, self.http = url, httpx.AsyncClient(base_url=url, timeout=60)

    @asynccontextmanager
    async def client(self, *who: str) -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(headers=headers(*who)) as http,
            Client(streamable_http_client(f"{self.url}/mcp", http_client=http)) as client,
        ):
            yield client


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    auth = {"mode": "jwt", "jwt": {"issuer": ISSUER, "audience": AUDIENCE, "secret_env": "S"}}
    folder = folder_of(tmp_path, **auth)
    runtime = runtime_of(folder, ScriptedProvider("fine", repeat=True), env={"S": SECRET, "PRIVATE": HIDDEN})
    async with AsyncExitStack() as stack:
        made = House(await stack.enter_async_context(serving(create_app(runtime))))
        await stack.enter_async_context(made.http)
        yield made


async def read(client: Client, uri: str) -> Any:
    (content,) = (await client.read_resource(uri)).contents
    return orjson.loads(content.text)  # type: ignore[union-attr]


async def test_resources_are_the_answers_of_the_routes_for_who_may_ask_those(house: House) -> None:
    put = {"documents": [{"id": "tea", "text": "Steep green tea at 80 degrees."}]}
    body = await house.http.post("/v1/rag/notes/documents", json=put, headers=headers(FULL))
    assert body.status_code == 200
    ran = await house.http.post(
        "/v1/agents/helper/run", json={"query": "hi", "session_id": "s"}, headers=headers(FULL)
    )
    run = f"astromesh://runs/{ran.json()['run_id']}"
    documents, passages = (
        "astromesh://rag/notes/documents",
        "astromesh://rag/notes/passages?query=green%20tea",
    )
    answer = (await house.http.get(f"/v1/runs/{ran.json()['run_id']}", headers=headers(FULL))).json()

    async with house.client(FULL) as alice:
        assert [one.uri for one in (await alice.list_resources()).resources] == [documents, run]
        assert len((await alice.list_resource_templates()).resource_templates) == 3
        assert await read(alice, run) == answer
        assert [one["id"] for one in (await read(alice, documents))["documents"]] == ["tea"]
        assert [one["document"] for one in (await read(alice, passages))["passages"]] == ["tea"]
        for wrong in (
            "astromesh://rag/nothing/documents", "astromesh://rag/notes/passages", "astromesh://runs/none",
            "astromesh://rag/notes", "file:///etc/passwd", "astromesh://[", "",
        ):  # fmt: skip
            with pytest.raises(MCPError):
                await alice.read_resource(wrong)

    async with house.client(FULL, "bob") as bob, house.client(FULL, "alice", "umbrella") as namesake:
        for other in (bob, namesake):
            assert [one.uri for one in (await other.list_resources()).resources] == [documents]
            with pytest.raises(MCPError, match="no run"):
                await other.read_resource(run)
        assert (await read(namesake, documents))["documents"] == []
        assert (await read(namesake, passages))["passages"] == []

    async with house.client("agents:run") as runner:
        assert (await runner.list_resources()).resources == []
        assert (await runner.list_resource_templates()).resource_templates == []
        for uri, scope in ((run, "runs:read"), (documents, "rag:query"), (passages, "rag:query")):
            with pytest.raises(MCPError, match=scope):
                await runner.read_resource(uri)


async def test_the_runs_have_pages(house: House) -> None:
    for _ in range(51):
        ran = await house.http.post(
            "/v1/agents/helper/run", json={"query": "hi", "session_id": "s"}, headers=headers(FULL)
        )
        assert ran.status_code == 200, ran.text
    async with house.client(FULL) as alice:
        first = await alice.list_resources()
        second = await alice.list_resources(cursor=first.next_cursor)
        for listed_by in (
            alice.list_resources, alice.list_resource_templates, alice.list_prompts, alice.list_tools,
        ):  # fmt: skip
            with pytest.raises(MCPError, match=r"cursor: .*[Bb]egin without `cursor`"):
                await listed_by(cursor="made-up")
    listed = [one.uri for page in (first, second) for one in page.resources]
    assert (len(listed), len(set(listed)), second.next_cursor) == (52, 52, None)


async def test_the_documents_have_pages(house: House) -> None:
    put = {"documents": [{"id": f"d{n:03}", "text": "Tea."} for n in range(101)]}
    body = await house.http.post("/v1/rag/notes/documents", json=put, headers=headers(FULL))
    assert body.status_code == 200, body.text
    documents = "astromesh://rag/notes/documents"
    async with house.client(FULL) as alice:
        first = await read(alice, documents)
        second = await read(alice, f"{documents}?of=tenant&after={first['next']}")
        names = [one["id"] for one in (*first["documents"], *second["documents"])]
        assert (names, second["next"]) == ([f"d{n:03}" for n in range(101)], None)
        assert (await read(alice, f"{documents}?of=sources"))["documents"] == []
        for wrong in ("of=nobody", "after=made-up", f"of=sources&after={first['next']}"):
            with pytest.raises(MCPError, match=r"of: use one of|begin without"):
                await alice.read_resource(f"{documents}?{wrong}")


async def test_a_prompt_is_the_template_as_the_manifest_shows_it(house: House) -> None:
    """Values of environment variables are not in it: the manifest's route does not show them either."""
    async with house.client(FULL) as alice:
        (prompt,) = (await alice.list_prompts()).prompts
        assert (prompt.name, [one.name for one in prompt.arguments or ()]) == ("helper", ["tier"])
        shown = (await alice.get_prompt("helper", {"tier": "gold {{ agent_name }}"})).messages[0]
        text = "You are helper. Be ${PRIVATE:-kind}. gold {{ agent_name }} ${PRIVATE:-}"
        assert (shown.role, shown.content.text) == ("user", text)  # type: ignore[union-attr]
        for wrong in (("nobody", {}), ("silent", {}), ("helper", {"rules": "none"})):
            with pytest.raises(MCPError):
                await alice.get_prompt(*wrong)
    async with house.client("agents:run agents:read runs:read") as other:
        assert (await other.list_prompts()).prompts == []
        with pytest.raises(MCPError, match="agents:manifest"):
            await other.get_prompt("helper")


async def test_the_command_has_resources_and_prompts_too(tmp_path: Path) -> None:
    async with Client(stdio_client(command_of(folder_of(tmp_path)))) as client:
        documents = "astromesh://rag/notes/documents"
        assert [one.uri for one in (await client.list_resources()).resources] == [documents]
        assert (await read(client, documents))["documents"] == []
        shown = (await client.get_prompt("helper", {"tier": "gold"})).messages[0].content
        assert shown.text == "You are helper. Be ${PRIVATE:-kind}. gold ${PRIVATE:-}"  # type: ignore[union-attr]
