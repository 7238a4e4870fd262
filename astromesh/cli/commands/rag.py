"""`astromesh rag`: add documents to a knowledge pipeline, list and delete them, search and measure it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Annotated, Any, Literal, NamedTuple

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from astromesh.cli.commands.agents import find_agent
from astromesh.cli.errors import reason_of
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.terminal import note, plain, print_json, print_table
from astromesh.errors import InvalidInput
from astromesh.evaluation.retrieval import (
    DEPTH,
    PREFIX,
    AskedQuestion,
    Question,
    QuestionResult,
    RetrievalReport,
    generated_questions,
    measures,
    question_lines,
    question_request,
    read_questions,
    spread,
    store_retrieval,
)
from astromesh.knowledge.base import (
    DocumentsOf,
    IngestReport,
    KnowledgePipeline,
    ListedDocument,
    Passage,
    Piece,
    ProgressCallback,
)
from astromesh.logs import configure_logging
from astromesh.runtime.bootstrap import open_single_pipeline, pipeline_of
from astromesh.runtime.engine import AgentRuntime
from astromesh.telemetry.ids import new_id
from astromesh.text import counted
from astromesh.types import DEFAULT_TENANT

app = typer.Typer()
Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="NAME of rag/NAME.rag.yaml.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Tenant whose documents they are.")]
Asking = Annotated[str, typer.Option("--tenant", metavar="ID", help="Tenant that asks.")]


@app.command()
def ingest(
    pipeline: Pipeline,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="A file or folder; default: the pipeline's sources."),
    ] = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Add documents. An unchanged document costs nothing, and an interrupted call can be repeated.

    Without a path, documents with vectors of another embedder are embedded again, those of all tenants.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    if path is not None and not path.exists():
        raise InvalidInput(f"There is no file or folder {path}.")
    with _progress_bar() as progress:
        report = asyncio.run(_ingest(folders, pipeline, path, tenant, progress))
    counts = ("added", "changed", "removed", "unchanged")
    if json:
        print_json({"pipeline": pipeline, **{name: getattr(report, name) for name in counts}})
        return
    print(", ".join(f"{getattr(report, name)} {name}" for name in counts))


@app.command()
def query(
    pipeline: Pipeline,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The question; '-' reads it from stdin.")],
    tenant: Asking = DEFAULT_TENANT,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    top_k: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="Passages; 0: the pipeline's own.")
    ] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only documents with this metadata; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the passages that answer a question best.

    Each has its source and its score.
    """
    folders, conditions = folders_of(config, data), _filters(where or [])
    configure_logging("warning")
    text = sys.stdin.read() if text == "-" else text
    if not text.strip():
        raise InvalidInput("The query is empty.")
    found = asyncio.run(_query(folders, pipeline, text, tenant, conditions, top_k))
    if json:
        print_json({"pipeline": pipeline, "passages": [passage.to_json() for passage in found]})
    elif not found:
        note("No passage matches.")
    else:
        print("\n\n".join(_format_passage(passage) for passage in found))


@app.command("list")
def list_documents(
    pipeline: Pipeline,
    tenant: Tenant = DEFAULT_TENANT,
    of: Annotated[
        Literal["tenant", "sources", "shared"],
        typer.Option(help="Of the tenant, of the pipeline's folders, or of the tenant that shares."),
    ] = "tenant",
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """List the documents of a pipeline, by id."""
    folders = folders_of(config, data)
    configure_logging("warning")
    found = asyncio.run(_list(folders, pipeline, tenant, of))
    if json:
        listed = [{"id": one.id, "metadata": one.metadata} for one in found]
        print_json({"pipeline": pipeline, "documents": listed})
    elif not found:
        note("There is no document." if of != "tenant" else _nothing_added(tenant))
    else:
        print_table(("id", "title"), [[one.id, str(one.metadata.get("title", ""))] for one in found])


def _nothing_added(tenant: str) -> str:
    return (
        f"The tenant {tenant!r} has added no document. `--of sources` lists those of the pipeline's sources."
    )


@app.command()
def delete(
    pipeline: Pipeline,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of documents; see `list`.")],
    tenant: Tenant = DEFAULT_TENANT,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Delete documents of a tenant. Those of the pipeline's folders are deleted there."""
    folders = folders_of(config, data)
    configure_logging("warning")
    removed = asyncio.run(_delete(folders, pipeline, ids, tenant))
    if json:
        print_json({"pipeline": pipeline, "removed": removed})
    else:
        print(f"{removed} removed")


@app.command("eval")
def evaluate(
    pipeline: Pipeline,
    questions: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Lines of question, document, heading, separated by tabs."),
    ],
    tenant: Asking = DEFAULT_TENANT,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Measure how well a pipeline finds what questions ask for.

    It lists what came first instead of the right passage. The report is stored in the data folder; the
    console shows it with those before.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    question_set = read_questions(_text_of(questions))
    started = time()
    results = asyncio.run(_ask(folders, pipeline, question_set, tenant))
    found = measures(results)
    report = RetrievalReport(
        evaluation_id=new_id(PREFIX),
        pipeline=pipeline,
        tenant=tenant,
        questions=questions.name,
        started_at=started,
        measures=found,
        asked=tuple(AskedQuestion(**one.to_json()) for one in results),
    )
    store_retrieval(folders[1], report)
    if json:
        head = {"pipeline": pipeline, "evaluation_id": report.evaluation_id}
        print_json({**head, **found, "asked": [one.to_json() for one in results]})
        return
    wrong = [one.to_json() for one in results if not one.is_right]
    if wrong:
        columns = ("question", "expected", "rank", "first", "score")
        print_table(columns, [[str(one[key]) for key in columns] for one in wrong])
        print()
    print(", ".join(f"{name} {value}" for name, value in found.items()))


def _text_of(file: Path) -> str:
    """Raises: InvalidInput: the file cannot be read, or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Cannot read {file}: {reason_of(error)}.") from error


@app.command()
def questions(
    pipeline: Pipeline,
    agent: Annotated[str, typer.Option(metavar="NAME", help="The agent whose model writes the questions.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; default: the output.")
    ] = None,
    tenant: Asking = DEFAULT_TENANT,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    passages: Annotated[
        int, typer.Option(min=1, metavar="N", help="Passages at most, spread over all documents.")
    ] = 100,
    per_passage: Annotated[
        int, typer.Option(min=1, max=10, metavar="N", help="Questions for each passage.")
    ] = 1,
) -> None:
    """Write a file of questions for 'rag eval'.

    The model of an agent makes them from the documents of the pipeline.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    request = QuestionSetRequest(pipeline, agent, tenant, passages, per_passage)
    made, missing = asyncio.run(_questions(folders, request))
    if missing:
        note(f"The model has written no question for {counted(missing, 'passage')}.")
    if not made:
        raise InvalidInput("There are no questions: there is no passage, or the model has written none.")
    if out is None:
        print(question_lines(made), end="")
        return
    try:
        out.write_text(question_lines(made), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"Cannot write {out}: {error.strerror}.") from error
    print(f"{counted(len(made), 'question')} in {out}")


class QuestionSetRequest(NamedTuple):
    """What `rag questions` writes. Args: passages: at most. per_passage: questions for each of them."""

    pipeline: str
    agent: str
    tenant: str = DEFAULT_TENANT
    passages: int = 100
    per_passage: int = 1


async def _questions(folders: tuple[Path, Path], request: QuestionSetRequest) -> tuple[list[Question], int]:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        return await generate_questions(runtime, request)


async def generate_questions(
    runtime: AgentRuntime, request: QuestionSetRequest
) -> tuple[list[Question], int]:
    """Returns questions that the passages of a pipeline answer, and how many passages have none.

    Raises:
        ProviderError: the model of the agent does not answer.
    """
    model, knowledge = find_agent(runtime, request.agent).router, pipeline_of(runtime.state, request.pipeline)
    await knowledge.refresh(load_model=False)
    pieces = await _pieces(knowledge, request.tenant)
    made: list[Question] = []
    missing = 0
    for number in spread(len(pieces), request.passages):
        document, piece = pieces[number]
        answer = await model.complete(question_request(piece.heading, piece.text, request.per_passage))
        heading = piece.heading.rpartition(" > ")[2]
        found = generated_questions(answer.content, document, heading, request.per_passage)
        made += found
        missing += not found
    return made, missing


async def _pieces(knowledge: KnowledgePipeline, tenant: str) -> list[tuple[str, Piece]]:
    """The passages of the folders and of a tenant, each with the id of its document."""
    found: list[tuple[str, Piece]] = []
    owners: tuple[DocumentsOf, ...] = ("sources", "tenant")
    for of in owners:
        after = ""
        while page := await knowledge.documents(tenant=tenant, of=of, after=after, limit=1000):
            after = page[-1].id
            for one in page:
                document = await knowledge.document(one.id, tenant=tenant)
                found += [(one.id, piece) for piece in (document.pieces if document else ())]
    return found


async def _ask(
    folders: tuple[Path, Path], pipeline: str, questions: Sequence[Question], tenant: str
) -> list[QuestionResult]:
    results = []
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        await knowledge.refresh()
        for one in questions:
            started = perf_counter()
            found = await knowledge.query(one.text, tenant=tenant, top_k=DEPTH)
            results.append(QuestionResult(one, found, (perf_counter() - started) * 1000))
    return results


def _filters(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Parses `KEY=VALUE` pairs; of several with one key, any may match. A value is text or a JSON scalar.

    Raises:
        InvalidInput: a pair has no `=`.
    """
    conditions: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--where needs KEY=VALUE, not {pair!r}.")
        conditions.setdefault(key, []).extend(_values(value))
    return conditions


def _values(value: str) -> Iterator[Any]:
    yield value
    try:
        scalar = orjson.loads(value)
    except orjson.JSONDecodeError:
        return
    if isinstance(scalar, bool | int | float):
        yield scalar


async def _ingest(
    folders: tuple[Path, Path], pipeline: str, path: Path | None, tenant: str, progress: ProgressCallback
) -> IngestReport:
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        if path is not None:
            return await knowledge.ingest_path(path, progress, tenant=tenant)
        embedded = await knowledge.embed_again(progress)
        return embedded + await knowledge.refresh(progress)


async def _list(
    folders: tuple[Path, Path], pipeline: str, tenant: str, of: DocumentsOf
) -> list[ListedDocument]:
    found: list[ListedDocument] = []
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        await knowledge.ping()  # logs its warning
        if of == "sources":
            await knowledge.refresh(load_model=False)
        while page := await knowledge.documents(
            tenant=tenant, of=of, after=found[-1].id if found else "", limit=1000
        ):
            found += page
    return found


async def _delete(folders: tuple[Path, Path], pipeline: str, ids: Sequence[str], tenant: str) -> int:
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        return (await knowledge.remove(ids, tenant=tenant)).removed


async def _query(
    folders: tuple[Path, Path],
    pipeline: str,
    text: str,
    tenant: str,
    conditions: dict[str, list[Any]],
    top_k: int,
) -> tuple[Passage, ...]:
    async with open_single_pipeline(*folders, pipeline) as knowledge:
        await knowledge.refresh()
        return await knowledge.query(text, tenant=tenant, top_k=top_k or None, filters=conditions or None)


@contextmanager
def _progress_bar() -> Iterator[ProgressCallback]:
    """Shows a progress bar where stderr is a terminal."""
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
