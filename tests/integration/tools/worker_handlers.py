"""Handlers that run in worker processes, for `test_process_pool`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from astromesh.tools.base import ToolContext
from astromesh.tools.process_pool import Port


async def double(payload: Any, port: Port) -> Any:
    print("what foreign code prints is no message")
    return {"value": payload * 2, "pid": os.getpid(), "group": os.getpgid(0)}


async def linger(payload: Any, port: Port) -> Any:
    """Takes so many seconds that calls made at once overlap on a busy machine too."""
    await asyncio.sleep(payload)
    return {"value": payload, "pid": os.getpid()}


async def fail(payload: Any, port: Port) -> Any:
    raise ValueError("as told, with the password=hunter2")


async def leave(payload: Any, port: Port) -> Any:
    sys.exit(payload)


async def no_json(payload: Any, port: Port) -> Any:
    return object()


async def die(payload: Any, port: Port) -> Any:
    if payload == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


async def ask(payload: Any, port: Port) -> Any:
    return await asyncio.gather(*(port.ask({"n": n}) for n in range(payload)))


async def hang(payload: Any, port: Port) -> Any:
    """Holds the event loop, with a process beside it; the file names both."""
    child = subprocess.Popen(["sleep", "600"])
    Path(payload).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


async def allocate(payload: Any, port: Port) -> Any:
    return len(bytearray(payload * 1024 * 1024))


async def module(payload: Any, port: Port) -> Any:
    return __import__(payload).__name__


# -- tools of agents -----------------------------------------------------------------------------------------


def seen(when: date, context: ToolContext, times: int = 1) -> dict[str, Any]:
    """Answers what reaches a tool."""
    caller = context.caller
    return {
        "pid": os.getpid(),
        "when": when,
        "times": times,
        "ids": [context.run_id, context.call_id, context.agent, context.idempotency_key, *context.session],
        "caller": [caller.user_id, caller.bearer_token] if caller else None,
        "run": context.run,
    }


async def fatal(how: str) -> str:
    if how == "exit":
        os._exit(4)
    raise ValueError("as told")
