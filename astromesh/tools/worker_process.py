"""The worker process: runs one call after the other for `process_pool`, and dies with its parent.

Messages are lines of JSON over a socket:

    parent to worker    {"handler", "payload", "path", "max_memory_mb"}     a call
    worker to parent    {"id", "ask"}                                       a question of the call
    parent to worker    {"id", "answer"} or {"id", "error"}
    worker to parent    {"result"} or {"error", "code"}                     the end of the call

A handler is `module:function` of astromesh: an async function of the payload and a `Port`.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import resource
import signal
import socket
import sys
import threading
from typing import Any

import orjson

from astromesh.errors import ForeignError, is_failure
from astromesh.tools.results import describe
from astromesh.types import JsonObject

_LINE = orjson.OPT_APPEND_NEWLINE


class Port:
    """The way of a call to its parent."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.calls: asyncio.Queue[JsonObject] = asyncio.Queue()

    async def ask(self, question: JsonObject) -> Any:
        """Returns the answer of the parent.

        Raises:
            ForeignError: the parent has none; the message says why.
        """
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.send({"id": number, "ask": question})
        return await answer

    def send(self, message: JsonObject) -> None:
        self.send_line(orjson.dumps(message, option=_LINE))

    def send_line(self, line: bytes) -> None:
        self._socket.sendall(line)

    def receive(self, message: JsonObject) -> None:
        if "id" not in message:
            self.calls.put_nowait(message)
            return
        waiting = self._waiting.pop(message["id"])
        if waiting.done():
            return
        if "error" in message:
            waiting.set_exception(ForeignError(message["error"]))
        else:
            waiting.set_result(message["answer"])

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receives in a thread, so that the parent's end ends a call that holds the event loop, too."""
        for line in self._socket.makefile("rb"):
            loop.call_soon_threadsafe(self.receive, orjson.loads(line))
        os.killpg(os.getpgid(0), signal.SIGKILL)


def main(descriptor: int) -> None:
    """Serves calls until the parent closes the socket.

    Args:
        descriptor: of the socket.
    """
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    os.register_at_fork(after_in_child=sock.close)  # a fork that lives on must not look like the worker
    asyncio.run(_serve(Port(sock)))


async def _serve(port: Port) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=port.listen, args=(loop,), daemon=True).start()
    while True:
        port.send_line(await _run(await port.calls.get(), port))


async def _run(call: JsonObject, port: Port) -> bytes:
    sys.path[:] = call["path"]
    _limit_memory(call["max_memory_mb"])
    try:
        module, _, name = call["handler"].partition(":")
        result = await getattr(importlib.import_module(module), name)(call["payload"], port)
        return orjson.dumps({"result": result}, option=_LINE)
    except BaseException as error:  # foreign code: any exception is the answer of its call
        if not is_failure(error):
            raise
        own = type(error).__module__.startswith("astromesh.")
        code = getattr(error, "code", "") if own else ""
        message = str(error) if code else describe(error)
        return orjson.dumps({"error": message, "code": code}, option=_LINE)
    finally:
        _limit_memory(0)


def _limit_memory(megabytes: int) -> None:
    """Limits the data of this process: its heap and its private writable mappings. 0: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * 1024 * 1024 if megabytes else hard
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
