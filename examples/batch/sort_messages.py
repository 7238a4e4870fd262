"""Sorts messages by durable runs: python sort_messages.py messages.jsonl."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx


def submit(client: httpx.Client, file: Path) -> dict[str, str]:
    """Accepts a run for each line; returns their ids. A second call begins no second run."""
    runs = {}
    for line in file.read_text().splitlines():
        message = json.loads(line)
        body = {"query": message["text"], "session_id": f"{file.name}-{message['id']}"}
        # the key of the line makes this safe to repeat after a crash of this program
        headers = {"Idempotency-Key": f"{file.name}-{message['id']}"}
        answer = client.post("/v1/agents/sorter/runs", json=body, headers=headers).raise_for_status()
        runs[message["id"]] = answer.json()["run_id"]
    return runs


def results(client: httpx.Client, runs: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Waits for the runs and yields their outputs, or the error of one that failed."""
    for name, run_id in runs.items():
        while (run := client.get(f"/v1/runs/{run_id}").raise_for_status().json())["finished_at"] is None:
            time.sleep(0.2)
        yield name, run["result"]["output"] if run["status"] == "completed" else run["error"]


if __name__ == "__main__":
    with httpx.Client(base_url="http://127.0.0.1:8000") as server:
        for message_id, output in results(server, submit(server, Path(sys.argv[1]))):
            print(message_id, json.dumps(output))
