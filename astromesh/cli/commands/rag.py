"""`astromesh rag ingest` and `rag query`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from astromesh.cli.terminal import note, plain, print_json
from astromesh.errors import InvalidInput
from astromesh.knowledge.base import IngestReport, Passage
from astromesh.knowledge.base import ProgressCallback as Told
from astromesh.runtime.bootstrap import open_single_pipeline
from astromesh.telemetry.logs import configure_logging


def ingest(folders: tuple[Path, Path], pipeline: str, path: Path | None, *, as_json: bool) -> None:
    """Brings a pipeline up to its sources, or takes a file or folder in; a bar shows how far it is."""
    configure_logging("warning")
    if path is not None and not path.exists():
        raise InvalidInput(f"There is no file or folder {path}.")
    with _bar() as told:
        done = asyncio.run(_ingest(folders, pipeline, path, told))
    if as_json:
        print_json({"pipeline": pipeline, **{key: getattr(done, key) for key in IngestReport.__slots__}})
        return
    print(f"{done.added} added, {done.changed} changed, {done.removed} removed, {done.unchanged} unchanged")


def query(
    folders: tuple[Path, Path],
    pipeline: str,
    text: str,
    conditions: dict[str, list[Any]],
    top_k: int,
    *,
    as_json: bool,
) -> None:
    """Prints passages, best first; what changed in the sources is taken in before."""
    configure_logging("warning")
    text = sys.stdin.read() if text == "-" else text
    if not text.strip():
        raise InvalidInput("The query is empty.")
    found = asyncio.run(_query(folders, pipeline, text, conditions, top_k))
    if as_json:
        print_json({"pipeline": pipeline, "passages": [passage.to_json() for passage in found]})
    elif not found:
        note("Nothing was found.")
    else:
        print("\n\n".join(_format_passage(passage) for passage in found))


def filters(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """`KEY=VALUE`, several of one key meaning any of them; a value is text, and what JSON reads it as.

    Raises:
        InvalidInput: one has no `=`.
    """
    wanted: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--where needs KEY=VALUE; {pair!r} is not.")
        wanted.setdefault(key, []).extend(_values(value))
    return wanted


def _values(value: str) -> Iterator[Any]:
    yield value
    try:
        read = orjson.loads(value)
    except orjson.JSONDecodeError:
        return
    if isinstance(read, bool | int | float):
        yield read


async def _ingest(
    folders: tuple[Path, Path], pipeline: str, path: Path | None, progress: Told
) -> IngestReport:
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        if path is not None:
            return await knowledge.ingest_path(path, progress)
        return await knowledge.refresh(progress)


async def _query(
    folders: tuple[Path, Path], pipeline: str, text: str, conditions: dict[str, list[Any]], top_k: int
) -> tuple[Passage, ...]:
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        await knowledge.refresh()
        return await knowledge.query(text, top_k=top_k or None, filters=conditions or None)


@contextmanager
def _bar() -> Iterator[Told]:
    """A bar on a terminal's stderr; nothing where that is none."""
    columns = (TextColumn("documents"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("ingest", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _format_passage(passage: Passage) -> str:
    chunk = passage.chunk
    heading = f" · {chunk.heading}" if chunk.heading else ""
    source = f"{chunk.document}{heading} [{chunk.start}:{chunk.end}] {passage.score:.2f}"
    return plain(f"{source}\n{chunk.text}")
