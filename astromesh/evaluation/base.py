"""Records of an evaluation: cases, outcomes, what checks have found, and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson
from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.json import encode

from astromesh.config.workflow import Assertion, EvaluationCase
from astromesh.errors import InvalidInput
from astromesh.types import JsonObject

Kind = Literal["agent", "workflow"]


@dataclass(frozen=True, slots=True)
class Case:
    """A case with what its file says about it.

    Args:
        folder: of the file; recordings, golden files and schemas are relative to it.
        judge: the model of `judge` checks that name none.
    """

    suite: str
    spec: EvaluationCase
    folder: Path
    tags: tuple[str, ...] = ()
    judge: str = ""

    @property
    def recording(self) -> Path | None:
        """The file with the recorded answers of models and tools."""
        return self.folder / self.spec.replay if self.spec.replay else None


class CalledTool(Struct, frozen=True):
    """A tool call. `arguments`: an object, or the text of the model if it is not JSON."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case has led to.

    Args:
        ids: `{run_id, agent}` or `{task_id, workflow}`.
        status: `completed`, `failed` or why an agent stopped; `success`, `failure` or `partial` of a Task.
        output: the answer: a text, or a JSON value.
        path: the nodes or stages.
        error: `{code, message}` of a failed one.
        divergence: the first difference from the recording, with its `message`.
        is_live: whether models were asked, so that its cost was paid now.
    """

    ids: Mapping[str, str]
    status: str
    output: Any = None
    path: tuple[str, ...] = ()
    tool_calls: tuple[CalledTool, ...] = ()
    error: JsonObject | None = None
    cost_usd: float = 0.0
    duration_ms: float = 0.0
    divergence: JsonObject | None = None
    is_live: bool = True

    def to_json(self) -> JsonObject:
        """Returns the outcome as functions of checks receive it."""
        return {
            **golden_record(self), "tool_calls": to_builtins(self.tool_calls),
            "cost_usd": self.cost_usd, "duration_ms": self.duration_ms,
        }  # fmt: skip


def golden_record(outcome: Outcome) -> JsonObject:
    """Returns the content of a golden file."""
    return {
        **outcome.ids, "status": outcome.status, "output": outcome.output, "error": outcome.error,
        "path": list(outcome.path),
    }  # fmt: skip


class Verdict(Struct, frozen=True):
    """What a judge says. Args: model: `provider:name` that has judged. cost_usd: 0.0 if it was recorded."""

    passed: bool
    reason: str
    model: str = ""
    cost_usd: float = 0.0


class Judge(Protocol):
    """Asks a model whether an output is as a rubric wants it."""

    async def __call__(self, rubric: str, case: Case, outcome: Outcome, model: str) -> Verdict:
        """Raises: AstromeshError: the model does not answer."""


class Target(Protocol):
    """An agent or a workflow whose cases run.

    Attributes:
        implied: checks of a case that has none of their type.
    """

    kind: Kind
    name: str
    implied: tuple[Assertion, ...]

    async def run(self, case: Case, *, live: bool) -> Outcome:
        """Runs a case; from its recording if it has one, unless `live`."""

    def schema(self, schema_id: str) -> JsonObject | None:
        """Returns a schema by its id, or None."""

    def function(self, name: str) -> Callable[..., Any]:
        """Returns the function `module:name`. Raises: LookupError, ImportError."""


class CheckResult(Struct, frozen=True):
    """Args: message: why the check fails. verdict: of a judge."""

    type: str
    passed: bool
    message: str = ""
    verdict: Verdict | None = None


class CaseResult(Struct, frozen=True, kw_only=True):
    """A run of a case.

    Args:
        model: that replaced those of the agent; empty: its own.
        repeat: number of the run, from 1.
        recorded: whether models and tools answered from a recording.
    """

    suite: str
    case: str
    run_id: str = ""
    task_id: str = ""
    model: str = ""
    repeat: int = 1
    status: str
    path: tuple[str, ...] = ()
    output: Any = None
    error: JsonObject | None = None
    divergence: JsonObject | None = None
    assertions: tuple[CheckResult, ...] = ()
    cost_usd: float = 0.0
    duration_ms: float = 0.0
    recorded: bool = False
    passed: bool

    @property
    def failures(self) -> list[str]:
        """Why the case has not passed."""
        found = [f"{one.type}: {one.message}" for one in self.assertions if not one.passed]
        if self.divergence:
            found.insert(0, str(self.divergence["message"]))
        return found


class Evaluation(Struct, frozen=True, kw_only=True):
    """A report.

    Args:
        started_at: seconds since the epoch.
        cost_usd: that was paid for its runs and judges.
        stopped: why it ended before its last case: `cost_limit`, else empty.
    """

    evaluation_id: str
    kind: Kind
    name: str
    started_at: float
    passed: bool
    cost_usd: float = 0.0
    stopped: Literal["", "cost_limit"] = ""
    cases: tuple[CaseResult, ...] = ()

    def to_json(self) -> JsonObject:
        data: JsonObject = orjson.loads(encode(self))
        return data

    @classmethod
    def from_json(cls, data: JsonObject) -> Evaluation:
        return convert(data, cls)

    @classmethod
    def read(cls, file: Path) -> Evaluation:
        """Reads a report.

        Raises:
            InvalidInput: the file does not exist or is not a report.
        """
        try:
            return cls.from_json(orjson.loads(file.read_bytes()))
        except OSError as error:
            raise InvalidInput(f"Cannot read the report {file}: {error.strerror}.") from error
        except (orjson.JSONDecodeError, ValidationError) as error:
            raise InvalidInput(f"{file} is not the report of an evaluation: {error}.") from error


@dataclass(frozen=True, slots=True)
class Options:
    """How cases run.

    Args:
        repeat: how often each case runs.
        live: whether recordings are ignored.
        max_cost_usd: no run begins when this has been spent.
        model: for the report.
    """

    repeat: int = 1
    live: bool = False
    max_cost_usd: float = field(default=float("inf"))
    model: str = ""


DEFAULT_OPTIONS = Options()
#: called with the result of each run
OnResult = Callable[[CaseResult], None]
