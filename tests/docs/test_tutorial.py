"""The tutorial and the how-tos, followed word by word: files are written, commands print what pages show."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import ServerFactory
from tests.docs.blocks import Block, blocks_of
from tests.platform.astromesh import CHILD, ROOT
from tests.platform.forked import shared
from tests.platform.processes import Command, plain_environment

PAGES = [
    "docs/tutorial.md",
    *(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how-to").glob("*.md")),
]
ADDRESS = "http://127.0.0.1:8000"
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


class Walk:
    """A reader who follows a page, in a folder of their own."""

    def __init__(self, folder: Path, server_process: ServerFactory) -> None:
        self.folder, self.project, self.url = folder, folder / "shop", ""
        self._server_process = server_process
        path = f"{self.project}:{CHILD}:{ROOT}"
        self.environment = plain_environment(folder, {"PYTHONPATH": path})

    def write(self, name: str, content: str) -> None:
        (self.project / name).parent.mkdir(parents=True, exist_ok=True)
        (self.project / name).write_text(content)

    def serve(self) -> None:
        data = {"ASTROMESH_DATA_DIR": str(self.project / ".astromesh")}
        self.url = self._server_process(self.project / "config", env=data).url

    def run(self, block: Block) -> None:
        """Executes a program against the server."""
        program, log = block.content.replace(ADDRESS, self.url), self.folder / "program.log"
        code = shared().spawn(Command(["-c", program], self.environment, self.project), log).wait(60)
        assert code == 0, log.read_text()

    def prints(self, command: str, expected: str) -> None:
        words = shlex.split(command.replace(ADDRESS, self.url))
        folder = self.project if self.project.exists() else self.folder
        if words[0] == "astromesh":
            done = shared().run(Command(words, self.environment, folder))
        else:
            done = subprocess.run(
                words,
                cwd=folder,
                env=self.environment,
                text=True,
                timeout=60,
                check=False,
                capture_output=True,
            )
        printed = done.stderr if done.returncode else done.stdout
        assert matches(expected, printed), done.stderr + done.stdout


@pytest.mark.timeout(300)  # ten processes, one after another
@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_does_what_it_shows(
    page: str, tmp_path: Path, server_process: ServerFactory, subtests: pytest.Subtests
) -> None:
    walk = Walk(tmp_path, server_process)
    for block in blocks_of(page, (ROOT / page).read_text()):
        with subtests.test(block.place):
            if name := block.options.get("file"):
                walk.write(name, block.content)
            if block.language == "sh" and "astromesh serve" in block.content and not walk.url:
                walk.serve()
            if "served" in block.options:
                walk.run(block)
            for command, expected in steps(block) if block.language == "console" else ():
                if command not in _BY_HAND:
                    walk.prints(command, expected)


def test_the_tutorial_ends_with_tools_memory_knowledge_approval_and_a_test() -> None:
    files = {
        block.options.get("file"): block.content for block in blocks_of("", (ROOT / PAGES[0]).read_text())
    }
    spec = yaml.safe_load(files["config/agents/assistant.agent.yaml"])["spec"]
    assert {tool["type"] for tool in spec["tools"]} == {"rag", "internal"}
    assert [tool["name"] for tool in spec["tools"] if tool.get("approval")] == ["refund_order"]
    assert spec["memory"]["conversational"]["backend"] == "sqlite"
    assert {"config/knowledge/returns.md", "config/evals/assistant.yaml"} <= files.keys()


def matches(expected: str, printed: str) -> bool:
    """Whether a text is what a page shows: `...` is any text, white space counts as one blank."""
    parts = [re.escape(" ".join(part.split())) for part in expected.split("...")]
    return re.fullmatch(".*".join(parts), " ".join(printed.split())) is not None
