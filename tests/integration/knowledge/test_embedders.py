"""Embedders against a real HTTP service: batches, the cache, tries, errors, and vectors that fit."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from astromesh.errors import (
    MissingKey,
    ProviderRateLimited,
    ProviderRejected,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from astromesh.knowledge.embedders import HashingEmbedder
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock


class Service:
    """Answers by OpenAI's or Ollama's format; a text's vector is its length and two constants."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.refuse: list[web.Response] = []
        self.change: Callable[[Any], Any] = lambda answer: answer

    def vector(self, text: str) -> list[float]:
        return [float(len(text)), 2.0, 2.0]

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        if self.refuse:
            return self.refuse.pop(0)
        vectors = [self.vector(text) for text in body["input"]]
        if request.path == "/api/embed":
            return web.json_response(self.change({"embeddings": vectors}))
        coded = [base64.b64encode(array("f", v).tobytes()).decode() for v in vectors]
        shown = coded if body.get("encoding_format") == "base64" else vectors
        data = [{"index": n, "embedding": v} for n, v in enumerate(shown)]
        return web.json_response(self.change({"data": data[::-1]}))

    async def alive(self, request: web.Request) -> web.Response:
        return web.json_response(
            {}, status=401 if request.headers.get("authorization") == "Bearer wrong" else 200
        )


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/v1/embeddings", made.embeddings)
    app.router.add_post("/api/embed", made.embeddings)
    app.router.add_get("/v1/models", made.alive)
    app.router.add_get("/api/version", made.alive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(jump=True)


@pytest.fixture
async def deps(clock: ManualClock) -> AsyncIterator[Deps]:
    async with Http() as http:
        yield Deps(http=http, clock=clock)


async def opened(kind: str, service: Service, deps: Deps, **options: Any) -> Any:
    endpoint = service.url + ("/v1" if kind == "openai" else "")
    given = {"model": "m", "endpoint": endpoint, **options}
    return await Plugins().open("embedders", kind, given, deps)


KINDS = pytest.mark.parametrize("kind", ["openai", "ollama"])


@KINDS
async def test_vectors_have_length_one_and_come_in_the_order_of_the_texts(kind, service, deps):
    embedder = await opened(kind, service, deps)
    vectors = await embedder.embed(["a", "abcd"])
    for vector, text in zip(vectors, ["a", "abcd"], strict=True):
        size = math.sqrt(len(text) ** 2 + 8)
        assert list(vector) == pytest.approx([len(text) / size, 2 / size, 2 / size])
    assert embedder.dimensions == 3
    assert embedder.fingerprint == f"{kind}/m"
    assert embedder.semantic


async def test_a_service_without_base64_is_understood_too(service, deps):
    embedder = await opened("openai", service, deps, encoding="float", dimensions=3, api_key="k")
    assert len((await embedder.embed(["a"]))[0]) == 3
    assert service.bodies[0] == {"model": "m", "encoding_format": "float", "dimensions": 3, "input": ["a"]}
    assert service.keys == ["Bearer k"]


@KINDS
async def test_many_texts_are_sent_in_batches_each_content_once(kind, service, deps):
    embedder = await opened(kind, service, deps, batch_size=10)
    texts = [f"text {n % 35}" for n in range(100)]
    vectors = await embedder.embed(texts)
    assert len(vectors) == 100
    assert vectors[0] == vectors[35]
    assert sorted(len(body["input"]) for body in service.bodies) == [5, 10, 10, 10]


@KINDS
async def test_what_was_embedded_before_costs_no_call(kind, service, deps):
    embedder = await opened(kind, service, deps)
    first = await embedder.embed(["a", "b"])
    assert await embedder.embed(["b", "a"]) == list(reversed(first))
    await embedder.embed(["a", "c"])
    assert [body["input"] for body in service.bodies] == [["a", "b"], ["c"]]


async def test_the_cache_is_bounded(service, deps):
    embedder = await opened("openai", service, deps, cache_mb=0)
    await embedder.embed(["a"])
    assert len(await embedder.embed(["a", "a"])) == 2
    assert len(service.bodies) == 2


async def test_no_texts_are_no_call_and_odd_texts_are_sent_as_services_take_them(service, deps):
    embedder = await opened("openai", service, deps, max_characters=100)
    assert await embedder.embed([]) == []
    assert service.bodies == []
    await embedder.embed(["", "x" * 500, "a\ud800b"])
    assert service.bodies[0]["input"] == [" ", "x" * 100, "a?b"]


@pytest.mark.parametrize("status", [429, 500, 503, 408])
async def test_what_may_pass_is_tried_again(status, service, deps, clock):
    """Twice refused, then answered; a service that says how long to wait is obeyed."""
    embedder = await opened("openai", service, deps)
    service.refuse = [web.Response(status=status, headers={"retry-after": "2"}), web.Response(status=status)]
    before = clock.monotonic()
    vectors = await embedder.embed(["a"])
    assert len(vectors) == 1
    assert len(service.bodies) == 3
    assert clock.monotonic() - before >= 2.0


@pytest.mark.parametrize(
    ("status", "kind", "calls"),
    [(401, ProviderUnauthorized, 1), (400, ProviderRejected, 1), (500, ProviderUnavailable, 3)],
)
async def test_what_stays_is_said(status, kind, calls, service, deps):
    embedder = await opened("openai", service, deps, name="acme", api_key="sk-secret-key")
    error = {"error": {"message": "bad sk-secret-key"}}
    service.refuse = [web.json_response(error, status=status) for _ in range(3)]
    with pytest.raises(kind) as refused:
        await embedder.embed(["a"])
    assert refused.value.provider == "acme/m"
    assert "secret" not in str(refused.value)
    assert len(service.bodies) == calls


async def test_a_long_wait_is_not_waited_for(service, deps):
    embedder = await opened("openai", service, deps)
    service.refuse = [web.Response(status=429, headers={"retry-after": "3600"})]
    with pytest.raises(ProviderRateLimited):
        await embedder.embed(["a"])


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: {"data": answer["data"][:1]},
        lambda answer: {"data": [{**one, "embedding": [1.0, "x"]} for one in answer["data"]]},
        lambda answer: {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]},
        lambda answer: {"data": [{**one, "embedding": []} for one in answer["data"]]},
        lambda answer: [],
        lambda answer: {"data": [{**one, "embedding": "!!!"} for one in answer["data"]]},
        lambda answer: {"data": [{**one, "embedding": [1e39, 1.0]} for one in answer["data"]]},
    ],
)
async def test_an_answer_that_is_no_vectors_is_an_error(change, service, deps):
    embedder = await opened("openai", service, deps)
    service.change = change
    with pytest.raises(ProviderUnavailable, match="vector"):
        await embedder.embed(["a", "b"])


async def test_vectors_of_another_size_than_before_are_an_error(service, deps):
    embedder = await opened("openai", service, deps)
    await embedder.embed(["a"])
    service.vector = lambda text: [1.0, 2.0]
    with pytest.raises(ProviderUnavailable, match="2 dimensions instead of 3"):
        await embedder.embed(["b"])


async def test_a_large_answer_is_read_without_holding_the_event_loop(service, deps, free_loop):
    embedder = await opened("openai", service, deps, encoding="float", batch_size=500)
    service.vector = lambda text: [float(len(text)), *([0.25] * 255)]
    assert len(await embedder.embed([f"text {n}" for n in range(500)])) == 500


@KINDS
async def test_a_ping_tells_a_wrong_key(kind, service, deps):
    await (await opened(kind, service, deps)).ping()
    with pytest.raises(ProviderUnauthorized):
        await (await opened(kind, service, deps, api_key="wrong")).ping()


async def test_what_cannot_work_is_refused_when_it_is_opened(deps):
    keyless = {"model": "m", "api_key_env": "NO_SUCH_KEY_IS_SET"}
    with pytest.raises(MissingKey, match="NO_SUCH_KEY_IS_SET"):
        await Plugins().open("embedders", "openai", keyless, deps)
    with pytest.raises(ValueError, match="http or https"):  # the configuration names the line
        await Plugins().open("embedders", "ollama", {"model": "m", "endpoint": "ftp://x"}, deps)


# -- hashing -------------------------------------------------------------------------------------------------


async def test_hashing_is_the_same_everywhere_and_says_that_it_knows_no_meaning():
    embedder = HashingEmbedder(64)
    assert not embedder.semantic
    first, again = await embedder.embed(["The router restarts.", "The router restarts."])
    assert first == again
    assert len(first) == 64
    assert math.fsum(x * x for x in first) == pytest.approx(1.0)
    assert [round(x, 4) for x in (await HashingEmbedder(16).embed(["router"]))[0]] == [
        round(x, 4) for x in (await HashingEmbedder(16).embed(["the ROUTER"]))[0]
    ]


async def test_hashing_puts_inflections_nearer_than_other_words():
    embedder = HashingEmbedder()
    query, inflected, other = await embedder.embed(["subscription", "the subscriptions", "invoice"])
    assert _cosine(query, inflected) > 0.4 > _cosine(query, other)


async def test_hashing_many_texts_leaves_the_event_loop_free(free_loop):
    assert len(await HashingEmbedder().embed([f"text number {n}" for n in range(200)])) == 200


async def test_a_text_without_words_has_no_direction():
    (vector,) = await HashingEmbedder(16).embed(["?!"])
    assert not any(vector)


def _cosine(a: Any, b: Any) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))
