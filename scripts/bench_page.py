"""Makes docs/benchmarks.md and its pictures of the figures in docs/benchmarks.json.

    python scripts/bench_page.py [--check]

It measures nothing: `make bench` does. --check writes nothing, and fails where a file differs. The prose of
the page is in bench_page.md.jinja.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jinja2
import pygal
from figures import Row, number
from pygal.etree import etree
from pygal.style import Style

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
FIGURES, PAGE, PICTURES = DOCS / "benchmarks.json", DOCS / "benchmarks.md", DOCS / "images"

#: parts that have a section of their own below the table: title and first sentence
APART = {
    "steps": ("A plain run, step by step", "What each step of one plain run costs."),
    "unused": ("What is not used", "What parts cost a server whose agents do not use them."),
}
#: what each picture shows, for its place on the page
CAPTIONS = {
    "runs": "Runs per second of the server by those of a bare FastAPI route",
    "graph": "Microseconds of an invocation of a graph",
    "durable": "Durable runs per second by store and number of processes",
    "peers": "Runs and tokens per second by those of a bare FastAPI route",
}
STYLE = Style(
    background="white",
    plot_background="white",
    font_family="sans-serif",
    colors=("#7fc4e0", "#f0b878", "#c4c4c4"),
    value_colors=("black",) * 3,
    opacity="1",
    label_font_size=13,
    major_label_font_size=13,
    legend_font_size=13,
    title_font_size=15,
    value_font_size=12,
)
#: values of bars by name; several series have a name each
Bars = dict[str, float | None]


class Measured:
    """The figures of docs/benchmarks.json, without details.

    Attributes:
        rows: of each part.
    """

    def __init__(self, stored: dict[str, Any]) -> None:
        self._stored = stored
        self.rows = {
            name: [row for one in part["figures"] if not (row := Row.from_record(one)).detail]
            for name, part in stored.items()
        }

    def of(self, part: str) -> list[Row]:
        return self.rows.get(part, [])

    def conditions(self) -> list[tuple[str, list[str]]]:
        """Sentences on how figures were taken, each with the parts that it is true of."""
        by_sentence: dict[str, list[str]] = {}
        for name, part in self._stored.items():
            by_sentence.setdefault(_sentence(part["conditions"]), []).append(name)
        return list(by_sentence.items())

    def versions(self) -> str:
        """Of the peers."""
        peers = self._stored.get("peers", {}).get("conditions", {}).get("peers", {})
        return ", ".join(f"{name} {version}" for name, version in peers.items())


def _sentence(around: dict[str, Any]) -> str:
    low, high = around["load"]
    rounds = f"{around['rounds']} rounds" if around["rounds"] > 1 else "one round"
    with_what = f"astromesh {around['astromesh']}, Python {around['python']}"
    return (
        f"{rounds}, {with_what}, {around['cores']} cores of {around['processor']}, load {low:g} to {high:g}"
    )


# -- the page ------------------------------------------------------------------------------------------------


def page(measured: Measured, made: dict[str, str]) -> str:
    environment = jinja2.Environment(keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    environment.filters["number"] = lambda value: "" if value is None else number(value)
    environment.filters["ratio"] = lambda value: "" if value is None else f"{value:.2f}"
    template = environment.from_string((HERE / "bench_page.md.jinja").read_text())
    peers = list(dict.fromkeys(row.part for row in measured.of("peers")))
    return template.render(
        rows=[
            (part, row) for part, own in measured.rows.items() if part not in (*APART, "peers") for row in own
        ],
        conditions=measured.conditions(),
        peers=peers,
        peer_rows=_peer_rows(measured.of("peers"), peers),
        versions=measured.versions(),
        apart=[(*told, measured.of(part)) for part, told in APART.items() if part in measured.rows],
        pictures=made,
        captions=CAPTIONS,
    )


def _peer_rows(rows: list[Row], peers: list[str]) -> list[tuple[str, str, list[Row | None]]]:
    """A line for each name: its unit, and the row of each runtime."""
    found = {(row.part, row.name): row for row in rows}
    units = {row.name: row.unit for row in rows}
    return [(name, unit, [found.get((peer, name)) for peer in peers]) for name, unit in units.items()]


# -- the pictures --------------------------------------------------------------------------------------------


def pictures(measured: Measured) -> dict[str, str]:
    """SVG by name; a picture whose figures are missing is left out."""
    drawn = {
        "runs": {"": _runs(measured)},
        "graph": {"": _graph(measured)},
        "durable": {"": _durable(measured)},
        "peers": _of_peers(measured),
    }
    return {name: chart(CAPTIONS[name], series) for name, series in drawn.items() if any(series.values())}


def _runs(measured: Measured) -> Bars:
    rated = [row for row in measured.of("server") if row.unit in ("runs/s", "tokens/s")]
    return {row.name.partition(":")[0]: row.ratio for row in rated}


def _graph(measured: Measured) -> Bars:
    shown = ("5 nodes", "5 inline", "one PromptNode")
    return {row.name: row.value for row in measured.of("graph") if row.name.startswith(shown)}


def _durable(measured: Measured) -> Bars:
    rows = [row for row in measured.of("durable") if row.unit == "runs/s"]
    return {row.name.replace(", three steps", ""): row.value for row in rows}


def _of_peers(measured: Measured) -> dict[str, Bars]:
    found: dict[str, Bars] = {}
    for row in measured.of("peers"):
        if row.unit in ("runs/s", "tokens/s"):
            found.setdefault(row.part, {})[row.name.partition(":")[0]] = row.ratio
    return found


def chart(title: str, series: dict[str, Bars]) -> str:
    """Horizontal bars as SVG: a group for each name, and in it a bar for each series."""
    names = list(dict.fromkeys(name for bars in series.values() for name in bars))[::-1]  # the first on top
    bars = pygal.HorizontalBar(
        title=title,
        style=STYLE,
        js=(),
        no_prefix=True,
        show_legend=len(series) > 1,
        legend_at_bottom=True,
        print_values=True,
        print_values_position="top",
        width=800,
        height=110 + 36 * len(names) * (len(series) + 1) // 2,
        value_formatter=number,
        show_x_labels=False,  # the axes of horizontal bars are turned: these are the values
        show_x_guides=False,
        show_y_guides=False,
        margin=12,
    )
    bars.x_labels = names
    for name, values in series.items():
        bars.add(name, [values.get(label) for label in names])
    bars.range = (0, 1.1 * max((value for bars in series.values() for value in bars.values()), default=1))
    bars.add_xml_filter(_as_image)
    return str(bars.render(is_unicode=True)) + "\n"


def _as_image(root: Any) -> Any:
    """Puts figures behind their bars. Leaves out what an image cannot use, and comments: one has the date."""
    for parent in list(root.iter()):
        if parent.get("class") == "value":
            parent.set("text-anchor", "start")
        for child in list(parent):
            if child.tag is etree.Comment or str(child.tag).endswith("script"):
                parent.remove(child)
    return root


# -- files ---------------------------------------------------------------------------------------------------


def files(measured: Measured) -> dict[Path, str]:
    made = pictures(measured)
    drawn = {PICTURES / f"benchmarks-{name}.svg": text for name, text in made.items()}
    return {PAGE: page(measured, made), **drawn}


def main() -> int:
    made = files(Measured(json.loads(FIGURES.read_text())))
    left_over = set(PICTURES.glob("benchmarks-*.svg")) - made.keys()
    if "--check" in sys.argv:
        changed = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
        for path in [*changed, *left_over]:
            print(f"{path.relative_to(DOCS.parent)} is not what docs/benchmarks.json says", file=sys.stderr)
        return 1 if changed or left_over else 0
    for path in left_over:
        path.unlink()
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
