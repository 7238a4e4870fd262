"""Evaluations in a real browser: reports in columns, what became worse, the detail of a case, datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Console, with_evaluations
from tests.conftest import ServerFactory
from tests.platform.astromesh import ServerProcess


@pytest.fixture
def server(server_process: ServerFactory, tmp_path: Path) -> ServerProcess:
    return with_evaluations(tmp_path, serve=server_process)


def test_what_became_worse_is_seen_and_leads_to_its_case(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    page = console(server).open("evaluations")
    page.get_by_text("1 worse than before").wait_for()
    row = page.locator("tr.regressed")
    assert [text.strip() for text in row.locator("td").all_inner_texts()] == [
        "support-agent/invite", "failed worse", "passed",
    ]  # fmt: skip
    row.get_by_role("link", name="failed").click()
    page.get_by_role("region", name="The chosen case").get_by_text('expected "Invoice"').wait_for()
    page.get_by_label("Compare with").select_option(index=1)
    compared = page.get_by_role("region", name="Comparison")
    compared.get_by_text("passed 1 of 1, now 0 of 1").wait_for()
    page.get_by_label("Show").select_option("failed")
    expect(page.locator("button.case")).to_have_count(1)


def test_datasets_are_listed_with_their_cases_and_faults(
    server_process: ServerFactory, tmp_path: Path, console: Callable[..., Console]
) -> None:
    server = with_evaluations(tmp_path, serve=server_process)
    (tmp_path / "config" / "evals" / "broken.yaml").write_text("casess: []\n")
    page = console(server).open("evaluations?tab=Datasets")
    page.get_by_role("cell", name="reset-password").wait_for()
    page.get_by_role("alert").first.wait_for()
    page.get_by_text("astromesh eval run support-agent --dataset support-agent").wait_for()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1600, "light")])
def test_the_pages_are_accessible_and_fit(
    server: ServerProcess, console: Callable[..., Console], width: int, scheme: str
) -> None:
    shown = console(server, width=width, scheme=scheme)
    for place in ("evaluations", "evaluations?tab=Datasets"):
        page = shown.open(place)
        page.wait_for_load_state("networkidle")
        assert shown.violations() == []
        fits(shown, width)
    page = shown.open("evaluations")
    page.locator("tr.regressed").get_by_role("link", name="failed").click()
    page.get_by_label("Compare with").select_option(index=1)
    page.get_by_role("region", name="Comparison").wait_for()
    assert shown.violations() == []
    fits(shown, width)


def fits(shown: Console, width: int) -> None:
    inner = width if width < 720 else width - 200
    assert shown.wider_than(inner) == []
