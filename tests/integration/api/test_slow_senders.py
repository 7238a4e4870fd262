"""Who sends a request slowly, or half of one, is told so in the end and takes no room from anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar

import orjson
import uvicorn

from astromesh.api.app import create_app
from astromesh.api.middleware.limits import ConcurrencyLimits
from astromesh.cli.commands.serve import uvicorn_config
from astromesh.cli.uvicorn_protocols import BoundedHttp
from astromesh.config.runtime import RuntimeSpec
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

BODY = orjson.dumps({"query": "Hello?", "session_id": "s"})
HEAD = b"POST /v1/agents/helper/run HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


class Hasty(BoundedHttp):
    head_seconds: ClassVar[float] = 0.3
    body_seconds: ClassVar[float] = 0.3


class Patient(BoundedHttp):
    head_seconds: ClassVar[float] = 600.0
    body_seconds: ClassVar[float] = 600.0


Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """Connections to one server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[asyncio.StreamWriter] = []

    async def sent(self, data: bytes = b"") -> Wires:
        """A connection on which this was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def close(self) -> None:
        for writer in self._open:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._open), return_exceptions=True)


@asynccontextmanager
async def serving(
    folder: Path, protocol: type[BoundedHttp], room: ConcurrencyLimits
) -> AsyncIterator[Clients]:
    runtime = runtime_of(write(folder, manifest()), ScriptedProvider("hello", repeat=True))
    app = create_app(runtime, limits=room)
    config = uvicorn_config(app, RuntimeSpec())
    config.load()
    state = uvicorn.server.ServerState()
    async with app.router.lifespan_context(app):
        server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with server:
            clients = Clients(server.sockets[0].getsockname()[1])
            yield clients
            await clients.close()


async def told(wires: Wires) -> tuple[int, dict[str, object]]:
    """Status and body of the next answer."""
    async with asyncio.timeout(30):
        head = await wires[0].readuntil(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        return int(head.split()[1]), orjson.loads(await wires[0].readexactly(int(lines[b"content-length"])))


async def test_half_a_body_is_408_and_the_connection_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, Hasty, ConcurrencyLimits()) as clients:
        wires = await clients.sent(HEAD % len(BODY) + BODY[:5])
        status, body = await told(wires)
        assert await wires[0].read() == b""
    assert (status, body["code"]) == (408, "request_timeout")
    assert body["detail"] == "The body of the request did not arrive within 0.3 seconds."


async def test_half_a_head_is_408(tmp_path: Path) -> None:
    async with serving(tmp_path, Hasty, ConcurrencyLimits()) as clients:
        status, body = await told(await clients.sent(b"GET /v1/agents HTTP/1.1\r\nhost: x\r\nx-a: "))
    assert (status, body["code"]) == (408, "request_timeout")
    assert body["detail"] == "The head of the request did not arrive within 0.3 seconds."


async def test_who_drips_a_head_byte_by_byte_is_hung_up_on(tmp_path: Path) -> None:
    """What was said in parting may be lost: bytes that nobody reads any more reset the connection."""
    async with serving(tmp_path, Hasty, ConcurrencyLimits()) as clients, asyncio.timeout(30):
        reader, writer = await clients.sent(b"GET /v1/agents HTTP/1.1\r\nhost: x\r\nx-a: ")
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(4096), 0.01)


async def test_who_says_nothing_at_all_is_hung_up_on(tmp_path: Path) -> None:
    async with serving(tmp_path, Hasty, ConcurrencyLimits()) as clients, asyncio.timeout(30):
        wires = await clients.sent()
        assert await wires[0].read() == b""


async def test_a_body_that_comes_in_pieces_is_answered_and_so_is_the_next_request(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(HEAD % len(BODY))
        for byte in (BODY[:5], BODY[5:]):
            wires[1].write(byte)
            await asyncio.sleep(0.02)
        first = await told(wires)
        wires[1].write(HEAD % len(BODY) + BODY)
        second = await told(wires)
    assert [(status, body["response"]) for status, body in (first, second)] == [(200, "hello")] * 2


async def test_halves_of_requests_take_no_room_of_those_that_are_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits(requests=2, sockets=8)) as clients:
        halves = [await clients.sent(HEAD % len(BODY) + BODY[:5]) for _ in range(8)]
        whole = await told(await clients.sent(HEAD % len(BODY) + BODY))
        more = await told(await clients.sent(HEAD % len(BODY) + BODY[:5]))
        halves[0][1].write(BODY[5:])
        late = await told(halves[0])
        again = await clients.sent(HEAD % len(BODY) + BODY[:5])
        again[1].write(BODY[5:])
        last = await told(again)
    assert [whole[0], late[0], last[0]] == [200, 200, 200]
    assert (more[0], more[1]["detail"]) == (
        503,
        "8 requests are incomplete, as many as spec.api.max_sockets allows. Try again later.",
    )
