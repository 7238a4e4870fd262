"""Knowledge pipelines: add documents, search for passages with their citations."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from astromesh.access.scopes import principal_of
from astromesh.api.dependencies import Limit, PageCursor, audited, page_behind, scope
from astromesh.api.requests import as_integer, caller_of, runtime_of
from astromesh.api.schemas import Described
from astromesh.errors import DocumentNotFound, EvaluationNotFound, InvalidInput
from astromesh.evaluation.retrieval import find_retrieval, retrieval_reports
from astromesh.knowledge.base import DOCX, PPTX, XLSX, Document, DocumentsOf, IngestReport, Passage
from astromesh.runtime.bootstrap import pipeline_of
from astromesh.runtime.engine import AgentRuntime
from astromesh.text import SINGLE_LINE
from astromesh.types import CallerContext, JsonObject

router = APIRouter(tags=["knowledge"])

#: documents of one request, passages of one answer
MAX_DOCUMENTS, MAX_PASSAGES = 500, 50
#: documents of one page of a list
MAX_LISTED = 1000

DocumentId = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=SINGLE_LINE)]
#: a filter: a plain value, or a list of which any may match
FilterValue = str | int | float | bool | list[str | int | float | bool]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


#: types whose files are not text
_BINARY = frozenset(("application/pdf", DOCX, PPTX, XLSX))
MediaType = Literal[
    "text/markdown", "text/plain", "text/html", "text/csv", "text/x-source-code", "application/pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
]  # fmt: skip
_FILLED, _EMPTY = {"minLength": 1}, {"maxLength": 0}
#: the rules between the fields of a document, and between those of a request
_ONE_CONTENT: JsonObject = {
    "oneOf": [
        {
            "required": ["text"],
            "properties": {
                "text": _FILLED,
                "data": _EMPTY,
                "media_type": {"not": {"enum": sorted(_BINARY)}},
            },
        },
        {"required": ["data"], "properties": {"data": _FILLED, "text": _EMPTY}},
    ]
}
_SOMETHING_TO_DO: JsonObject = {
    "anyOf": [{"required": [name], "properties": {name: {"minItems": 1}}} for name in ("documents", "remove")]
}
_BASE64 = {"type": "string", "format": "byte", "contentEncoding": "base64"}


def _from_base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError("it must be a text in base64")
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(f"it is not base64: {error}") from error


class DocumentIn(_Body):
    """A text to search. A document with the same id replaces it."""

    model_config = ConfigDict(json_schema_extra=_ONE_CONTENT)

    id: DocumentId = Field(description="Stable name within the pipeline.", examples=["faq/refunds"])
    text: str = Field("", max_length=5_000_000, description="Markdown, plain text, HTML, CSV or source code.")
    data: Annotated[bytes, BeforeValidator(_from_base64), Field(json_schema_extra=_BASE64)] = Field(
        b"", description="A file in base64 instead of `text`: PDF, DOCX, PPTX, XLSX, HTML, CSV or text."
    )
    title: str = Field("", max_length=1000, description="Shown with its passages; the search covers it.")
    media_type: MediaType = "text/markdown"
    metadata: dict[str, Any] = Field(default={}, description="Plain values and lists of them, for filters.")

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if bool(self.text) == bool(self.data):
            raise ValueError("set exactly one of 'text' and 'data', and not to an empty value")
        if self.text and self.media_type in _BINARY:
            raise ValueError("send a file of this type as 'data', in base64")
        return self


class DocumentsIn(_Body):
    model_config = ConfigDict(json_schema_extra=_SOMETHING_TO_DO)

    documents: list[DocumentIn] = Field(default=[], max_length=MAX_DOCUMENTS)
    remove: list[DocumentId] = Field(
        default=[],
        max_length=MAX_DOCUMENTS,
        description="Ids of documents to remove before the others are added.",
    )


class UnreadableOut(Described):
    id: str
    reason: str


class IngestedOut(Described):
    """The numbers of documents."""

    pipeline: str
    added: int
    changed: int
    removed: int
    unchanged: int
    unreadable: list[UnreadableOut] = Field(
        [], description="Documents that were left out: broken, or not what their media type says."
    )


class DocumentOut(Described):
    id: str
    title: str
    metadata: dict[str, Any]


class DocumentsOut(Described):
    """Documents by id. `next`: for `after`, if there are more."""

    pipeline: str
    documents: list[DocumentOut]
    next: str | None


class DocumentTextOut(Described):
    """A document. The `start` and `end` of its passages and citations are offsets into `text`."""

    pipeline: str
    id: str
    title: str
    metadata: dict[str, Any]
    text: str = Field(
        description="Text, or a file as Markdown. What no passage holds, e.g. front matter, is line breaks."
    )


class RetrievalReportOut(Described):
    """A report of `astromesh rag eval` without its questions."""

    evaluation_id: str
    pipeline: str
    questions: str = Field(description="Name of the file of questions.")
    started_at: float = Field(description="Seconds since the epoch.")
    measures: dict[str, float] = Field(
        description="`questions`, `hit@1`, `hit@5`, `mrr`, `ndcg@10`, `refused`, `p50_ms`, `p95_ms`; those "
        "that lack questions of their kind are left out."
    )


class RetrievalReportsOut(Described):
    evaluations: list[RetrievalReportOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class AskedOut(Described):
    """A question, and the passage that came first."""

    question: str
    expected: str = Field(description="Document and heading of the right passage; empty: no passage answers.")
    rank: int = Field(description="Place of the right passage; 0: it is not among the first ten.")
    first: str = Field(description="Document and heading of the passage that came first.")
    score: float
    ms: float
    is_right: bool = Field(description="Without a right passage: whether the score is below 0.5.")


class WholeRetrievalReportOut(RetrievalReportOut):
    asked: list[AskedOut]


class QueryIn(_Body):
    query: str = Field(min_length=1, max_length=10_000, examples=["How do I reset my password?"])
    top_k: Annotated[int, Field(ge=1, le=MAX_PASSAGES), BeforeValidator(as_integer)] | None = Field(
        None, description="Absent: the pipeline's own."
    )
    filters: dict[str, FilterValue] = Field(
        default={}, description="Only documents whose metadata has these values; `document` is the id."
    )


class PassageOut(Described):
    """A passage with its citation: `text` is the document from `start` up to `end`."""

    document: str
    title: str
    heading: str
    start: int
    end: int
    score: float
    text: str
    url: str = Field("", description="Where the document comes from, if its metadata has a `url`.")


class PassagesOut(Described):
    pipeline: str
    passages: list[PassageOut]
    warning: str = Field(
        "", description="What was searched by words only: documents with vectors of another embedder."
    )


@router.post(
    "/v1/rag/{pipeline}/documents",
    summary="Add documents to a pipeline",
    dependencies=[audited("knowledge.change", "pipeline"), scope("rag:write")],
    response_model=IngestedOut,
    response_model_exclude_unset=True,
)
async def documents(pipeline: str, body: DocumentsIn, request: Request) -> JsonObject:
    """Adds, replaces and removes documents. An unchanged document costs nothing. Files in folders stay.

    A document that cannot be read is left out and reported in `unreadable`; 422 if none can be read.
    """
    if not body.documents and not body.remove:
        raise InvalidInput("There is nothing to do: send documents, or ids to remove.")
    knowledge = pipeline_of(runtime_of(request).state, pipeline)
    tenant, _ = principal_of(caller_of(request))
    removed = await knowledge.remove(body.remove, tenant=tenant) if body.remove else IngestReport()
    done = await knowledge.ingest([_document(one) for one in body.documents], tenant=tenant)
    return {
        "pipeline": pipeline, "added": done.added, "changed": done.changed, "removed": removed.removed,
        "unchanged": done.unchanged,
        **({"unreadable": [one._asdict() for one in done.unreadable]} if done.unreadable else {}),
    }  # fmt: skip


@router.get(
    "/v1/rag/{pipeline}/documents",
    summary="List the documents of a pipeline",
    dependencies=[scope("rag:query")],
    response_model=DocumentsOut,
)
async def list_documents(
    pipeline: str,
    request: Request,
    cursor: PageCursor,
    of: Annotated[
        DocumentsOf,
        Query(description="Of the caller's tenant, of the pipeline's folders, or of a tenant that shares."),
    ] = "tenant",
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
) -> JsonObject:
    """Returns documents that the caller's tenant may read, by id."""
    page = await documents_of(runtime_of(request), caller_of(request), pipeline, of, limit, cursor.after)
    return {**page, "next": cursor.next(page["next"])}


@router.get(
    "/v1/rag/{pipeline}/documents/{document:path}",
    summary="Read a document of a pipeline",
    dependencies=[scope("rag:query")],
    response_model=DocumentTextOut,
)
async def read_document(pipeline: str, document: str, request: Request) -> JsonObject:
    """Returns a document of the caller's tenant, else of the folders, else of the tenant that shares."""
    knowledge = pipeline_of(runtime_of(request).state, pipeline)
    tenant, _ = principal_of(caller_of(request))
    found = await knowledge.document(document, tenant=tenant)
    if found is None:
        raise DocumentNotFound(f"The pipeline {pipeline!r} has no document {document!r}.")
    return {
        "pipeline": pipeline, "id": found.id, "title": found.metadata.get("title", ""),
        "metadata": _without_title(found.metadata), "text": found.text,
    }  # fmt: skip


@router.get(
    "/v1/rag/{pipeline}/evaluations",
    summary="Evaluations of a pipeline",
    dependencies=[scope("evaluations:read")],
    response_model=RetrievalReportsOut,
)
async def evaluations(pipeline: str, request: Request, cursor: PageCursor, limit: Limit = 50) -> JsonObject:
    """Lists the reports of `astromesh rag eval` that the caller's tenant has of a pipeline, newest first."""
    runtime, tenant = runtime_of(request), caller_of(request).tenant_id
    pipeline_of(runtime.state, pipeline)
    found = await asyncio.to_thread(retrieval_reports, runtime.data_dir, pipeline, tenant)
    listed, more = page_behind(found, lambda one: one.evaluation_id, limit, cursor)
    return {"evaluations": [one.head() for one in listed], "next": more}


@router.get(
    "/v1/rag/{pipeline}/evaluations/{evaluation_id}",
    summary="An evaluation of a pipeline",
    dependencies=[scope("evaluations:read")],
    response_model=WholeRetrievalReportOut,
)
async def evaluation(pipeline: str, evaluation_id: str, request: Request) -> JsonObject:
    """Returns a report with each question and what came instead of the right passage."""
    runtime = runtime_of(request)
    pipeline_of(runtime.state, pipeline)
    tenant = caller_of(request).tenant_id
    found = await asyncio.to_thread(find_retrieval, runtime.data_dir, pipeline, tenant, evaluation_id)
    if found is None:
        raise EvaluationNotFound(f"The pipeline {pipeline!r} has no evaluation {evaluation_id!r}.")
    return found.to_json()


@router.post(
    "/v1/rag/{pipeline}/query",
    summary="Search a pipeline",
    dependencies=[scope("rag:query")],
    response_model=PassagesOut,
    response_model_exclude_unset=True,
)
async def query(pipeline: str, body: QueryIn, request: Request) -> JsonObject:
    """Returns the best passages with their sources, best first; an empty list where nothing matches."""
    return await passages_of(runtime_of(request), caller_of(request), pipeline, body)


async def documents_of(
    runtime: AgentRuntime,
    caller: CallerContext,
    pipeline: str,
    of: DocumentsOf = "tenant",
    limit: int = 100,
    after: str = "",
) -> JsonObject:
    """Returns a page of documents that a caller may read, as `DocumentsOut`."""
    knowledge = pipeline_of(runtime.state, pipeline)
    tenant, _ = principal_of(caller)
    found = await knowledge.documents(tenant=tenant, of=of, after=after, limit=limit + 1)
    listed = [
        {"id": one.id, "title": one.metadata.get("title", ""), "metadata": _without_title(one.metadata)}
        for one in found[:limit]
    ]
    return {
        "pipeline": pipeline, "documents": listed, "next": listed[-1]["id"] if len(found) > limit else None,
    }  # fmt: skip


async def passages_of(
    runtime: AgentRuntime, caller: CallerContext, pipeline: str, query: QueryIn
) -> JsonObject:
    """Returns the passages for a query of a caller, as `PassagesOut`."""
    knowledge = pipeline_of(runtime.state, pipeline)
    tenant, _ = principal_of(caller)
    filters = query.filters or None
    found = await knowledge.query(query.query, tenant=tenant, top_k=query.top_k, filters=filters)
    warning = await knowledge.warning(tenant=tenant)
    return {
        "pipeline": pipeline, "passages": list(map(Passage.to_json, found)),
        **({"warning": warning} if warning else {}),
    }  # fmt: skip


def _without_title(metadata: JsonObject) -> JsonObject:
    return {key: value for key, value in metadata.items() if key != "title"}


def _document(one: DocumentIn) -> Document:
    return Document(one.id, one.text, one.title, one.media_type, one.metadata, one.data)
