"""`astromesh workflow record`, `replay` and `eval`: cassettes, and what is expected of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
import typer

from astromesh.cli.failure import RUN_FAILED, report
from astromesh.cli.output import note, print_json
from astromesh.cli.workflow import parsed
from astromesh.errors import AstromeshError
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.loaded_workflows import Workflow
from astromesh.runtime.registry import Viewer
from astromesh.runtime.task_asked import Asked
from astromesh.runtime.tasks import Workflows
from astromesh.telemetry.logs import configure_logging
from astromesh.types import JsonObject
from astromesh.workflow.cassette import Cassette
from astromesh.workflow.evaluation import golden_of
from astromesh.workflow.result import TaskResult

T = TypeVar("T")
#: who works with a workflow on this machine
OPERATOR = Viewer("default", None)


def record(
    places: tuple[Path, Path], name: str, input: str, start: str, out: Path, golden: Path | None
) -> None:
    """Runs a Task and writes what it asked models and tools, and what they answered.

    Args:
        golden: where its outcome is written, for an assertion `golden`.

    Raises:
        typer.Exit: with the code of what went wrong.
    """

    async def work(workflows: Workflows, workflow: Workflow) -> tuple[TaskResult, Cassette]:
        result = await workflows.run(workflow.name, Asked(parsed(input), start or None))
        return result, await workflows.tasks.cassette(result.task_id, OPERATOR)

    result, cassette = done(places, name, work)
    cassette.write(out)
    if golden is not None:
        golden.parent.mkdir(parents=True, exist_ok=True)
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        golden.write_bytes(orjson.dumps(golden_of(result), option=option))
    note(f"{result.status}: {len(cassette.stages)} stages in {out}")


def replay(places: tuple[Path, Path], name: str, tape: str, *, as_json: bool) -> None:
    """Replays a cassette, or a Task that is kept; nothing is asked and nothing is kept.

    Raises:
        typer.Exit: with 1 where it diverges.
    """
    cassette = Cassette.read(Path(tape)) if Path(tape).is_file() else None

    async def work(workflows: Workflows, workflow: Workflow) -> JsonObject:
        if cassette is not None:
            return await workflows.replays.play(workflow.name, cassette)
        return await workflows.replays.replay(tape, OPERATOR)

    told = done(places, name, work, as_json=as_json)
    if as_json:
        print_json(told)
    elif told["same"]:
        print(f"the same: {' → '.join(told['path'])}")
    else:
        note(told["divergence"]["message"], "red")
    if not told["same"]:
        raise typer.Exit(RUN_FAILED)


def evaluate(places: tuple[Path, Path], name: str, suite: str, tag: str, *, as_json: bool) -> None:
    """Runs the suites of evaluations.yaml.

    Raises:
        typer.Exit: with 1 where a case does not pass.
    """

    async def work(workflows: Workflows, workflow: Workflow) -> JsonObject:
        return await workflows.evaluate(workflow.name, suite, tag)

    told = done(places, name, work, as_json=as_json)
    if as_json:
        print_json(told)
    else:
        for case in told["cases"]:
            _tell(case)
    if not told["passed"]:
        raise typer.Exit(RUN_FAILED)


def done(
    places: tuple[Path, Path],
    name: str,
    work: Callable[[Workflows, Workflow], Awaitable[T]],
    *,
    as_json: bool = False,
) -> T:
    """What `work` answers, in a runtime of its own.

    Raises:
        typer.Exit: with the code of the error.
    """
    configure_logging("warning")

    async def opened() -> Any:
        async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
            return await work(runtime.workflows, await runtime.workflows.loaded.opened(name))

    try:
        answer: T = asyncio.run(opened())
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    return answer


def _tell(case: JsonObject) -> None:
    print(f"{'passed' if case['passed'] else 'FAILED'}  {case['suite']}/{case['case']}")
    if case["divergence"]:
        note(f"  {case['divergence']['message']}", "red")
    for one in case["assertions"]:
        if not one["passed"]:
            note(f"  {one['type']}: {one['message']}", "red")
