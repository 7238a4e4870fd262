"""An MCP server over stdio with the files of one folder: python project_server.py FOLDER."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mcp.server import MCPServer

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "project").resolve()
server = MCPServer("project")


def place(name: str) -> Path:
    """Returns the path of a file of the folder, and of no other."""
    path = (FOLDER / name).resolve()
    if not path.is_relative_to(FOLDER):
        raise ValueError(f"{name} is not in the project.")
    return path


@server.tool()
def list_files() -> list[str]:
    """The names of all files of the project."""
    return sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py"))


@server.tool()
def read_file(name: str) -> str:
    """The text of a file of the project."""
    return place(name).read_text()


@server.tool()
def write_file(name: str, text: str) -> str:
    """Writes a file of the project."""
    place(name).write_text(text)
    return f"{name} is written."


@server.tool()
def run_tests() -> str:
    """Runs the tests of the project and returns the last line of what they print."""
    argv = [sys.executable, "-B", "-m", "unittest", "-q", "check_prices"]
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    server.run("stdio")
