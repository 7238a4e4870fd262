"""Calls of foreign code in worker processes, which can be killed and whose death harms nobody else.

Arguments and results are JSON. The first call starts a process; idle processes serve later calls. A call that
is cancelled or exceeds its time limit ends with its process and everything that the process has started. A
worker process runs one call after the other, and dies with its parent.

Messages are lines of JSON over a socket:

    parent to worker    {"handler", "payload", "path", "max_memory_mb"}     a call
    worker to parent    {"id", "ask"}                                       a question of the call
    parent to worker    {"id", "answer"} or {"id", "error"}
    worker to parent    {"result"} or {"error", "code"}                     the end of the call

A handler is `module:function` of astromesh: an async function of the payload and a `Port`.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import orjson

from astromesh.errors import ForeignError, ProcessDied, is_failure
from astromesh.tools.results import describe
from astromesh.types import JsonObject

#: where foreign code runs: in a worker process, or as its kind always does
Isolation: TypeAlias = Literal["process"] | None
#: answers the questions of a call, e.g. calls of tools
Answer: TypeAlias = Callable[[JsonObject], Awaitable[Any]]

#: processes at once for each event loop, and idle ones that wait for calls
MAX_PROCESSES, MAX_IDLE = 16, 4
#: bytes of one message; a worker that sends more is killed
MAX_MESSAGE = 64 * 1024 * 1024
_CHUNK = 256 * 1024
#: the first line of a worker, which finds modules where its parent does
_BOOT = (
    f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import serve_calls; "
    "serve_calls(int(sys.argv[1]))"
)


def _never(takes_context: bool) -> bool:
    return False


#: Answers before each call of a Python tool or node whether it runs in a worker process, however declared.
#: It takes whether the function takes the context of the call, of which only ids reach the worker.
ISOLATED: ContextVar[Callable[[bool], bool]] = ContextVar("astromesh_isolated", default=_never)


def is_isolated(*, takes_context: bool = False) -> bool:
    return ISOLATED.get()(takes_context)


class WorkerProcess:
    """One worker process, the leader of its own process group. Serves one call at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        descriptor = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter, without a shell)
                [sys.executable, "-c", _BOOT, str(descriptor), *sys.path],
                stdin=subprocess.DEVNULL, stdout=2, pass_fds=(descriptor,), start_new_session=True,
            )  # fmt: skip

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def call(self, call: JsonObject, answer: Answer | None) -> Any:
        """Returns the result of a call.

        Raises:
            ForeignError: its code raised an exception.
            ProcessDied: the process died.
        """
        loop, lock = asyncio.get_running_loop(), asyncio.Lock()
        answers: set[asyncio.Task[None]] = set()
        failed: list[BaseException] = []

        async def send(message: JsonObject) -> None:
            async with lock:
                await loop.sock_sendall(self._socket, orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))

        async def respond(message: JsonObject) -> None:
            assert answer is not None
            try:
                reply = {"answer": await answer(message["ask"])}
            except Exception as error:  # noqa: BLE001 (a limit of the run, for example: the call ends with it)
                failed.append(error)
                reply = {"error": str(error)}
            with suppress(OSError):
                await send({"id": message["id"], **reply})

        try:
            await send(call)
            async with aclosing(self._messages(loop)) as messages:
                async for message in messages:
                    if "ask" in message:
                        answers.add(asyncio.create_task(respond(message)))
                    elif failed:
                        raise failed[0]
                    elif "error" in message:
                        raise ForeignError(message["error"], message["code"])
                    else:
                        return message["result"]
        except OSError:
            pass  # it died before it had read everything
        finally:
            for task in answers:
                task.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
        raise ProcessDied(await self.kill())

    async def _messages(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[JsonObject, None]:
        """Yields the messages of the worker until it ends."""
        parts: list[bytes] = []
        size = 0
        while chunk := await loop.sock_recv(self._socket, _CHUNK):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                yield orjson.loads(b"".join([*parts, line]))
                parts.clear()
                size = 0
            parts.append(rest)
            size += len(rest)
            if size > MAX_MESSAGE:
                await self.kill()
                raise ForeignError(f"The result has more than {MAX_MESSAGE} bytes.")

    def kill(self) -> asyncio.Future[int]:
        """Kills the process and its group. The result is the exit code, once it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._socket.close()
        return asyncio.get_running_loop().run_in_executor(None, self._process.wait)

    def close(self) -> None:
        """Ends an idle process."""
        self._socket.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


_idle: list[WorkerProcess] = []
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


@atexit.register
def close_idle_processes() -> None:
    """Ends idle processes: new ones read changed modules."""
    while _idle:
        _idle.pop().close()


async def call_in_process(
    handler: str,
    payload: JsonObject,
    *,
    answer: Answer | None = None,
    max_memory_mb: int = 0,
    alone: bool = False,
) -> Any:
    """Returns the result of a handler in a worker process, as JSON.

    Args:
        handler: `module:function`, see above.
        payload: JSON.
        answer: answers the handler's questions.
        max_memory_mb: MiB of data that the call may have; 0: no limit.
        alone: whether the process serves nothing before and after it.

    Raises:
        ForeignError: its code raised an exception.
        ProcessDied: its process died.
    """
    call = {"handler": handler, "payload": payload, "path": sys.path, "max_memory_mb": max_memory_mb}
    places = _places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_PROCESSES))
    async with places:
        worker = WorkerProcess() if alone else _idle_worker() or WorkerProcess()
        try:
            result = await worker.call(call, answer)
        except ProcessDied:
            raise
        except ForeignError:
            _release(worker, alone=alone)
            raise
        except BaseException:
            worker.kill()
            raise
        _release(worker, alone=alone)
        return result


def _idle_worker() -> WorkerProcess | None:
    while _idle:
        worker = _idle.pop()
        if worker.is_alive:
            return worker
        worker.close()
    return None


def _release(worker: WorkerProcess, *, alone: bool) -> None:
    if alone or len(_idle) >= MAX_IDLE or not worker.is_alive:
        worker.kill()
    else:
        _idle.append(worker)


# -- the worker process --------------------------------------------------------------------------------------


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


def serve_calls(descriptor: int) -> None:
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
    limit = megabytes * 1024 * 1024 if megabytes else hard
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
