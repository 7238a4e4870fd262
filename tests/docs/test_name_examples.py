"""Every public name of the packages for programs stands in an example of README or docs/ that a test runs."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache

import pytest

from astromesh.events import NodeCustom, typed
from astromesh.types import Event
from tests.docs.blocks import blocks_of
from tests.docs.test_code_blocks import is_program, pages
from tests.platform.astromesh import ROOT

#: the packages that programs import from
PACKAGES = (
    "astromesh",
    "astromesh.events",
    "astromesh.graph",
    "astromesh.graph.nodes",
    "astromesh.graph.prebuilt",
    "astromesh.graph.reasoning",
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


def test_every_event_of_a_run_has_a_class() -> None:
    """Those of the table of docs/api.md, without the ones of workflows."""
    events = [Event("r", 1, 0.0, name, {}) for name in events_of_runs()]
    assert len(events) > 20
    assert [event.type for event in events if type(typed(event)) is Event] == []


def test_the_fields_of_events_are_those_of_their_payload() -> None:
    wrong = {
        name: unknown
        for name, payload in events_of_runs().items()
        if name != "run.completed"  # the whole answer
        and (unknown := set(type(typed(Event("r", 1, 0.0, name, {}))).__annotations__) - payload)
    }
    assert wrong == {}
    told = typed(Event("r", 1, 0.0, "node.custom", {"node": "a", "data": {"done": 1}}))
    assert isinstance(told, NodeCustom)
    assert (told.node, told.value) == ("a", {"done": 1})


def events_of_runs() -> dict[str, set[str]]:
    """Events by name, with the words of their payload."""
    page = (ROOT / "docs" / "api.md").read_text()
    table = page[page.index("| event | payload |") :].partition("\n\n")[0]
    rows = [row.split("|", 2)[1:] for row in table.splitlines()[2:]]
    of_workflows = ("task.", "stage.", "decision.", "merge.", "policy.")
    return {
        name: set(re.findall(r"\w+", payload))
        for names, payload in rows
        for name in re.findall(r"`([a-z_.]+)`", names)
        if not name.startswith(of_workflows)
    }
