"""The graph goes back until the label fits."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_last_draft_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from review import label

    state = label("green tea from Kyoto", 40)
    assert [len(draft) <= state.longest for draft in state.drafts] == [False, True]
