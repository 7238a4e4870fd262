"""HTML and PDF as Markdown: what is kept, what is left out, and what is refused."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.knowledge.chunking import headings
from astromesh.knowledge.loaders import from_markdown
from astromesh.knowledge.readers import HtmlReader, PdfReader, bounded_page
from tests.integration.knowledge.rag_files import pdf

PAGE = """<!doctype html><html><head><title> Tea &amp;
 more</title><style>p {color: red}</style></head><body>
<nav><a href="/">Home</a></nav><header>Shop</header>
<main><h1>Tea</h1><p>Steep it <b>briefly</b>,<br>then pour.</p>
<h2>Kinds <i>of</i> tea</h2><ul><li>green<li>black</ul>
<table><tr><th>Kind<th>Minutes<tr><td>green<td>2</table>
<pre>
# no heading
  indented
</pre><p># 1 is no heading either</p>
<script>alert("x")</script><form><button>Buy</button></form></main><footer>Imprint</footer></body></html>"""


def html(page: str | bytes) -> str:
    return HtmlReader().read(page.encode() if isinstance(page, str) else page)[0]


def test_a_page_becomes_markdown_without_what_stands_around_it():
    """Headings, paragraphs, lists, tables and code stay; menus, scripts, styles and forms go."""
    text, about = HtmlReader().read(PAGE.encode())
    assert about == {"title": "Tea & more"}
    assert text == (
        "# Tea\n\nSteep it briefly,\nthen pour.\n\n## Kinds of tea\n\n- green\n- black\n\n"
        "Kind | Minutes\ngreen | 2\n\n```\n# no heading\n  indented\n```\n\n\\# 1 is no heading either"
    )


def test_headings_of_a_page_are_those_of_its_text():
    """The chunker sees the page's headings, and none that its texts only look like."""
    assert [(h.level, h.title) for h in headings(html(PAGE))] == [(1, "Tea"), (2, "Kinds of tea")]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("<p>日本語 ÿ</p>".encode(), "日本語 ÿ"),
        ("<p>ÿ</p>".encode("utf-16"), "ÿ"),
        (b"\xef\xbb\xbf<p>x</p>", "x"),
        (b'<meta charset="iso-8859-1"><p>\xff</p>', "ÿ"),
        (b'<meta charset="iso-8859-2"><p>\xe8</p>', "č"),
        (b'<meta charset="nonsense"><p>\xff\x80</p>', "ÿ€"),
        (b"<meta charset=PunyCode><p>a-b9c</p>", "a-b9c"),
        (rb"<meta charset=unicode_escape><p>C:\new</p>", r"C:\new"),
        (b"plain text, no page", "plain text, no page"),
        (b"<p>unclosed <b>tags", "unclosed tags"),
        (b"", ""),
    ],
)
def test_pages_in_any_encoding(data, text):
    """By mark, by <meta>, as UTF-8, else as windows-1252."""
    assert html(data) == text


def test_a_page_nested_deeply_is_read():
    """No recursion."""
    assert html("<div>" * 5000 + "deep") == "deep"


HOSTILE = {
    "nested": lambda n: "<div>" * n + "deep" + "</div>" * n,
    "nested and never closed": lambda n: "<section>" * n + "deep",
    "nested lists": lambda n: "<ul><li>" * n + "deep",
    "nested tables": lambda n: "<table><tr><td>" * n + "deep",
    "end tags of what is not open": lambda n: "</article><th><math>" * n + "deep",
    "an end tag that the parser ignores": lambda n: "<dl></body>" * n + "deep",
    "attributes": lambda n: "<div " + " ".join(f"a{i}=1" for i in range(n)) + ">deep",
    "options": lambda n: "<select>" + "<option>a" * n + "</select>deep",
    "formatting": lambda n: "".join(f"<b id={i}>" for i in range(n)) + "<p>x" * 50 + "deep",
    "tags that do not end": lambda n: "deep" + "<a" * n,
    "comments that do not end": lambda n: "deep" + "<!--" * n,
    "scripts that do not end": lambda n: "deep" + "<script>" * n,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_time_for_a_page_grows_with_its_length(kind):
    """Four times the page takes about four times as long; by the square it would be sixteen times."""

    def seconds(n):
        page = HOSTILE[kind](n).encode()
        times = []
        for _ in range(3):
            started = time.process_time()
            assert "deep" in html(page)
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(16_000) < 10 * seconds(4_000) + 0.02


@pytest.mark.parametrize(
    "page",
    ["<div>" * 128 + "x", "<p>a <b>b</b>" * 2000, "<table><tr><td>a<td>b</table>" * 500, "<li>a" * 2000,
     "<svg>" + "<path d='M0 0'/>" * 2000 + "</svg>", "<script>" + "if (a<b) '<div>';" * 2000 + "</script>",
     "<!-- " + "<div>" * 2000 + " -->", "<div><font>a</div>" * 2000, f"<img alt='{'word ' * 200}'>"],
)  # fmt: skip
def test_pages_of_people_are_read_as_they_are(page):
    assert bounded_page(page) is page


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["<div>", "</div>", "<p>", "<b>", "</b>", "<td>", "<svg>", "</p>", "<li>"])))
def test_no_text_is_lost_beyond_the_limits(tags):
    """Property: a page that is nested too deeply keeps every word in its order."""
    page = "<div>" * 200 + "".join(f"{tag}w{n} " for n, tag in enumerate(tags))
    words = re.findall(r"w\d+", bounded_page(page))
    assert words == [f"w{n}" for n in range(len(tags))]


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_page(data):
    """Property: reading never fails on what claims to be a page."""
    assert isinstance(html(b"<body>" + data), str)


def test_a_pdf_has_a_heading_for_each_page():
    """Pages without text are left out; title and text are found, and every passage is under the title."""
    text, about = PdfReader().read(pdf("Green tea", "", "Black tea", title="About  tea"))
    assert text == "# About tea\n\n## Page 1\n\nGreen tea\n\n## Page 3\n\nBlack tea"
    assert about == {"title": "About tea"}


def test_a_pdf_without_a_title_is_called_by_its_name_and_not_by_its_first_page():
    document = from_markdown("teas/green-tea.pdf", *PdfReader().read(pdf("Green tea")))
    assert (document.title, document.text) == ("green tea", "## Page 1\n\nGreen tea")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a readable PDF"),
        (b"not a pdf", "not a readable PDF"),
        (pdf(""), "no text"),
        (pdf("text")[:300], "not a readable PDF|no text"),
    ],
)
def test_what_is_no_pdf_says_so(data, says):
    """One clear sentence, whatever pypdf raises inside."""
    with pytest.raises(ValueError, match=says):
        PdfReader().read(data)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 700), byte=st.integers(0, 255))
def test_a_damaged_pdf_is_read_or_refused(place, byte):
    """Property: a flipped byte never raises anything else."""
    data = bytearray(pdf("Some text on a page", title="T"))
    data[place % len(data)] = byte
    with contextlib.suppress(ValueError):
        PdfReader().read(bytes(data))
