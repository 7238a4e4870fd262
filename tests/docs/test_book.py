"""The book: `mkdocs build --strict` makes it, and a reader needs neither a server nor a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import expect
from starlette.datastructures import State

import astromesh
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.events import _KINDS as TYPED
from tests.browser.conftest import launched
from tests.docs.blocks import blocks_of
from tests.docs.test_comparisons import sections
from tests.platform.astromesh import ROOT

#: what a browser loads with the page; a plain link is not
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
#: `link` of these kinds loads nothing
_NOT_LOADED = {"canonical", "next", "prev", "alternate"}


class Assets(HTMLParser):
    """Addresses of what a page loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _LOADED and values.get("rel") not in _NOT_LOADED:
            self.found.append(values.get(_LOADED[tag]) or "")


def outside(address: str) -> bool:
    return re.match(r"(https?:)?//", address) is not None


def built(folder: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\nIf mkdocs is missing: make venv"
    return folder


@pytest.mark.timeout(300)
def test_the_book_is_whole_and_needs_neither_server_nor_network(tmp_path: Path) -> None:
    site = built(tmp_path / "book")
    nothing_comes_from_another_host(site)
    marks_for_tests_are_gone(site)
    generated_pages_are_complete(site)
    pictures_are_drawn_and_words_found(site)


def nothing_comes_from_another_host(site: Path) -> None:
    pages = [
        page for page in site.rglob("*.html") if page.name != "404.html"
    ]  # which stands at no fixed place
    loaded = [(page, address) for page in pages for address in Assets(page.read_text()).found]
    assert [(page.name, address) for page, address in loaded if outside(address)] == []
    local = {(page.parent / address.partition("?")[0]).resolve() for page, address in loaded if address}
    assert [str(file) for file in local if not file.exists()] == []
    assert {site / "scripts" / "mermaid.js", site / "scripts" / "iframe-worker.js"} <= local
    styles = " ".join(style.read_text() for style in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles) == []


def marks_for_tests_are_gone(site: Path) -> None:
    """Of them stays the name of a file."""
    tutorial = (site / "tutorial.html").read_text()
    assert "<!-- block" not in tutorial
    assert '<span class="filename">shop_tools.py</span>' in tutorial
    assert "Replace the agent's file." in (site / "tutorial.md").read_text()
    guide = (site / "coming-from-agno.html").read_text()
    assert guide.count('class="grid"') == len(sections("agno"))  # programs side by side


def generated_pages_are_complete(site: Path) -> None:
    """Each key, command, route, event and name stands there: one of each kind that only its source has."""
    text = {page.stem: page.read_text() for page in (site / "reference").glob("*.md")}
    app = create_fastapi_app(State())
    routes = [f"{m.upper()} {path}" for path, methods in app.openapi()["paths"].items() for m in methods]
    assert [route for route in routes if f"### `{route}` " not in text["http"]] == []
    assert [kind for kind in TYPED if f"## `{kind}`" not in text["events"]] == []
    assert [name for name in astromesh.__all__ if f"### {name} {{" not in text["python"]] == ["__version__"]
    assert "## `astromesh workflow repl`" in text["cli"] and "`--reload`" in text["cli"]
    assert "### Budget {#agent-budget}" in text["configuration"]
    assert "## scheduler.yaml {#scheduler}" in text["workflow-files"]


def pictures_are_drawn_and_words_found(site: Path) -> None:
    faults = list[str]()
    pictures = {source: diagrams(source) for source in (ROOT / "docs").rglob("*.md") if diagrams(source)}
    with launched() as browser, browser.new_context(offline=True) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        for source, count in pictures.items():
            page.goto((site / source.relative_to(ROOT / "docs")).with_suffix(".html").as_uri())
            expect(page.locator("div.mermaid")).to_have_count(count)
        page.get_by_role("textbox", name="Search").fill("approval")
        found = page.locator(".md-search-result__item a").first
        expect(found).to_be_attached()
        assert "/reference/" not in str(found.get_attribute("href"))  # guides come before lists of names
    assert (len(pictures) > 6, faults) == (True, [])


def diagrams(page: Path) -> int:
    return sum(block.language == "mermaid" for block in blocks_of(page.name, page.read_text()))
