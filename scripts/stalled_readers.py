"""What readers cost who stop reading: memory of the server before, while and after they are there.

    python scripts/stalled_readers.py [--readers 150] [--bytes 2000000]

Each reader asks for a streamed answer of so many bytes and reads nothing of it. Their cost is measured when
all runs have ended: a run has buffers of its own while it is under way, so the most that the server had is
shown apart. Then the readers leave. Ends with 1 where they cost more than twice the bytes that they wait for
and 64 MiB, or where the server is more than 96 MiB larger than before, half a minute after they left. However
many they are, it keeps events of ended runs, at most 32 MiB, and pages of its stores.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from tests.platform.astromesh import ServerProcess  # noqa: E402 (the folder is not on the path before)
from tests.platform.model import MockModel  # noqa: E402

_AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: a}}
spec:
  model: {{primary: {{provider: openai, model: "{model}", endpoint: "{url}", timeout: 120}}}}
  prompts: {{system: "Answer."}}
  memory: {{conversational: {{backend: sqlite, strategy: sliding_window, max_turns: 2}}}}
"""
_PAGE = resource.getpagesize()
#: letters of one token of the model; seconds until all runs must have ended, and until memory must return
_TOKEN, _PATIENCE, _RETURN = 2000, 300.0, 30.0
#: runs before the first look
_WARM = 5
_MOST, _ALWAYS, _LEFT = 2.0, 64 << 20, 96 << 20


def resident(pid: int) -> int:
    """Bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def stalled(port: int, session: str) -> socket.socket:
    """A reader that asks for a stream and never reads."""
    body = json.dumps({"query": "go", "session_id": session}).encode()
    head = (
        b"POST /v1/agents/a/run HTTP/1.1\r\nhost: x\r\n"
        b"accept: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    )
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    reader.connect(("127.0.0.1", port))
    reader.sendall(head % len(body) + body)
    return reader


def ended(url: str, seconds: float) -> int:
    """Runs that have ended. A list of runs would have their answers.

    Raises:
        TimeoutError: the server has not answered for so many seconds.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=seconds) as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("astromesh_runs_total{"))


def lowest(pid: int, bound: int) -> int:
    """Bytes of a process as soon as they are within the bound, at the latest after half a minute."""
    end = time.monotonic() + _RETURN
    least = resident(pid)
    while time.monotonic() < end and least > bound:
        time.sleep(0.5)
        least = min(least, resident(pid))
    return least


def measure(server: ServerProcess, readers: int, waited: int) -> tuple[int, int, int, int]:
    """Bytes before, at most, when all runs have ended and the readers wait, and after they have left."""
    for n in range(_WARM):  # what the first long answers need stays
        with stalled(server.port, f"warm-{n}") as reader:
            while b"event: run.completed" not in reader.recv(1 << 16):
                pass
    before = most = resident(server.pid)
    held = [stalled(server.port, f"stalled-{n}") for n in range(readers)]
    end = time.monotonic() + _PATIENCE
    while ended(server.url, max(1.0, end - time.monotonic())) < _WARM + readers:
        if time.monotonic() > end:
            raise SystemExit(f"the runs have not ended after {_PATIENCE:g} s")
        most = max(most, resident(server.pid))
        time.sleep(0.2)
    waiting = lowest(server.pid, before + int(_MOST * waited) + _ALWAYS)
    for reader in held:
        reader.close()
    after = lowest(server.pid, before + _LEFT)
    return before, max(most, waiting), waiting, after


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readers", type=int, default=150)
    parser.add_argument("--bytes", type=int, default=2_000_000)
    args = parser.parse_args()
    waited = args.readers * args.bytes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        model, config = MockModel(home), home / "config"
        (config / "agents").mkdir(parents=True)
        said = f"mock+tokens={args.bytes // _TOKEN}+letters={_TOKEN}"
        (config / "agents" / "a.agent.yaml").write_text(_AGENT.format(url=model.url, model=said))
        server = ServerProcess(home, config)
        try:
            model.start()
            server.start()
            before, most, waiting, after = measure(server, args.readers, waited)
        finally:
            server.close()
            model.close()
    cost, mib = (waiting - before) / waited, 1 << 20
    print("| readers | they wait for | before | at most | while they wait | after | cost |")
    print(
        f"| {args.readers} | {waited / mib:.0f} MiB | {before / mib:.0f} MiB | {most / mib:.0f} MiB | "
        f"{waiting / mib:.0f} MiB | {after / mib:.0f} MiB | {cost:.2f} |"
    )
    return int(waiting - before > _MOST * waited + _ALWAYS or after - before > _LEFT)


if __name__ == "__main__":
    sys.exit(main())
