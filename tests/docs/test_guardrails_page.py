"""The table of rules in `docs/guardrails.md` names every built-in guardrail with its options."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import pytest

from tests.platform.astromesh import ROOT

PAGE = (ROOT / "docs" / "guardrails.md").read_text()
TABLE = PAGE.split("| type | finds |")[1].split("\n\n")[0]
ROWS = dict(re.findall(r"^\| `(\w+)` (\|.*)$", TABLE, re.MULTILINE))

#: the column "does" names the actions; the page says below the table what `apply_to` is
COMMON = ("action", "apply_to")


@pytest.mark.parametrize("plugin", entry_points(group="astromesh.guardrails"), ids=lambda plugin: plugin.name)
def test_a_rule_has_a_row_with_its_options(plugin) -> None:
    fields = plugin.load().Options.model_fields
    missing = [name for name in fields if name not in COMMON and f"`{name}`" not in ROWS.get(plugin.name, "")]
    assert missing == []


def test_the_page_says_what_apply_to_is() -> None:
    assert "`apply_to: [query, context, metadata]`" in PAGE
