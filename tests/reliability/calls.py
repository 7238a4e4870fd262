"""What these tests ask of a server, without a client that asks again by itself."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE = 60.0


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=PATIENCE
    ) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def until(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} within {PATIENCE:g} s")


def events_of(url: str, run_id: str) -> list[tuple[int, str, dict[str, Any]]]:
    request = urllib.request.Request(f"{url}/v1/runs/{run_id}/events")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=PATIENCE
    ) as answer:
        blocks = answer.read().decode().strip().split("\n\n")
    lines = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
    return [(int(line["id"]), line["event"], json.loads(line["data"])) for line in lines]
