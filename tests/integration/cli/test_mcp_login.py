"""`astromesh mcp login`: what it says where it cannot begin."""

from __future__ import annotations

import socket
from pathlib import Path

from typer.testing import CliRunner

from astromesh.cli.commands.mcp import app

HEAD = "apiVersion: astromesh/v1\nkind: MCPConfig\nspec:\n  servers:\n"


def login(folder: Path, server: str) -> tuple[int, str]:
    (folder / "mcp.yaml").write_text(f"{HEAD}    notes: {server}\n")
    done = CliRunner().invoke(
        app, ["login", "notes", "--config", str(folder), "--data", str(folder / "data")]
    )
    return done.exit_code, done.output


def test_a_file_with_faults_is_told_and_not_a_server_that_is_missing(tmp_path: Path) -> None:
    code, told = login(tmp_path, "{url: 'http://127.0.0.1:9/mcp', oauth: {}}")
    assert (code, "spec.servers.notes.transport: required key is missing" in told) == (2, True)


def test_a_port_that_is_taken_is_named_with_its_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = f"{{transport: http, url: 'http://127.0.0.1:9/mcp', oauth: {{redirect_port: {port}}}}}"
        code, told = login(tmp_path, server)
    assert (code, f"cannot return to port {port}: Address already in use" in told) == (2, True)
