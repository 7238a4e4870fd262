"""What README and docs/ show works: programs run, manifests load, commands exist, links lead somewhere.

How a block says what it wants is in the docstring of `tests.docs.blocks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from tests.docs.blocks import (
    SHELLS,
    Block,
    blocks_of,
    command_faults,
    commands_of,
    links_of,
    make_faults,
    makefile_targets,
)
from tests.docs.hooks import astromesh_command, manifest_faults
from tests.platform.astromesh import CHILD, ROOT
from tests.platform.forked import shared
from tests.platform.processes import Command, plain_environment

DEFAULT_FILES = {
    "Agent": "agents/{name}.agent.yaml",
    "ProviderConfig": "providers.yaml",
    "ChannelConfig": "channels.yaml",
    "RAGPipeline": "rag/{name}.rag.yaml",
    "MCPConfig": "mcp.yaml",
    "RuntimeConfig": "runtime.yaml",
    "Graph": "graphs/{name}.graph.yaml",
}


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if page.name != "CHANGELOG.md")


def page_blocks() -> Iterator[list[Block]]:
    """The blocks of each page."""
    for page in pages():
        yield blocks_of(str(page.relative_to(ROOT)), page.read_text())


def test_fences_name_a_language_alone(subtests: pytest.Subtests) -> None:
    for blocks in page_blocks():
        for block in blocks:
            with subtests.test(block.place):
                assert len(block.language.split()) <= 1, "say it in a comment before the fence"


def test_what_does_not_run_says_why(subtests: pytest.Subtests) -> None:
    for blocks in page_blocks():
        for block in blocks:
            with subtests.test(block.place):
                assert block.runs or block.options.get("reason"), 'no-run needs reason="…"'


def is_program(block: Block) -> bool:
    return block.language == "python" and block.runs and not block.options.keys() & {"file", "served"}


def programs() -> list[tuple[Block, list[Block]]]:
    """Every program, and the blocks before it on its page."""
    return [
        (block, blocks[:number])
        for blocks in page_blocks()
        for number, block in enumerate(blocks)
        if is_program(block)
    ]


@pytest.mark.parametrize(("block", "before"), [pytest.param(*p, id=p[0].place) for p in programs()])
def test_programs_run(block: Block, before: list[Block], tmp_path: Path) -> None:
    run_program(block, before, tmp_path)


def run_program(block: Block, before: list[Block], folder: Path) -> None:
    write_files(before, folder)
    parts = [earlier for earlier in before if is_program(earlier)] if "continues" in block.options else []
    program = "\n".join(part.content for part in [*parts, block])
    environment = plain_environment(folder, {"PYTHONPATH": f"{folder}:{CHILD}:{ROOT}"})
    log = folder / "program.log"
    code = shared().spawn(Command(["-c", program], environment, folder), log).wait(60)
    assert code == 0, log.read_text()


def write_files(blocks: list[Block], folder: Path) -> None:
    for block in blocks:
        if name := block.options.get("file"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block.content)


#: its project is written by `astromesh new`; test_tutorial.py runs it
TUTORIAL = "docs/tutorial.md"


def test_manifests_load(subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory) -> None:
    for blocks in page_blocks():
        for number, block in enumerate(blocks):
            if (
                block.language in {"yaml", "yml"}
                and block.runs
                and is_manifest(block)
                and block.page != TUTORIAL
            ):
                with subtests.test(block.place):
                    folder = tmp_path_factory.mktemp("config")
                    write_files(blocks[:number], folder)
                    write_manifests(block, folder)
                    assert manifest_faults(folder) == []


def is_manifest(block: Block) -> bool:
    return "file" in block.options or bool(re.search(r"^apiVersion: astromesh/", block.content, re.MULTILINE))


def write_manifests(block: Block, folder: Path) -> None:
    """Each document of a block under the name that the block or its kind gives it."""
    if "file" in block.options:
        write_files([block], folder)
        return
    for text in block.content.split("\n---\n"):
        head = yaml.safe_load(text)
        name = DEFAULT_FILES[head["kind"]].format(name=head.get("metadata", {}).get("name", "unnamed"))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_commands_exist(subtests: pytest.Subtests) -> None:
    targets = makefile_targets(ROOT / "Makefile")
    for blocks in page_blocks():
        for block in blocks:
            if block.language in SHELLS:
                with subtests.test(block.place):
                    assert shell_faults(block, targets) == []


def shell_faults(block: Block, targets: frozenset[str]) -> list[str]:
    faults: list[str] = []
    for words in commands_of(block):
        program = Path(words[0]).name
        if program == "make":
            faults += make_faults(words, targets)
        elif program == "astromesh":
            faults += command_faults([program, *words[1:]], astromesh_command())
    return faults


def test_links_lead_somewhere(subtests: pytest.Subtests) -> None:
    for page in pages():
        with subtests.test(str(page.relative_to(ROOT))):
            targets = [target.partition("#")[0] for target in links_of(page.read_text())]
            assert [target for target in targets if not (page.parent / target).exists()] == []


# -- the harness itself ------------------------------------------------------------------------------------


def test_blocks_are_found_with_their_options() -> None:
    (block,) = blocks_of(
        "x.md", 'text\n\n<!-- block: no-run reason="needs a key" -->\n```python\nprint(1)\n```\n'
    )
    assert (block.place, block.language, block.content) == ("x.md:4", "python", "print(1)\n")
    assert block.options == {"no-run": "", "reason": "needs a key"}
    assert not block.runs


def test_a_program_that_fails_is_found(tmp_path: Path) -> None:
    (block,) = blocks_of("x.md", "```python\nraise SystemExit('broken')\n```\n")
    with pytest.raises(AssertionError, match="broken"):
        run_program(block, [], tmp_path)


def test_a_program_continues_and_reads_files(tmp_path: Path) -> None:
    text = (
        "```python\nx = 1\n```\n<!-- block: file=a.txt -->\n```text\nhello\n```\n"
        "<!-- block: continues -->\n```python\n{}\n```\n"
    )
    *before, block = blocks_of(
        "x.md", text.format("assert x == 1; assert open('a.txt').read() == 'hello\\n'")
    )
    run_program(block, before, tmp_path)


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("PORT=8001 make run  # elsewhere", [["make", "run"]]),
        (
            "cd x && astromesh serve --port 1 | tee log",
            [["cd", "x"], ["astromesh", "serve", "--port", "1"], ["tee", "log"]],
        ),
        ('curl -d \'{"a": "b; c"}\' localhost', [["curl", "-d", '{"a": "b; c"}', "localhost"]]),
    ],
)
def test_shell_lines_are_taken_apart(line: str, commands: list[list[str]]) -> None:
    (block,) = blocks_of("x.md", f"```bash\n{line}\n```")
    assert list(commands_of(block)) == commands


def test_only_the_prompted_lines_of_a_console_are_commands() -> None:
    (block,) = blocks_of("x.md", "```console\n$ make test\nmake: nothing to do\n```")
    assert list(commands_of(block)) == [["make", "test"]]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("serve --port 8001", None),
        ("serve --port=8001", None),
        ("serve --prot 8001", "astromesh serve has no option --prot"),
        ("server", "astromesh has no command 'server'"),
    ],
)
def test_commands_and_options_are_looked_up(line: str, fault: str | None) -> None:
    app = typer.Typer()

    @app.command()
    def serve(port: int = 8000) -> None: ...

    @app.command()
    def run(agent: str) -> None: ...

    found = command_faults(["astromesh", *line.split()], typer.main.get_command(app))
    assert found == ([fault] if fault else [])


def test_targets_are_looked_up() -> None:
    targets = makefile_targets(ROOT / "Makefile")
    assert make_faults(["make", "run", "PORT=8001"], targets) == []
    assert make_faults(["make", "rnu"], targets) == ["make has no target 'rnu'"]
