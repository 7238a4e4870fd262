"""The book: `mkdocs build --strict` makes it, and a reader needs neither a server nor a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import launched
from tests.docs.blocks import blocks_of
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
        command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\nIf mkdocs is missing: make venv"
    return folder


def test_the_book_is_built_and_needs_no_other_host(tmp_path: Path) -> None:
    site = built(tmp_path / "book")
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

    index = (site / "search" / "search_index.js").read_text().removeprefix("var __index = ")
    found = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    assert {"index.html", "tutorial.html", "graph/graph.html", "clients/python.html"} <= found

    tutorial = (site / "tutorial.html").read_text()  # of the marks for tests stays the name of a file
    assert "<!-- block" not in tutorial
    assert '<span class="filename">shop_tools.py</span>' in tutorial
    assert "Replace the agent's file." in (site / "tutorial.md").read_text()


def test_pictures_are_drawn_and_words_found_from_the_disk(tmp_path: Path) -> None:
    site, faults = built(tmp_path / "book"), list[str]()
    pictures = {source: diagrams(source) for source in (ROOT / "docs").rglob("*.md") if diagrams(source)}
    with launched() as browser, browser.new_context(offline=True) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        for source, count in pictures.items():
            page.goto((site / source.relative_to(ROOT / "docs")).with_suffix(".html").as_uri())
            expect(page.locator("div.mermaid")).to_have_count(count)
        page.get_by_role("textbox", name="Search").fill("approval")
        expect(page.locator(".md-search-result__item").first).to_be_attached()
    assert (bool(pictures), faults) == (True, [])


def diagrams(page: Path) -> int:
    return sum(block.language == "mermaid" for block in blocks_of(page.name, page.read_text()))
