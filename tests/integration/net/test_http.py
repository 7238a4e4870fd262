"""The shared HTTP session against real servers: bounds, faults, redirects, kept-alive connections, guard."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from astromesh.errors import AddressForbidden, AnswerTooLarge, NetError, NetTimeout
from astromesh.net.http import Http, StreamingResponse

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[str]:
    """A server with one route per handler, `/NAME`."""
    app = web.Application()
    for name, handler in handlers.items():
        app.router.add_route("*", f"/{name}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(*answers: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """Answers the n-th request of all with the n-th bytes; empty bytes close the connection without a word.

    The list holds the number of the connection that each request came over.
    """
    planned, seen, connections = list(answers), [], [0]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[0] += 1
        number = connections[0]
        try:
            while planned and await reader.readuntil(b"\r\n\r\n"):
                seen.append(number)
                await reader.readexactly(2)
                answer = planned.pop(0)
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", seen


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Names(AbstractResolver):
    """Names to addresses as a table says; each lookup takes the next of several."""

    def __init__(self, **table: list[str]) -> None:
        self.table = {name.replace("_", "."): addresses for name, addresses in table.items()}

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        if host not in self.table:
            raise OSError("unknown")
        addresses = self.table[host]
        address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


# -- kept-alive connections ----------------------------------------------------------------------------------


async def test_a_post_is_sent_again_where_a_kept_alive_connection_closed_before_the_first_byte():
    async with raw_server(OK, b"", OK) as (url, seen), Http() as http:
        for _ in range(2):
            assert (await http.request("POST", url, body=b"hi", resend=True)).body == b"ok"
    assert seen == [1, 1, 2]


async def test_a_stream_is_asked_for_again_likewise():
    async with raw_server(OK, b"", OK) as (url, seen), Http() as http:
        await http.request("POST", url, body=b"hi")
        async with http.stream("POST", url, body=b"hi") as incoming:
            assert await incoming.read() == b"ok"
    assert seen == [1, 1, 2]


async def test_a_fresh_connection_that_closes_is_an_error_at_once():
    async with raw_server(b"", OK) as (url, seen), Http() as http:
        with pytest.raises(NetError):
            await http.request("POST", url, body=b"hi", resend=True)
    assert seen == [1]


async def test_nothing_is_sent_again_unasked_or_after_the_first_byte():
    async with raw_server(OK, b"", OK) as (url, seen), Http() as http:
        await http.request("POST", url, body=b"hi")
        with pytest.raises(NetError):
            await http.request("POST", url, body=b"hi")
    assert seen == [1, 1]
    async with (
        raw_server(OK, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal", OK) as (url, seen),
        Http() as http,
    ):
        await http.request("POST", url, body=b"hi", resend=True)
        with pytest.raises(NetError):
            await http.request("POST", url, body=b"hi", resend=True, timeout=0.3)
    assert seen == [1, 1]


# -- bounds and faults ---------------------------------------------------------------------------------------


async def test_bodies_are_bounded_announced_or_not_and_packed_or_not():
    async def plain(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 1000)

    async def chunked(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 10)
        return response

    async def packed(_: web.Request) -> web.StreamResponse:
        return web.Response(body=gzip.compress(b"x" * 1000), headers={"content-encoding": "gzip"})

    async with serving(plain=plain, chunked=chunked, packed=packed) as url, Http() as http:
        for name in ("plain", "chunked", "packed"):
            assert len((await http.request("GET", f"{url}/{name}", limit=1000)).body) == 1000
            with pytest.raises(AnswerTooLarge):
                await http.request("GET", f"{url}/{name}", limit=999)


async def test_faults_are_named_without_path_query_or_credentials():
    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.Response()

    async with serving(slow=slow) as url, Http() as http:
        with pytest.raises(NetTimeout) as late:
            await http.request("GET", f"{url}/slow?key=s3cret", timeout=0.1)
        assert "s3cret" not in str(late.value)
    async with Http() as http:
        for wrong in (
            "http://127.0.0.1:9/",
            "http://x.invalid/",
            "nonsense",
            "http://[",
            "ftp://x/",
        ):
            with pytest.raises(NetError):
                await http.request("GET", wrong)
    async with raw_server(b"this is not HTTP\r\n\r\n") as (url, _), Http() as http:
        with pytest.raises(NetError):
            await http.request("POST", url, body=b"hi")


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def broken_body(first: bytes, rest: bytes) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Answers with `first`, and when `GET /more` comes with `rest`; the connection stays open.

    The event: the first part has been sent.
    """
    waiting: list[asyncio.StreamWriter] = []
    sent = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            asked = await reader.readuntil(b"\r\n\r\n")
            if asked.startswith(b"GET /more"):
                waiting.pop().write(rest)
                writer.write(OK)
            else:
                writer.write(first)
                waiting.append(writer)
                sent.set()
            await reader.read()  # until the client goes
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", sent


async def until_the_end(incoming: StreamingResponse) -> None:
    while await incoming.chunk():
        pass


NO_CHUNKS = [
    b"zz\r\nabc\r\n",
    b"<html>502 Bad Gateway</html>",
    b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
    b"2\r\nlonger than announced\r\n",
]


@pytest.mark.parametrize("rest", NO_CHUNKS)
@pytest.mark.parametrize("first", [b"", b"2\r\nok\r\n"])
async def test_bytes_that_are_no_chunk_end_a_stream_at_once_although_the_connection_stays_open(first, rest):
    async with broken_body(CHUNKED + first, rest) as (url, _), Http() as http, asyncio.timeout(20):
        async with http.stream("POST", f"{url}/", body=b"hi", read_timeout=60) as incoming:
            assert incoming.status == 200
            if first:
                assert await incoming.chunk() == b"ok"
            await http.request("GET", f"{url}/more")
            with pytest.raises(NetError, match="invalid HTTP in the middle") as broken:
                await until_the_end(incoming)
        assert not isinstance(broken.value, NetTimeout)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("rest", NO_CHUNKS)
async def test_bytes_that_are_no_chunk_end_a_whole_body_at_once(rest, trusted):
    async with (
        broken_body(CHUNKED + b"2\r\nok\r\n", rest) as (url, sent),
        Http(["127.0.0.1"]) as http,
        asyncio.timeout(20),
    ):
        ask = http.request if trusted else http.fetch_untrusted
        reading = asyncio.ensure_future(ask("GET", f"{url}/", timeout=60))
        await sent.wait()
        await http.request("GET", f"{url}/more")
        with pytest.raises(NetError, match=r"(not|invalid) HTTP") as broken:
            await reading
        assert not isinstance(broken.value, NetTimeout)


async def test_a_closed_session_says_so():
    with pytest.raises(RuntimeError, match="context manager"):
        await Http().request("GET", "http://127.0.0.1/")


# -- untrusted hosts and redirects ---------------------------------------------------------------------------


async def hello(_: web.Request) -> web.StreamResponse:
    return web.Response(text="hello")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "127.1", "[::ffff:127.0.0.1]"],
)
async def test_untrusted_urls_do_not_reach_this_machine(host):
    async with serving(hello=hello) as url, Http() as http:
        port = url.rpartition(":")[2]
        assert (await http.request("GET", f"{url}/hello")).body == b"hello"
        with pytest.raises(NetError):
            await http.fetch_untrusted("GET", f"http://{host}:{port}/hello")


async def test_a_name_that_points_inwards_is_refused_also_at_its_second_lookup():
    names = Names(inner_test=["10.0.0.1"], rebound_test=["127.0.0.1", "8.8.8.8"])
    async with Http(resolver=names) as http:
        for host in ("inner.test", "rebound.test"):
            with pytest.raises(AddressForbidden):
                await http.fetch_untrusted("GET", f"http://{host}/")


async def test_an_allowed_host_is_reached_and_nothing_beside_it():
    names = Names(wiki_test=["127.0.0.1"], other_test=["127.0.0.1"])
    async with serving(hello=hello) as url, Http(["wiki.test"], names) as http:
        port = url.rpartition(":")[2]
        assert (await http.fetch_untrusted("GET", f"http://wiki.test:{port}/hello")).body == b"hello"
        with pytest.raises(AddressForbidden):
            await http.fetch_untrusted("GET", f"http://other.test:{port}/hello")


async def test_a_connection_of_a_trusted_call_does_not_serve_an_untrusted_one():
    async with serving(hello=hello) as url, Http() as http:
        await http.request("GET", f"{url}/hello")
        with pytest.raises(AddressForbidden):
            await http.fetch_untrusted("GET", f"{url}/hello")


async def test_redirects_are_judged_again_and_lose_the_credentials():
    got: list[str | None] = []

    async def away(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(f"http://other.test:{request.url.port}/end")

    async def end(request: web.Request) -> web.StreamResponse:
        got.append(request.headers.get("authorization"))
        return web.Response(text=request.method)

    async def near(_: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/end")

    async with serving(away=away, end=end, near=near) as url:
        key = {"authorization": "Bearer s3cret"}
        async with Http(resolver=Names(other_test=["127.0.0.1"])) as http:
            assert (
                await http.request("POST", f"{url}/near", body=b"x", headers=key, follow=True)
            ).body == b"POST"
            assert (await http.request("GET", f"{url}/away", headers=key)).status == 302
            with pytest.raises(AddressForbidden):
                await http.request("GET", f"{url}/away", headers=key, follow=True)
        async with Http(["other.test"], Names(other_test=["127.0.0.1"])) as http:
            assert (
                await http.request("POST", f"{url}/away", body=b"x", headers=key, follow=True)
            ).body == b"GET"
    assert got == ["Bearer s3cret", None]


async def test_circles_and_other_schemes_are_refused():
    async def circle(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/circle")

    async def scheme(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("file:///etc/passwd")

    async with serving(circle=circle, scheme=scheme) as url, Http() as http:
        for name in ("circle", "scheme"):
            with pytest.raises(NetError):
                await http.request("GET", f"{url}/{name}", follow=True)
