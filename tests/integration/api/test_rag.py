"""`POST /v1/rag/{pipeline}/documents` and `/query`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from astromesh.evaluation.retrieval import AskedQuestion, RetrievalReport, store_retrieval
from astromesh.testing import ScriptedProvider
from astromesh.text import NOTHING_FOUND
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.knowledge.rag_files import pdf, pipeline_file

TEA = "# Tea\n\nintro\n\n## Green tea\n\nSteep it at 80 degrees."


def based(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Pipelines: `faq` over a folder, by words; `notes` without sources, by both."""
    write(tmp_path, manifest())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "faq.md").write_text("# Refunds\n\nWithin thirty days.")
    pipeline_file(tmp_path, "faq", sources=[{"path": "../docs"}])
    pipeline_file(
        tmp_path, "notes", embeddings={"provider": "hashing", "dimensions": 64}, retrieval={"top_k": 2}
    )
    async with client_of(runtime_of(tmp_path, ScriptedProvider(repeat=True))) as made:
        yield made


async def test_documents_come_in_and_passages_come_out_with_their_citation(client):
    """text[start:end] is the passage; unchanged documents cost nothing; removed ones are gone."""
    documents = [
        {"id": "tea", "text": TEA, "metadata": {"lang": "en"}},
        {
            "id": "tee",
            "text": "Grüner Tee",
            "title": "Tee",
            "media_type": "text/plain",
            "metadata": {"lang": "de"},
        },
    ]
    put = await client.post("/v1/rag/notes/documents", json={"documents": documents})
    assert (put.status_code, put.json()) == (
        200, {"pipeline": "notes", "added": 2, "changed": 0, "removed": 0, "unchanged": 0},
    )  # fmt: skip
    again = await client.post("/v1/rag/notes/documents", json={"documents": documents})
    assert again.json()["unchanged"] == 2
    asked = await client.post("/v1/rag/notes/query", json={"query": "How hot is green tea?"})
    assert asked.status_code == 200
    body = asked.json()
    best = body["passages"][0]
    assert (body["pipeline"], len(body["passages"])) == ("notes", 2)
    assert (best["document"], best["title"], best["heading"]) == ("tea", "Tea", "Tea > Green tea")
    assert TEA[best["start"] : best["end"]] == best["text"] == "## Green tea\n\nSteep it at 80 degrees."
    assert 0 < best["score"] <= 1
    read = (await client.get("/v1/rag/notes/documents/tea")).json()
    assert read["text"][best["start"] : best["end"]] == best["text"]
    assert (read["id"], read["title"], read["metadata"]) == ("tea", "Tea", {"lang": "en"})
    nothing = await client.get("/v1/rag/notes/documents/faq/nope")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "document_not_found")
    gone = await client.post("/v1/rag/notes/documents", json={"remove": ["tea", "nope"]})
    assert gone.json() == {"pipeline": "notes", "added": 0, "changed": 0, "removed": 1, "unchanged": 0}
    left = await client.post("/v1/rag/notes/query", json={"query": "green tea", "top_k": 5})
    assert "tea" not in {p["document"] for p in left.json()["passages"]}


async def test_files_come_in_as_base64(client):
    """A PDF and a page become text with their own titles, unless the caller says otherwise."""
    page = "<html><head><title>Coffee</title></head><body><h1>Espresso</h1><p>Nine bar.</p></body></html>"
    files = [
        {"id": "water", "media_type": "application/pdf", "data": based(pdf("Water boils", title="On water"))},
        {"id": "coffee", "media_type": "text/html", "text": page, "metadata": {"lang": "en"}},
        {"id": "cocoa", "title": "Cocoa", "media_type": "text/html", "data": based(page.encode())},
        {"id": "milk", "media_type": "text/plain", "data": based("Milk fröthes".encode())},
    ]
    put = await client.post("/v1/rag/notes/documents", json={"documents": files})
    assert (put.status_code, put.json()["added"]) == (200, 4)
    assert (await client.post("/v1/rag/notes/documents", json={"documents": files})).json()["unchanged"] == 4
    found: dict[str, Any] = {}
    for word in ("boils", "nine", "fröthes"):
        asked = await client.post("/v1/rag/notes/query", json={"query": word, "top_k": 2})
        found |= {p["document"]: (p["title"], p["heading"]) for p in asked.json()["passages"][:2]}
    assert found["water"] == ("On water", "On water > Page 1")
    assert found["coffee"] == ("Coffee", "Espresso")
    assert found["cocoa"] == ("Cocoa", "Espresso")
    assert "milk" in found


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"media_type": "application/pdf", "data": "bm8gcGRm"}, "'d' cannot be read"),
        ({"media_type": "application/pdf", "text": "words"}, "base64"),
        ({"media_type": "text/plain", "data": "AAAA"}, "binary"),
        ({"data": "no base64!"}, "base64"),
        ({"text": "a", "data": "YQ=="}, "exactly one"),
        ({}, "exactly one"),
    ],
)
async def test_what_is_no_such_file_is_refused_with_its_reason(client, document, says):
    answer = await client.post("/v1/rag/notes/documents", json={"documents": [{"id": "d", **document}]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert says.lower() in answer.text.lower()


async def test_filters_and_top_k(client):
    """Only documents with these values; a list means any of them."""
    documents = [
        {"id": f"n{n}", "text": f"word {n}", "metadata": {"n": n, "odd": n % 2 == 1}} for n in range(6)
    ]
    await client.post("/v1/rag/notes/documents", json={"documents": documents})

    async def found(**more) -> list[str]:
        answer = await client.post("/v1/rag/notes/query", json={"query": "word", "top_k": 10, **more})
        return sorted(p["document"] for p in answer.json()["passages"])

    assert len(await found()) == 6
    assert await found(filters={"n": 3}) == ["n3"]
    assert await found(filters={"n": [1, 2]}) == ["n1", "n2"]
    assert await found(filters={"document": "n4"}) == ["n4"]
    assert len(await found(top_k=1)) == 1


async def test_answers_cite_what_they_draw_on_whoever_has_found_it(tmp_path):
    """With offsets into document and answer: in runs, durable runs, responses, and of a nested agent.

    A document whose name is a part of a word, such as `al` of `always`, is not named.
    """
    seek = {"name": "seek", "type": "rag", "pipeline": "notes"}
    asks_clerk = {"name": "clerk", "type": "agent", "agent": "clerk", "effect": "read"}
    write(tmp_path, manifest("clerk", tools=[seek]), manifest("helper", tools=[asks_clerk]))
    pipeline_file(tmp_path, "notes")
    called = [ToolCall("c1", "seek", '{"query": "green tea"}')]
    asked = [ToolCall("c2", "clerk", '{"query": "How hot is green tea?"}')]
    said = "Sure. Steep green tea at 80 degrees, always."
    # clerk by itself as a run and as a response, then for helper as a durable run
    provider = ScriptedProvider(called, said, called, said, asked, called, said, f"Well, {said}")
    async with client_of(runtime_of(tmp_path, provider)) as client:
        url = "https://tea.example/green"
        document = {"id": "a/tea", "text": TEA, "metadata": {"url": url}}
        other = {"id": "al", "text": "# Coffee\n\nGreen coffee is roasted at 200 degrees."}
        await client.post("/v1/rag/notes/documents", json={"documents": [document, other]})
        body = {"query": "How hot is green tea?", "session_id": "s"}
        run = (await client.post("/v1/agents/clerk/run", json=body)).json()
        [cited] = run["citations"]
        passage = "## Green tea\n\nSteep it at 80 degrees."
        assert TEA[cited["start"] : cited["end"]] == cited["passage"] == passage
        assert (cited["document"], cited["title"], cited["url"]) == ("a/tea", "Tea", url)
        [[start, end]] = cited["spans"]
        assert run["response"][start:end] == "Steep green tea at 80 degrees, always."
        answer = await client.post("/v1/responses", json={"model": "clerk", "input": "x", "stream": True})
        events = [orjson.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        [added] = [one for one in events if one["type"] == "response.output_text.annotation.added"]
        [part] = next(one for one in events[-1]["response"]["output"] if one["type"] == "message")["content"]
        place = {"start_index": start, "end_index": end}
        annotation = {"type": "url_citation", "url": url, "title": "Tea", **place}
        assert part["annotations"] == [added["annotation"]] == [annotation]
        accepted = (await client.post("/v1/agents/helper/runs", json=body)).json()["run_id"]
        ended = await client.get(f"/v1/runs/{accepted}/events")  # until its end
        assert "run.completed" in ended.text
        result = (await client.get(f"/v1/runs/{accepted}")).json()["result"]
        assert result["citations"] == [{**cited, "spans": [[start + 6, end + 6]]}]


async def test_a_resumed_run_cites_what_a_nested_agent_found_before_it_waited(tmp_path):
    """The recorded call of the nested agent is not made again, and its citations count."""
    seek = {"name": "seek", "type": "rag", "pipeline": "notes"}
    asks_clerk = {"name": "clerk", "type": "agent", "agent": "clerk", "effect": "read"}
    pay = {"name": "pay", "type": "builtin", "approval": "required", "builtin": "current_time"}
    write(tmp_path, manifest("clerk", tools=[seek]), manifest("helper", tools=[asks_clerk, pay]))
    pipeline_file(tmp_path, "notes")
    said = "Steep green tea at 80 degrees."
    script = (
        [ToolCall("c2", "clerk", '{"query": "How hot?"}')],
        [ToolCall("c1", "seek", '{"query": "green tea"}')],
        said,
        [ToolCall("c3", "pay", "{}")],
        said,
    )
    async with client_of(runtime_of(tmp_path, ScriptedProvider(*script))) as client:
        await client.post("/v1/rag/notes/documents", json={"documents": [{"id": "tea", "text": TEA}]})
        body = {"query": "How hot?", "session_id": "s"}
        run = (await client.post("/v1/agents/helper/runs", json=body)).json()["run_id"]
        until = f"/v1/runs/{run}"
        async with asyncio.timeout(60):
            while (await client.get(until)).json()["status"] != "waiting":
                await asyncio.sleep(0.05)
        [approval] = (await client.get("/v1/approvals")).json()["approvals"]
        await client.post(f"{until}/resume", json={"decision": "approve", "id": approval["id"]})
        await client.get(f"{until}/events")
        result = (await client.get(until)).json()["result"]
    assert [one["document"] for one in result["citations"]] == ["tea"]


async def test_an_answer_that_its_passages_do_not_support_is_blocked_or_noted(tmp_path):
    """Before any text leaves if it is blocked; without a search nothing is compared."""
    tools = [{"name": "seek", "type": "rag", "pipeline": "notes"}]
    for name, action in (("strict", "block"), ("mild", "warn")):
        rule = {"type": "grounded", "action": action, "message": "I do not know."}
        write(tmp_path, manifest(name, tools=tools, guardrails={"output": [rule]}))
    pipeline_file(tmp_path, "notes")
    called = [ToolCall("c1", "seek", '{"query": "green tea"}')]
    true, made_up = "Green tea is steeped at 80 degrees.", "Our office dog likes to swim in the lake."
    script = (called, true, called, made_up, called, made_up, called, NOTHING_FOUND, made_up)
    async with client_of(runtime_of(tmp_path, ScriptedProvider(*script))) as client:
        await client.post("/v1/rag/notes/documents", json={"documents": [{"id": "tea", "text": TEA}]})

        async def asked(agent: str) -> tuple[str, list[dict[str, Any]]]:
            body = {"query": "Green tea?", "session_id": "s"}
            answer = await client.post(f"/v1/agents/{agent}/run", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["response"], answer.json()["metadata"]["guardrails"]

        about = {"stage": "output", "type": "grounded", "count": 1}
        assert await asked("strict") == (true, [])
        assert await asked("strict") == ("I do not know.", [{**about, "action": "block"}])
        assert await asked("mild") == (made_up, [{**about, "action": "warn"}])
        assert await asked("strict") == (NOTHING_FOUND, [])
        assert await asked("strict") == (made_up, [])


async def test_a_document_that_cannot_be_read_keeps_no_other_out(client):
    """It is reported with its reason; the one that was stored under its id stays."""
    broken = {"id": "tea", "media_type": "application/pdf", "data": based(b"no pdf")}
    await client.post("/v1/rag/notes/documents", json={"documents": [{"id": "tea", "text": TEA}]})
    body = {"documents": [broken, {"id": "mate", "text": "Steep the mate."}]}
    done = (await client.post("/v1/rag/notes/documents", json=body)).json()
    [unreadable] = done.pop("unreadable")
    assert done == {"pipeline": "notes", "added": 1, "changed": 0, "removed": 0, "unchanged": 0}
    assert unreadable["id"] == "tea"
    assert "'tea' cannot be read" in unreadable["reason"]
    asked = await client.post("/v1/rag/notes/query", json={"query": "steep", "top_k": 9})
    assert {one["document"] for one in asked.json()["passages"]} == {"tea", "mate"}


async def test_an_answer_tells_of_documents_of_another_embedder(tmp_path):
    """In the answer of the query; the check of the pipeline is in order."""
    write(tmp_path, manifest())
    asked = []
    for size in (64, 64, 32):
        pipeline_file(tmp_path, "notes", embeddings={"provider": "hashing", "dimensions": size})
        async with client_of(runtime_of(tmp_path, ScriptedProvider(repeat=True))) as client:
            asked.append((await client.post("/v1/rag/notes/query", json={"query": "green tea"})).json())
            body = {"documents": [{"id": "tea", "text": TEA}]}
            ready = (await client.get("/health/ready")).json()
            if size == 64:
                await client.post("/v1/rag/notes/documents", json=body)
    assert ready["checks"]["store:rag:notes"] == "ok"
    assert ["warning" in one for one in asked] == [False, False, True]
    assert asked[2]["warning"].endswith("it is found by words only. Run `astromesh rag ingest notes`.")
    assert {one["document"] for one in asked[2]["passages"]} == {"tea"}


async def test_an_unknown_pipeline_is_404_and_says_which_there_are(client):
    """On both routes."""
    for path, body in (("query", {"query": "x"}), ("documents", {"documents": [{"id": "a", "text": "x"}]})):
        answer = await client.post(f"/v1/rag/note/{path}", json=body)
        assert answer.status_code == 404
        assert answer.json()["code"] == "pipeline_not_found"
        assert "Did you mean `notes`?" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("documents", {}, "nothing to do"),
        ("documents", {"documents": [{"id": "a", "text": "x"}] * 501}, "documents"),
        ("documents", {"documents": [{"id": "", "text": "x"}]}, "documents.0.id"),
        ("documents", {"documents": [{"id": "a"}]}, "documents.0"),
        (
            "documents",
            {"documents": [{"id": "a", "text": "x", "media_type": "image/png"}]},
            "media_type",
        ),
        ("documents", {"documents": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}, "'a'"),
        ("documents", {"documents": [{"id": "a", "text": "x", "surprise": 1}]}, "surprise"),
        ("query", {}, "query"),
        ("query", {"query": ""}, "query"),
        ("query", {"query": "x", "top_k": 0}, "top_k"),
        ("query", {"query": "x", "top_k": 51}, "top_k"),
        ("query", {"query": "x", "filters": {"a": {"b": 1}}}, "filters.a"),
    ],
)
async def test_what_is_wrong_is_said_with_its_place(client, path, body, where):
    """422, and nothing is stored."""
    answer = await client.post(f"/v1/rag/notes/{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert where in answer.json()["detail"]
    assert (await client.post("/v1/rag/notes/query", json={"query": "x"})).json()["passages"] == []


async def test_files_of_a_folder_cannot_be_overwritten_from_outside(client):
    """Nor removed; the folder says what they are."""
    for body in ({"documents": [{"id": "faq.md", "text": "x"}]}, {"remove": ["faq.md"]}):
        answer = await client.post("/v1/rag/faq/documents", json=body)
        assert answer.status_code == 422
        assert "folder" in answer.json()["detail"]
    asked = await client.post("/v1/rag/faq/query", json={"query": "refunds"})
    assert [p["document"] for p in asked.json()["passages"]] == ["faq.md"]


async def test_a_pipeline_that_could_not_be_opened_is_503(tmp_path):
    """Its agents and its routes; the server runs on."""
    write(tmp_path, manifest())
    pipeline_file(tmp_path, "k")
    (tmp_path / "data" / "rag" / "k.db").mkdir(parents=True)
    async with client_of(runtime_of(tmp_path, ScriptedProvider(repeat=True))) as client:
        answer = await client.post("/v1/rag/k/query", json={"query": "x"})
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        assert (await client.get("/health/live")).status_code == 200


async def test_a_reranker_of_the_manifest_orders_what_is_found(tmp_path):
    """Written like a role of an agent's models."""
    write(tmp_path, manifest())
    model = {"primary": {"provider": "scripted", "model": "m"}, "candidates": 5}
    pipeline_file(tmp_path, "k", retrieval={"top_k": 1, "reranker": model})
    provider = ScriptedProvider('{"grades": [1, 8]}')
    async with client_of(runtime_of(tmp_path, provider)) as client:
        documents = [{"id": "a", "text": "tea tea tea"}, {"id": "b", "text": "tea"}]
        await client.post("/v1/rag/k/documents", json={"documents": documents})
        asked = await client.post("/v1/rag/k/query", json={"query": "tea"})
    assert len(provider.requests) == 1
    [passage] = asked.json()["passages"]
    assert passage["score"] == 0.8


async def test_evaluations_are_listed_newest_first_with_their_questions(client, tmp_path):
    """Those of other pipelines and tenants, and files that are no reports, are left out."""
    asked = (AskedQuestion("How hot?", "tea.md", 2, "milk.md", 0.4, 1.5, False),)
    for number, tenant in enumerate(("default", "default", "default", "acme")):
        report = RetrievalReport(
            evaluation_id=f"rag_{number}", pipeline="notes" if number else "faq", questions="q.tsv",
            tenant=tenant, started_at=float(number), measures={"questions": 1.0, "hit@1": 0.0}, asked=asked,
        )  # fmt: skip
        file = store_retrieval(tmp_path / "data", report)
    file.with_name("rag_9.json").write_text("{}")
    path = "/v1/rag/notes/evaluations"
    first = (await client.get(path, params={"limit": 1})).json()
    second = (await client.get(path, params={"after": first["next"]})).json()
    listed = [*first["evaluations"], *second["evaluations"]]
    assert [one["evaluation_id"] for one in listed] == ["rag_2", "rag_1"]
    assert (listed[0]["measures"], "asked" in listed[0], second["next"]) == (report.measures, False, None)
    whole = (await client.get(f"{path}/rag_2")).json()
    assert whole["asked"] == report.to_json()["asked"] and "tenant" not in whole
    for missing in ("rag_0", "rag_3", "rag_9", "eval_1"):
        assert (await client.get(f"{path}/{missing}")).status_code == 404
    assert (await client.get("/v1/rag/none/evaluations")).status_code == 404
