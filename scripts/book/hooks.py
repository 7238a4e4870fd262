"""What mkdocs.yml does not say: pages from outside docs/, links between them, scripts from this machine.

- README, changelog and the clients' pages are pages of the book. A link to another file of the repository
  becomes its text.
- The comment before a fence, which tells the tests what to do, becomes the title of the block or nothing.
- Two programs of a migration guide stand side by side, on a page without menus beside it.
- Diagrams and the search without a server need two scripts. npm installs them into `.venv/book` from
  `package-lock.json`; the page loads them from the site.
- The pages of reference/ are made of the code.
- Beside each page stands its Markdown, where llms.txt leads.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import reference  # beside this file
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PACKAGES = Path(sys.prefix) / "book" / "node_modules"
#: file of the repository -> page of the book
OUTSIDE: Mapping[str, str] = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "clients/python/README.md": "clients/python.md",
    "clients/typescript/README.md": "clients/typescript.md",
}
#: name in the site -> file of the packages
SCRIPTS: Mapping[str, str] = {
    "scripts/mermaid.js": "@mermaid-js/tiny/dist/mermaid.tiny.js",
    "scripts/iframe-worker.js": "iframe-worker/shim/index.js",
}
_SOURCES = {page: file for file, page in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_BLOCK = re.compile(r"^( *)<!-- block: (.*) -->\n *```(\w*)$", re.MULTILINE)
_FILE = re.compile(r"\bfile=(\S+)")
_PROGRAM = r"\*\*([^*\n]+)\*\*\n\n(?:<!-- block: [^\n]* -->\n)?```python\n(.*?)^```\n"
#: theirs and ours
_PAIR = re.compile(f"^{_PROGRAM}\n{_PROGRAM}", re.MULTILINE | re.DOTALL)
_BESIDE = """<div class="grid" markdown>

```python title="\\1"
\\2```

```python title="\\3"
\\4```

</div>
"""
_FIRST = ("tutorial", "how-to/", "concepts/")
_LAST = (
    "reference/", "coming-from-", "their-issues", "changelog", "documents", "mutants", "benchmarks",
    "graph/contract",
)  # fmt: skip
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Names our copies before the theme names those of other hosts."""
    config.extra["polyfills"] = ["scripts/iframe-worker.js"]
    config.extra_javascript.append("scripts/mermaid.js")
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, text in _generated().items():
        files.append(File.generated(config, page, content=text))
    for name, source in SCRIPTS.items():
        files.append(File.generated(config, name, abs_src_path=str(PACKAGES / source)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri.startswith("coming-from-"):
        page.meta["hide"] = ["navigation", "toc"]
        markdown = _PAIR.sub(_BESIDE, markdown)
    page.meta["search"] = {"boost": _boost(page.file.src_uri)}
    parts = _FENCE.split(markdown)
    prose = (_LINK.sub(lambda found: link(found, page.file.src_uri, files), part) for part in parts[::2])
    parts[::2] = prose
    return _BLOCK.sub(fence, "".join(parts))


def _boost(page: str) -> float:
    """Guides come first among the pages that a search finds, lists of names and evidence last."""
    return 4 if page.startswith(_FIRST) else 0.2 if page.startswith(_LAST) else 1


def link(found: re.Match[str], page: str, files: Files) -> str:
    """Returns a link as it must stand in the book."""
    image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    source = _SOURCES.get(page, f"docs/{page}")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (ROOT / file).exists():
        return found[0]  # mkdocs reports it
    leads_to = OUTSIDE.get(file, file.removeprefix("docs/"))
    if files.get_file_from_path(leads_to) is None:
        return text
    return f"{image}[{text}]({posixpath.relpath(leads_to, posixpath.dirname(page) or '.')}{anchor})"


def fence(found: re.Match[str]) -> str:
    """Returns the first line of a block, with the name of its file as title."""
    indent, options, language = found.groups()
    file = _FILE.search(options)
    return f'{indent}```{language or "text"} title="{file[1]}"' if file else f"{indent}```{language}"


def on_post_build(*, config: MkDocsConfig) -> None:
    """Puts the Markdown beside the pages."""
    site = Path(config.site_dir)
    for source in Path(config.docs_dir).rglob("*.md"):
        copy = site / source.relative_to(config.docs_dir)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    for name, text in _generated().items():
        (site / name).write_text(text)


@cache
def _generated() -> Mapping[str, str]:
    return {f"reference/{name}.md": reference.page(name) for name in ("index", *reference.PAGES)}
