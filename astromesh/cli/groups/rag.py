"""`astromesh rag …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.options import Config, Data, Json, at

app = typer.Typer(no_args_is_help=True, help="Knowledge pipelines: take documents in, search them.")


@app.command("ingest")
def rag_ingest(
    pipeline: Annotated[str, typer.Argument(help="NAME of rag/NAME.rag.yaml.")],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="A file or folder; default: the pipeline's sources."),
    ] = None,
    config: Config = CONFIG,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Take documents in; what is unchanged costs nothing, what was broken off goes on."""
    from astromesh.cli import rag as command

    command.ingest(at(config, data), pipeline, path, as_json=json)


@app.command("query")
def rag_query(
    pipeline: Annotated[str, typer.Argument(help="NAME of rag/NAME.rag.yaml.")],
    text: Annotated[str, typer.Argument(help="What is sought; '-' reads it from stdin.")],
    config: Config = CONFIG,
    data: Data = DATA,
    top_k: Annotated[int, typer.Option(min=0, max=100, help="Passages; 0: the pipeline's own.")] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only documents with this metadata; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the passages that answer a question best, with their sources."""
    from astromesh.cli import rag as command

    command.query(at(config, data), pipeline, text, command.filters(where or []), top_k, as_json=json)
