"""A response costs one write, and none of it waits longer than a turn of the event loop."""

from __future__ import annotations

import asyncio

from astromesh.cli.uvicorn_protocols import ResponseTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire(asyncio.Transport):
    """Keeps what each write hands to the socket."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True


async def test_head_and_body_are_one_write() -> None:
    wire = Wire()
    transport = ResponseTransport(wire, asyncio.get_running_loop())
    transport.write(HEAD)
    transport.write(b"{}")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.writes == [HEAD + b"{}", b"more"]


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    wire = Wire()
    transport = ResponseTransport(wire, asyncio.get_running_loop())
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert wire.writes == [HEAD]
    transport.write(b"data: 1\n\n")
    assert wire.writes == [HEAD, b"data: 1\n\n"]


async def test_pipelined_responses_stay_in_order() -> None:
    wire = Wire()
    transport = ResponseTransport(wire, asyncio.get_running_loop())
    for part in (HEAD, b"{}", HEAD, HEAD, b"[]"):
        transport.write(part)
    await asyncio.sleep(0)
    assert b"".join(wire.writes) == HEAD + b"{}" + HEAD + HEAD + b"[]"


async def test_a_connection_that_closes_has_written_everything() -> None:
    wire = Wire()
    transport = ResponseTransport(wire, asyncio.get_running_loop())
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert (wire.writes, wire.is_closed) == ([HEAD], True)
