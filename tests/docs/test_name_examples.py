"""Every public name of the packages for programs stands in an example of README or docs/ that a test runs."""

from __future__ import annotations

import ast
import importlib
from functools import cache

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.test_code_blocks import is_program, pages

#: the packages that programs import from
PACKAGES = (
    "astromesh",
    "astromesh.events",
    "astromesh.graph",
    "astromesh.graph.prebuilt",
    "astromesh.testing",
    "astromesh.workflow",
)


@cache
def shown() -> frozenset[str]:
    """The names in the programs that `test_code_blocks` runs."""
    programs = (
        block.content
        for page in pages()
        for block in blocks_of(page.name, page.read_text())
        if is_program(block)
    )
    return frozenset(
        name for program in programs for node in ast.walk(ast.parse(program)) for name in names(node)
    )


def names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return (name,)
        case ast.alias(name=name):
            return (name.rpartition(".")[2],)
    return ()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    public = importlib.import_module(package).__all__
    assert sorted(set(public) - shown()) == []
