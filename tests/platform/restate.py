"""A Restate server, from the binary of the npm package @restatedev/restate-server."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.platform.processes import Command, ServerInFolder, answers_http, free_port, plain_environment
from tests.platform.reaper import reaper

_NO_LOOKUPS = Path(__file__).with_name("no_lookups.py")


class RestateServer(ServerInFolder):
    """A server of its own, which can be killed and started again; what it holds survives that.

    It looks for a newer release when it starts. No setting ends that, so it runs without lookups of names.

    Attributes:
        url: of its ingress.
        admin_url: of its admin API.
    """

    def __init__(self) -> None:
        home = reaper().temporary_directory("restate")
        ingress, admin, node = free_port(), free_port(), free_port()
        self.url, self.admin_url = f"http://127.0.0.1:{ingress}", f"http://127.0.0.1:{admin}"
        settings = {
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_ADVERTISED_HOST": "127.0.0.1",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_PORT": str(node),
            "RESTATE_INGRESS__BIND_PORT": str(ingress),
            "RESTATE_ADMIN__BIND_PORT": str(admin),
            "RESTATE_ADMIN__DISABLE_WEB_UI": "true",
            "RESTATE_DEFAULT_NUM_PARTITIONS": "2",
            "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "64MB",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "TMPDIR": str(home),
            "RESTATE_LOG_FILTER": "error,octocrab=off",  # looks for a newer release in vain
        }
        argv = [
            sys.executable,
            str(_NO_LOOKUPS),
            str(_binary()),
            "--no-logo",
            "--base-dir",
            str(home / "data"),
            "--node-name",
            "one",
        ]
        super().__init__(home, Command(argv, plain_environment(home, settings), home), self._is_healthy)

    def restart_empty(self) -> None:
        """Kills the server, and starts it without what it had stored."""
        if self.running:
            self.kill()
        shutil.rmtree(self.home / "data", ignore_errors=True)
        self.start()

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of a query of the admin API."""
        request = urllib.request.Request(
            f"{self.admin_url}/query",
            json.dumps({"query": sql}).encode(),
            {"content-type": "application/json", "accept": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            rows: list[dict[str, Any]] = json.load(response)["rows"]
            return rows

    def _is_healthy(self) -> bool:
        return answers_http(f"{self.url}/restate/health") and answers_http(f"{self.admin_url}/health")


def _binary() -> Path:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), "arm64")
    package = f"restate-server-{platform.system().lower()}-{machine}"
    return Path(sys.prefix) / "restate" / "node_modules" / "@restatedev" / package / "bin" / "restate-server"
