"""A process that has imported a server and forks it: a start takes a tenth. Run by `tests.platform.forked`.

A child is a command, `["astromesh", …]`, or a program, `["-c", TEXT]`.

Reads a line of JSON for each start, with `argv`, `env` and `cwd`, the files `stdin`, `stdout` and `stderr`,
and a file `exit`, and answers the process id. The exit code stands in that file when the process has ended.
What modules read of the environment while they are imported is that of this process, but for the places to
die at.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import astromesh.agents
from astromesh.cli.commands import serve, worker
from astromesh.cli.main import main as command
from astromesh.durable import failpoints
from astromesh.runtime import task_log
from tests.platform.network import NetworkGuard

#: what the commands would import by and by
IMPORTED = (serve, worker, astromesh.agents)
#: plugins that the servers of these tests open
WANTED = {
    "openai", "sqlite", "postgres", "in_process", "internal", "react", "graph", "channels", "otlp",
}  # fmt: skip


def warm_up() -> None:
    """Imports what a server would import by and by."""
    for entry in distribution("astromesh").entry_points:
        if entry.group.startswith("astromesh.") and entry.name in WANTED:
            entry.load()
    gc.collect()
    gc.freeze()  # what is shared with the children stays shared


def armed() -> None:
    """The places to die at, as the environment of this child names them."""
    if place := os.environ.get(failpoints.VARIABLE):
        failpoints.reach = failpoints.parse_failpoint(place)
    if place := os.environ.get(task_log.VARIABLE):
        task_log.reach = failpoints.parse_failpoint(place, task_log.PLACES)


def become(order: dict[str, Any]) -> None:
    """The child: as if it had been started by that command; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(order["stdin"], os.O_RDONLY), 0)
        for target, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), target)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        armed()
        NetworkGuard(os.environ.get("ASTROMESH_TEST_NETWORK_REPORT")).install()
        sys.path[:0] = os.environ.get("PYTHONPATH", "").split(":")
        sys.argv = order["argv"]
        if order["argv"][0] == "-c":
            run_program(order["argv"][1])
        else:
            command()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except Exception:  # noqa: BLE001 - what the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_program(text: str) -> None:
    """Runs a program as `python -W error::DeprecationWarning:__main__ -c TEXT` does."""
    sys.modules["__main__"] = module = ModuleType("__main__")
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
    exec(compile(text, "<string>", "exec"), module.__dict__)


def buried(exits: dict[int, Path]) -> None:
    """Notes the exit codes of children that have ended."""
    while exits:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        path = exits.pop(pid)
        part = path.with_suffix(".part")
        part.write_text(str(os.waitstatus_to_exitcode(status)))
        part.rename(path)


def main() -> None:
    warm_up()
    awake, wake = os.pipe()
    for end in (awake, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    exits: dict[int, Path] = {}
    waiting = b""
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([0, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
        buried(exits)
        if 0 not in ready:
            continue
        read = os.read(0, 1 << 16)
        if not read:
            return
        *lines, waiting = (waiting + read).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                become(order)
            with suppress(OSError):  # the child was faster
                os.setpgid(pid, pid)
            exits[pid] = Path(order["exit"])
            print(pid, flush=True)


if __name__ == "__main__":
    main()
