"""The pages on graphs name every flag, hook, node, keyword, edge and prebuilt graph that there is."""

from __future__ import annotations

import re

import pytest

from astromesh.graph import Hook, NodeFlag, PromptGraph, prebuilt
from astromesh.graph.base import DEFAULTS
from astromesh.graph.nodes import KINDS
from tests.platform.astromesh import ROOT

PAGES = ROOT / "docs" / "graph"

#: pages, which may be several → what stands in code spans of them
NAMED = {
    "flags.md": {flag.name for flag in NodeFlag},
    "nodes.md": {kind.__name__ for kind in KINDS.values()} - {"FunctionNode"} | DEFAULTS.keys(),
    "hooks.md": {
        *(name for name in vars(Hook) if not name.startswith("_")),
        "TimingHook", "BudgetHook", "CycleDetectionHook", "LoggingHook", "MetricsHook",
    },
    "graph.md transitions.md": {
        *(name for name in vars(PromptGraph) if not name.startswith("_")),
        *prebuilt.__all__,
    },
    "yaml.md": set(KINDS),
}  # fmt: skip


@pytest.mark.parametrize("pages", NAMED)
def test_the_pages_name_all_that_there_is(pages: str) -> None:
    """As a word in a code span or a block of code."""
    texts = ((PAGES / page).read_text() for page in pages.split())
    code = " ".join(span for text in texts for span in re.findall(r"`+[^`]+`+", text))
    assert sorted(name for name in NAMED[pages] if not re.search(rf"\b{name}\b", code)) == []
