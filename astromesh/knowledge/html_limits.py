"""Pages rewritten so that a parser reads them in linear time.

A parser of HTML walks through all open elements, active formatting elements, options or attributes for some
tags, so that a page which nests or repeats these makes it take time by the square of its length. Pages of
people stay within the limits and are not changed. Beyond them, text stays, and tags are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: open elements; Chromium flattens pages beyond 512
MAX_DEPTH = 128
#: open formatting elements, options of a page, words in one tag
MAX_FORMATTING, MAX_OPTIONS, MAX_WORDS = 32, 1000, 256

_TAG = re.compile(r"<!--|<(/?)([a-zA-Z][^\s/>]*+)[^>]*+>")
_FORMATTING = frozenset(
    ("a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u")
)
_OPTIONS = frozenset(("option", "optgroup"))
#: elements in which every tag without a slash opens an element
_FOREIGN = frozenset(("svg", "math"))
#: elements that have no end tag, or that end where the next one begins
_NOT_OPEN = _OPTIONS | frozenset((
    "area", "base", "br", "col", "colgroup", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "p", "param", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track", "wbr",
))  # fmt: skip
#: elements whose content has no tags
_TEXT = ("iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp")
_TEXT_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in _TEXT}


def bounded_page(page: str) -> str:
    """Returns a page that a parser reads in linear time: itself if it is within the limits."""
    if page.count("<") <= MAX_FORMATTING and len(page) <= MAX_WORDS:
        return page
    parts: list[str] = []
    kept = 0
    for start, end, replacement in _replacements(page):
        parts += (page[kept:start], replacement)
        kept = end
    return "".join((*parts, page[kept:])) if parts else page


def _replacements(page: str) -> Iterator[tuple[int, int, str]]:
    """Yields the tags beyond the limits: start, end, and what stands there instead."""
    stack: list[str] = []
    formatting = options = foreign = 0
    for start, end, closes, name in _tags(page):
        is_long = end - start > MAX_WORDS and len(page[start:end].split(None, MAX_WORDS)) > MAX_WORDS
        replacement = f"<{name}>" if is_long else None
        if closes:
            for closed in _close(stack, name):
                formatting -= closed in _FORMATTING
                foreign -= closed in _FOREIGN
        elif name in _OPTIONS:
            options += 1
            if options > MAX_OPTIONS:
                replacement = " "
        elif page[end - 2] != "/" if foreign else name not in _NOT_OPEN:
            is_formatting = name in _FORMATTING
            if len(stack) >= MAX_DEPTH or (is_formatting and formatting >= MAX_FORMATTING):
                replacement = " "
            else:
                stack.append(name)
                formatting += is_formatting
                foreign += name in _FOREIGN
        if replacement is not None:
            yield start, end, replacement


def _close(stack: list[str], name: str) -> list[str]:
    """Closes the innermost element of a name, and what is open in it. Returns their names.

    A formatting element closes alone, as in the standard.
    """
    place = next((n for n in reversed(range(len(stack))) if stack[n] == name), None)
    if place is None:
        return []
    end = place + 1 if name in _FORMATTING else len(stack)
    closed = stack[place:end]
    del stack[place:end]
    return closed


def _tags(page: str) -> Iterator[tuple[int, int, bool, str]]:
    """Yields start, end, whether it closes, and the name of each tag outside comments and scripts."""
    place, last = 0, page.rfind(">") + 1  # a tag that does not end would be searched again and again
    while (found := _TAG.search(page, place, last)) is not None:
        place = found.end()
        if found[2] is None:
            place = page.find("-->", place)
            if place < 0:
                return
            continue
        name = found[2].lower()
        yield found.start(), place, bool(found[1]), name
        if name in _TEXT and not found[1]:
            text_end = _TEXT_ENDS[name].search(page, place)
            if text_end is None:
                return
            place = text_end.start()
