"""Fenced code blocks of the documentation, and what the comment in the line before each asks for.

```python                                      runs, in an empty folder
<!-- block: continues -->                      runs after the python blocks before it in the same page
<!-- block: no-run reason="…" -->              does not run or is not validated; the reason is not optional
<!-- block: served -->                         runs against the server of its page: test_tutorial.py
<!-- block: file=agents/x.agent.yaml -->       a file for the blocks after it; a manifest is validated
<!-- block: kustomize=x.yaml -->               a file of an overlay: test_kubernetes_page.py
```bash, ```console                            every `make …` and `astromesh …` in it names what exists

The info string of a fence is the language alone, as other parsers of Markdown expect it.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

#: what a comment says about the block below it
COMMENT = re.compile(r"<!-- block: (.*) -->")
SHELLS = frozenset({"bash", "sh", "shell", "console"})
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
SEPARATORS = frozenset({"&&", "||", "|", ";", "&"})
WRAPPERS = frozenset({"time", "exec", "sudo", "env"})


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the file, relative to the project.
        line: 1-based line of the fence.
        language: the info string.
        options: the words of the comment before it; a bare word has the value "".
    """

    page: str
    line: int
    language: str
    options: dict[str, str]
    content: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return "no-run" not in self.options


def blocks_of(page: str, text: str) -> list[Block]:
    tokens = [
        token for token in MarkdownIt().parse(text) if token.type in {"fence", "html_block"} and token.map
    ]
    return [
        Block(page, token.map[0] + 1, token.info.strip(), _options(before, token), token.content)
        for before, token in itertools.pairwise([None, *tokens])
        if token and token.type == "fence" and token.map
    ]


def _options(before: Token | None, fence: Token) -> dict[str, str]:
    """What the comment in the line before a fence says."""
    if before is None or before.type != "html_block" or not before.map or not fence.map:
        return {}
    comment = COMMENT.fullmatch(before.content.strip())
    if not comment or before.map[1] != fence.map[0]:
        return {}
    pairs = (word.partition("=") for word in shlex.split(comment[1]))
    return {name: value for name, _, value in pairs}


def links_of(text: str) -> list[str]:
    """Targets of the links and images that are neither URLs nor anchors."""
    tokens = [child for token in MarkdownIt().parse(text) for child in token.children or []]
    targets = [str(token.attrGet("href") or token.attrGet("src") or "") for token in tokens]
    return [target for target in targets if target and not re.match(r"[a-z]+:|#", target)]


# -- shell -------------------------------------------------------------------------------------------------


def commands_of(block: Block) -> Iterator[list[str]]:
    """The simple commands of a shell block, as words, without assignments before them."""
    for line in block.content.replace("\\\n", " ").splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]  # noqa: PLW2901 - the prompt
        yield from _simple_commands(line)


def _simple_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote that goes on over several lines: data, not a command
        return
    command: list[str] = []
    for word in [*words, ";"]:
        if word in SEPARATORS:
            if command:
                yield command
            command = []
        elif command or not (ASSIGNMENT.fullmatch(word) or word in WRAPPERS):
            command.append(word)


def make_faults(words: list[str], targets: frozenset[str]) -> list[str]:
    """What is wrong with `make …`."""
    named = [word for word in words[1:] if not word.startswith("-") and not ASSIGNMENT.fullmatch(word)]
    return [f"make has no target {name!r}" for name in named if name not in targets]


def makefile_targets(makefile: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", makefile.read_text(), re.MULTILINE))


def command_faults(words: list[str], command: Any) -> list[str]:
    """What is wrong with `astromesh …`: sub-commands and options that do not exist.

    Args:
        command: the typer command of `astromesh`.
    """
    name, *rest = words
    takes_value = {option: not param.is_flag for param in _parameters(command) for option in _names(param)}
    while rest:
        word = rest.pop(0)
        option, has_value, _ = word.partition("=")
        if option.startswith("-") and option != "-":
            if option not in takes_value:
                return [f"{name} has no option {option}"]
            if takes_value[option] and not has_value and rest:
                rest.pop(0)
        elif hasattr(command, "commands"):
            found = command.get_command(None, word)
            return (
                command_faults([f"{name} {word}", *rest], found)
                if found
                else [f"{name} has no command {word!r}"]
            )
    return []


def _parameters(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option"]


def _names(param: Any) -> list[str]:
    return [*param.opts, *param.secondary_opts]
