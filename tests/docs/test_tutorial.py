"""The tutorial, followed word by word: its files are written, its commands print what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ServerFactory
from tests.docs.blocks import Block, blocks_of
from tests.platform.astromesh import CHILD, ROOT
from tests.platform.forked import shared
from tests.platform.processes import Command, plain_environment

PAGE = "docs/tutorial.md"
#: what the reader does by hand, or has done
_BY_HAND = (". .venv/bin/activate", "cd shop")


def steps(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    found: list[tuple[str, str]] = []
    for line in block.content.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip(), ""))
        else:
            found[-1] = found[-1][0], found[-1][1] + line
    return found


@pytest.mark.timeout(300)  # ten processes, one after another
def test_the_tutorial_does_what_it_shows(
    tmp_path: Path, server_process: ServerFactory, subtests: pytest.Subtests
) -> None:
    project, url = tmp_path / "shop", ""
    environment = plain_environment(tmp_path, {"PYTHONPATH": f"{CHILD}:{ROOT}"})
    for block in blocks_of(PAGE, (ROOT / PAGE).read_text()):
        if name := block.options.get("file"):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(block.content)
        if block.language == "sh" and "astromesh serve" in block.content and not url:
            url = server_process(
                project / "config", env={"ASTROMESH_DATA_DIR": str(project / ".astromesh")}
            ).url
        for command, expected in steps(block) if block.language == "console" else ():
            if command in _BY_HAND:
                continue
            with subtests.test(command):
                line = command.replace("http://127.0.0.1:8000", url)
                words = shlex.split(line)
                folder = project if project.exists() else tmp_path
                if words[0] == "astromesh":
                    done = shared().run(Command(words, environment, folder))
                else:
                    done = subprocess.run(
                        words, cwd=folder, env=environment, text=True, timeout=60, check=False,
                        capture_output=True,
                    )  # fmt: skip
                printed = done.stderr if done.returncode else done.stdout
                assert matches(expected, printed), done.stderr + done.stdout


def matches(expected: str, printed: str) -> bool:
    """Whether a text is what a page shows: `...` is any text, white space counts as one blank."""
    parts = [re.escape(" ".join(part.split())) for part in expected.split("...")]
    return re.fullmatch(".*".join(parts), " ".join(printed.split())) is not None
