"""Stored reports of `astromesh rag eval`: how well a pipeline has found what a file of questions asks for.

A report is `evaluations/rag_ID.json` in the data folder, beside those of agents and workflows.
"""

from __future__ import annotations

import re
from pathlib import Path

import orjson
from msgspec import Struct, ValidationError, convert
from msgspec.json import encode

from astromesh.evaluation.reports import FOLDER
from astromesh.storage.private_files import private_file, private_folder
from astromesh.types import DEFAULT_TENANT, JsonObject

PREFIX = "rag_"
_ID = re.compile(rf"{PREFIX}[A-Za-z0-9-]{{1,64}}")


class AskedQuestion(Struct, frozen=True):
    """A question and what came first.

    Args:
        expected: document and heading of the right passage; empty: no passage answers.
        rank: place of the right passage, 0 if it is not among the ten that were compared.
        first: document and heading of the passage that came first; empty if there was none.
        score: of that passage.
        is_right: whether the right passage came first; without one, whether the score was below 0.5.
    """

    question: str
    expected: str
    rank: int
    first: str
    score: float
    ms: float
    is_right: bool


class RetrievalReport(Struct, frozen=True, kw_only=True):
    """A report.

    Args:
        questions: name of the file.
        measures: by their names, e.g. `hit@1`.
        tenant: that has asked, and may read the report: its documents are among what came first.
    """

    evaluation_id: str
    pipeline: str
    questions: str
    started_at: float
    measures: dict[str, float]
    asked: tuple[AskedQuestion, ...] = ()
    tenant: str = DEFAULT_TENANT

    def head(self) -> JsonObject:
        """The report without its questions and its tenant."""
        left_out = ("asked", "tenant")
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in left_out}

    def to_json(self) -> JsonObject:
        data: JsonObject = orjson.loads(encode(self))
        return data


def store_retrieval(data_dir: Path, report: RetrievalReport) -> Path:
    """Writes a report that only this user can read, and returns its file."""
    file = data_dir / FOLDER / f"{report.evaluation_id}.json"
    private_folder(file.parent)
    private_file(file)
    file.write_bytes(orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return file


def retrieval_reports(data_dir: Path, pipeline: str, tenant: str) -> list[RetrievalReport]:
    """Returns a tenant's reports of a pipeline, newest first, without files that are no reports."""
    read = (_read(file) for file in (data_dir / FOLDER).glob(f"{PREFIX}*.json"))
    found = [one for one in read if one is not None and (one.pipeline, one.tenant) == (pipeline, tenant)]
    return sorted(found, key=lambda one: (one.started_at, one.evaluation_id), reverse=True)


def find_retrieval(data_dir: Path, pipeline: str, tenant: str, evaluation_id: str) -> RetrievalReport | None:
    """Returns a tenant's report of a pipeline by its id, or None."""
    if not _ID.fullmatch(evaluation_id):
        return None
    found = _read(data_dir / FOLDER / f"{evaluation_id}.json")
    return found if found is not None and (found.pipeline, found.tenant) == (pipeline, tenant) else None


def _read(file: Path) -> RetrievalReport | None:
    try:
        return convert(orjson.loads(file.read_bytes()), RetrievalReport)
    except (OSError, orjson.JSONDecodeError, ValidationError):
        return None
