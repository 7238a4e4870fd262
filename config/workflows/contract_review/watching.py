"""Observers: they see a frozen copy of everything that a Task does, and change nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class AuditLog:
    """A line for each event, without what was asked and answered."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._file = Path(__file__).parent / config["path"]
        self._file.parent.mkdir(parents=True, exist_ok=True)

    def observe(self, event: dict[str, Any]) -> None:
        entry = event.get("entry") or {}
        line = {"task_id": event["task_id"], "type": event["type"], "at": event.get("at")}
        line |= {key: entry[key] for key in ("stage_id", "status", "finished_at") if key in entry}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
