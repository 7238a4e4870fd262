"""Pages of the web as sources: what is fetched, what an unchanged page costs, what follows a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from astromesh.errors import InvalidConfiguration
from astromesh.knowledge.chunking import ChunkOptions, MarkdownChunker
from astromesh.knowledge.pipeline import RAGPipeline
from astromesh.knowledge.sqlite import SqliteChunkStores
from astromesh.knowledge.web_pages import WebPages
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.runtime.bootstrap import open_single_pipeline
from astromesh.testing import ManualClock
from tests.integration.knowledge.rag_files import pdf, pipeline_file

TEA = "# Tea\n\nSteep green tea at eighty degrees."
HOUR = 3600.0


class Site:
    """A web server whose pages a test changes."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = ""
        #: what answers wait for
        self.free: asyncio.Event | None = None

    def page(
        self, path: str, body: str | bytes, kind: str = "text/markdown", etag: str = "", **more: str
    ) -> str:
        """Serves a page with an ETag, as its protocol says; returns its URL."""

        def answer(request: web.Request) -> web.Response:
            if etag and request.headers.get("If-None-Match") == etag:
                return web.Response(status=304)
            data = body.encode() if isinstance(body, str) else body
            headers = {"Content-Type": kind, **({"ETag": etag} if etag else {}), **more}
            return web.Response(body=data, headers=headers)

        self.pages[path] = answer
        return self.url + path

    def fails(self, path: str, status: int, **headers: str) -> str:
        self.pages[path] = lambda _: web.Response(status=status, headers=headers)
        return self.url + path

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, dict(request.headers)))
        if self.free is not None:
            await self.free.wait()
        made = self.pages.get(request.path)
        return made(request) if made else web.Response(status=404)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made, app = Site(), web.Application()
    app.router.add_get("/{path:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@asynccontextmanager
async def pipeline(
    tmp_path: Path, *urls: str, clock: ManualClock, allow: tuple[str, ...] = ("127.0.0.1",)
) -> AsyncIterator[RAGPipeline]:
    """A pipeline over pages, with its index and its cache in `tmp_path`; several in a row share both."""
    plugins, resources = Plugins(), Resources()
    stores = await SqliteChunkStores.open(
        SqliteChunkStores.Options(), Deps(data_dir=tmp_path, resources=resources)
    )
    async with Http(allow) as http:
        readers = lambda kind: plugins.load("readers", kind)()  # noqa: E731
        pages = WebPages([(url, HOUR) for url in urls], tmp_path / "pages", http, readers, clock)
        chunker = MarkdownChunker(ChunkOptions())
        pipe = RAGPipeline(
            "k", await stores.collection("k"), chunker, pages=pages, readers=readers, clock=clock
        )
        yield pipe
        await pipe.close()
    await resources.close()


async def found(pipe: RAGPipeline, query: str) -> list[str]:
    return [passage.chunk.document for passage in await pipe.query(query)]


async def test_pages_of_every_kind_are_found_and_cited_by_their_address(site: Site, tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    urls = [
        site.page("/tea", TEA),
        site.page("/coffee.html", "<h1>Coffee</h1><p>Grind beans.</p>", "text/html; charset=utf-8"),
        site.page("/umlaut", "<p>Käse reift.</p>".encode("latin-1"), "text/html; charset=ISO-8859-1"),
        site.page("/raw/cocoa.md", "# Cocoa\n\nStir it.", "text/plain"),
        site.page("/menu.pdf", pdf("Lemonade is cold", title="Menu"), "application/octet-stream"),
        site.fails("/moved", 302, Location="/tea"),
    ]
    async with pipeline(tmp_path, *urls, clock=clock) as pipe:
        assert (await pipe.refresh()).added == 6
        for query, url in (("grind", urls[1]), ("Käse", urls[2]), ("stir", urls[3]), ("lemonade", urls[4])):
            assert await found(pipe, query) == [url]
        best = (await pipe.query("green tea"))[0].to_json()
        assert (best["title"], best["url"]) == ("Tea", best["document"])
        listed = await pipe.documents(of="sources")
        assert [one.id for one in listed] == sorted(urls)


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "nonsense"])
async def test_a_page_in_an_encoding_that_no_page_has_is_utf_8(
    site: Site, tmp_path: Path, charset: str
) -> None:
    """Python would take hours for Punycode: its time is quadratic."""
    url = site.page("/kettle", "# Kettles\n\nBoil \\ud800 a-b9c.", f"text/markdown; charset={charset}")
    async with pipeline(tmp_path, url, clock=ManualClock(1e9)) as pipe:
        await pipe.refresh()
        assert [one.chunk.text for one in await pipe.query("boil")] == ["# Kettles\n\nBoil \\ud800 a-b9c."]


async def test_an_unchanged_page_costs_no_body_and_survives_a_restart(site: Site, tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    tag, dated = site.page("/tea", TEA, etag='"1"'), site.page("/old", "# Old", **{"Last-Modified": "Mon"})
    async with pipeline(tmp_path, tag, dated, clock=clock) as pipe:
        await pipe.refresh()
        clock.advance(HOUR - 1)
        await pipe.refresh()
        assert len(site.requests) == 2
        clock.advance(1)
        assert (await pipe.refresh()).unchanged == 2
        asked = dict(site.requests[2:])
        assert asked["/tea"]["If-None-Match"] == '"1"'
        assert asked["/old"]["If-Modified-Since"] == "Mon"
    async with pipeline(tmp_path, tag, dated, clock=clock) as pipe:
        assert (await pipe.refresh()).unchanged == 2
        assert len(site.requests) == 4
        site.page("/tea", TEA.replace("eighty", "seventy"), etag='"2"')
        clock.advance(HOUR)
        assert (await pipe.refresh()).changed == 1
        assert "seventy" in (await pipe.query("green tea"))[0].chunk.text


async def test_a_page_that_is_gone_is_removed_and_one_that_fails_stays(site: Site, tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    gone, failing = site.page("/gone", "# Gone\n\nRarely read."), site.page("/failing", TEA)
    absent, odd = site.url + "/absent", site.page("/odd", b"\x00", "image/png")
    async with pipeline(tmp_path, gone, failing, absent, odd, clock=clock) as pipe:
        with capture_logs() as logs:
            assert (await pipe.refresh()).added == 2
        assert {entry["url"] for entry in logs if entry["event"] == "page_skipped"} == {absent, odd}
        site.fails("/gone", 410)
        site.fails("/failing", 500)
        clock.advance(HOUR)
        with capture_logs() as logs:
            assert (await pipe.refresh()).removed == 1
        assert "500" in next(entry["why"] for entry in logs if entry.get("url") == failing)
        assert await found(pipe, "green tea") == [failing]
        assert await found(pipe, "rarely") == []
        site.page("/gone", "# Gone\n\nRarely read.")
        clock.advance(HOUR)
        assert (await pipe.refresh()).added == 1


async def test_a_private_address_is_refused_and_the_others_count(site: Site, tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    async with pipeline(tmp_path, site.page("/tea", TEA), clock=clock, allow=()) as pipe:
        with capture_logs() as logs:
            assert (await pipe.refresh()).added == 0
    assert "network.allow_hosts" in logs[0]["why"]
    assert site.requests == []


async def test_a_question_does_not_wait_for_a_slow_site(site: Site, tmp_path: Path) -> None:
    """Nor does a document whose page is not there yet vanish: it may be that of another machine."""
    clock, free = ManualClock(1e9), asyncio.Event()
    url = site.page("/tea", TEA)
    async with pipeline(tmp_path, url, clock=clock) as pipe:
        await pipe.refresh()
    for file in (tmp_path / "pages").iterdir():
        file.unlink()
    site.free = free
    async with pipeline(tmp_path, url, clock=clock) as pipe:
        assert await found(pipe, "green tea") == [url]
        free.set()
        assert (await pipe.refresh()).removed == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"url": "https://user:secret@example.com/"}, "no user"),
        ({"url": "https://example.com/", "path": "docs"}, "either"),
        ({}, "either"),
        ({"url": "https://example.com/", "type": "folder"}, "type folder"),
    ],
)
async def test_a_source_is_a_folder_or_a_page(tmp_path: Path, source: dict[str, str], says: str) -> None:
    pipeline_file(tmp_path, sources=[source])
    with pytest.raises(InvalidConfiguration, match=says):
        async with open_single_pipeline(tmp_path, tmp_path / "data", "k"):
            pass
