"""`astromesh eval`: runs the cases of an agent or workflow, and makes cases of runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import orjson
import typer

from astromesh.access.scopes import Viewer
from astromesh.agents.agent import Agent
from astromesh.agents.evaluation import AgentTarget, ModelJudge, with_model
from astromesh.agents.manifest import ModelLike
from astromesh.cli.errors import RUN_FAILED, USAGE_ERROR, reported_errors
from astromesh.cli.event_loop import EventLoop
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.terminal import note, print_json, print_table
from astromesh.config.folder import Configuration
from astromesh.config.workflow import EvaluationCase
from astromesh.errors import AgentNotFoundError, ConfigError, InvalidConfiguration
from astromesh.evaluation.base import Case, CaseResult, Evaluation, OnResult, Options
from astromesh.evaluation.dataset import Addition, ProposedCase, addition, agent_cases, select
from astromesh.evaluation.evaluate import Results, evaluation_of, run_cases
from astromesh.evaluation.reports import Comparison, baseline, comparisons, report_bytes, rows, store
from astromesh.evaluation.reports import junit as junit_of
from astromesh.logs import configure_logging
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration, workflow_names
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.run_cases import TASK, propose_case
from astromesh.telemetry.clock import SystemClock
from astromesh.telemetry.ids import new_id
from astromesh.text import counted, did_you_mean

app = typer.Typer()
#: failures of a case that are printed
_MAX_FAILURES = 5


class EvaluationRequest(NamedTuple):
    """Which cases run, and how.

    Args:
        models: that replace those of the agent, each in its turn.
        judge: the model of `judge` checks that name none.
    """

    dataset: str = ""
    tag: str = ""
    case: str = ""
    models: tuple[str, ...] = ()
    judge: str = ""
    options: Options = Options()


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An agent or a workflow.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="Only this dataset or suite, or a file; default: all.")
    ] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only suites with this tag.")] = "",
    case: Annotated[str, typer.Option(metavar="ID", help="Only this case.")] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Run with this model, e.g. openai:gpt-4o-mini; repeatable."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Runs of each case.")] = 1,
    live: Annotated[bool, typer.Option("--live", help="Ask models and tools, not recordings.")] = False,
    judge: Annotated[str, typer.Option(metavar="MODEL", help="Model of judge checks that name none.")] = "",
    max_cost: Annotated[
        float,
        typer.Option(
            metavar="USD", min=0.0, show_default=False, help="Begin no run when this has been spent."
        ),
    ] = float("inf"),
    compare: Annotated[
        str, typer.Option(metavar="BASELINE", help="A report's file or id, or 'last': show what changed.")
    ] = "",
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML here.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as JSON here.")] = None,
    json: Json = False,
) -> None:
    """Run the cases of an agent or a workflow.

    The exit code is 1 where a case does not pass.
    """
    request = EvaluationRequest(
        dataset, tag, case, tuple(model or ()), judge, Options(repeat, live or bool(model), max_cost)
    )
    evaluate(folders_of(config, data), name, request, Output(compare, junit, out, json))


@app.command()
def add(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Id of a recorded run or a Task that has ended.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="Dataset in evals/; default: that of the agent or workflow.")
    ] = "",
    id: Annotated[str, typer.Option(metavar="ID", help="Id of the case; default: that of the run.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    tenant: Annotated[str, typer.Option(metavar="ID", help="Tenant of the run.")] = "default",
    json: Json = False,
) -> None:
    """Make a case of a run.

    The case has the input, checks to edit, and the recording. The command shows it before it writes.
    """
    folders = folders_of(config, data)
    configure_logging("warning")
    with reported_errors(as_json=json), asyncio.Runner(loop_factory=EventLoop) as runner:
        proposed, change = runner.run(_proposed(folders, run, dataset, id, tenant))
    if json:  # a program does not answer a question: without --yes nothing is written
        if yes:
            change.write()
        print_json({"file": str(change.file), "added": change.added, "written": yes, "note": proposed.note})
        return
    print(change.added, end="")
    if change.recording is not None:
        note(f"recording: {change.recording[0]}")
    if proposed.note:
        note(proposed.note, "yellow")
    if not yes and not sys.stdin.isatty():
        note(f"Nothing was written. --yes adds this to {change.file}.")
        raise typer.Exit(USAGE_ERROR)
    if yes or typer.confirm(f"Add this to {change.file}?"):
        with reported_errors():
            change.write()
        note(f"wrote {change.file}")


async def _proposed(
    folders: tuple[Path, Path], run_id: str, dataset: str, case_id: str, tenant: str
) -> tuple[ProposedCase, Addition]:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        proposed = await propose_case(runtime, run_id, Viewer(tenant, None), case_id)
        configuration = runtime.load_configuration()
    if proposed.recording is not None and not run_id.startswith(TASK):
        proposed = await _verified(proposed, _agent(configuration, folders, proposed.owner))
    return proposed, addition(proposed, dataset)


async def _verified(proposed: ProposedCase, agent: Agent) -> ProposedCase:
    """Replays the recording of an agent's run. Returns the case without it if a check does not pass."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "recording.json"
        file.write_bytes(orjson.dumps(proposed.recording))
        spec = EvaluationCase.model_validate_json(orjson.dumps({**proposed.case, "replay": file.name}))
        results = await run_cases(AgentTarget(agent), [Case("", spec, Path(folder))])
    await agent.close()
    if results.passed:
        return proposed
    why = results.cases[0].failures[0]
    note = f"The recording does not reproduce the run, so the case runs live: {why}"
    return proposed._replace(recording=None, note=note)


class Output(NamedTuple):
    """Where the report goes. Args: baseline: a report to compare with. junit, file: written if not None."""

    baseline: str = ""
    junit: Path | None = None
    file: Path | None = None
    as_json: bool = False


def evaluate(
    folders: tuple[Path, Path],
    name: str,
    request: EvaluationRequest,
    output: Output,
    *,
    workflow: bool = False,
) -> None:
    """Evaluates an agent or workflow, stores the report and prints it.

    Args:
        workflow: whether the name is that of a workflow, also where an agent has the same name.

    Raises:
        typer.Exit: a case has not passed, or with the code of an error.
    """
    configure_logging("warning")
    with reported_errors(as_json=output.as_json), asyncio.Runner(loop_factory=EventLoop) as runner:
        evaluation, before = runner.run(_evaluate(folders, name, request, output, workflow))
    _print(evaluation, comparisons(evaluation, before), output)
    if not evaluation.passed:
        raise typer.Exit(RUN_FAILED)


async def _evaluate(
    folders: tuple[Path, Path], name: str, request: EvaluationRequest, output: Output, workflow: bool
) -> tuple[Evaluation, Evaluation | None]:
    configuration = load_configuration(folders[0], Plugins())
    judge = ModelJudge(request.judge, folders[1], partial(judge_model, configuration))
    before = baseline(folders[1], output.baseline, name) if output.baseline else None
    if workflow or (name not in configuration.edges and name in workflow_names(folders[0])):
        evaluation = await _evaluate_workflow(folders, name, request, judge)
    else:
        agent = _agent(configuration, folders, name)
        cases = select(agent_cases(folders[0], name, request.dataset), request.tag, request.case)
        evaluation = await evaluate_agent(agent, cases, request, judge)
    store(folders[1], evaluation)
    return evaluation, before


def _agent(configuration: Configuration, folders: tuple[Path, Path], name: str) -> Agent:
    if faults := (*configuration.faults, *configuration.broken.get(name, ())):
        raise InvalidConfiguration(faults)
    if name not in configuration.agents:
        known = (*configuration.agents, *workflow_names(folders[0]))
        raise AgentNotFoundError(name, did_you_mean(name, known) or f"Known: {', '.join(known) or 'none'}.")
    file = configuration.agents[name].file
    return Agent.from_yaml(file, on_error="return", data_dir=folders[1])


def judge_model(configuration: Configuration, name: str) -> ModelLike:
    """Returns the model of a judge, `provider:name`, with the endpoint and the key of providers.yaml."""
    provider, _, model = name.partition(":")
    entry = configuration.providers.spec.providers.get(provider)
    if entry is None:
        return name
    keys = entry.model_dump(exclude_unset=True, exclude={"type", "models"})
    return {**keys, "provider": entry.type, "model": model or next(iter(entry.models), "")}


async def evaluate_agent(
    agent: Agent, cases: list[Case], request: EvaluationRequest, judge: ModelJudge
) -> Evaluation:
    """Runs the cases of an agent with each model."""
    target, started = AgentTarget(agent), SystemClock().now()
    models = request.models or ("",)
    results: list[Results] = []
    with _progress(len(cases) * request.options.repeat * len(models)) as on_result:
        for model in models:
            left = request.options.max_cost_usd - sum(one.spent for one in results)
            options = Options(request.options.repeat, request.options.live, left, model)
            with with_model(agent, model):
                results.append(await run_cases(target, cases, options, judge, on_result))
    return evaluation_of(target, new_id("eval_"), started, results)


async def _evaluate_workflow(
    folders: tuple[Path, Path], name: str, request: EvaluationRequest, judge: ModelJudge
) -> Evaluation:
    async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
        workflow = await runtime.workflows.loaded.open(name)
        with _progress(None) as on_result:
            report = await runtime.workflows.evaluate(
                workflow.name, request.dataset, request.tag, case=request.case, models=request.models,
                options=request.options,
                judge=judge, on_result=on_result,
            )  # fmt: skip
    return Evaluation.from_json(report)


# -- output --------------------------------------------------------------------------------------------------


@contextmanager
def _progress(total: int | None) -> Iterator[OnResult]:
    """Shows a progress bar in a terminal. Args: total: runs, or None if nobody knows."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        failed = 0

        def advance(result: CaseResult) -> None:
            nonlocal failed
            failed += not result.passed
            progress.update(task, advance=1, description=f"{failed} failed" if failed else "")

        yield advance


def _print(evaluation: Evaluation, compared: list[Comparison], output: Output) -> None:
    write_file(output.junit, lambda: junit_of(evaluation))
    write_file(output.file, lambda: report_bytes(evaluation))
    if output.as_json:
        data = evaluation.to_json()
        if compared:
            data["comparisons"] = [one.to_json() for one in compared]
        print_json(data)
        return
    found = rows(evaluation.cases)
    with_models = any(row.model for row in found)
    print_table(
        ("RESULT", "CASE", *(("MODEL",) if with_models else ()), "PASSED", "COST", "SECONDS"),
        (
            ("passed" if row.all_passed else "FAILED", f"{row.suite}/{row.case}",
             *((row.model or "its own",) if with_models else ()),
             f"{row.passed}/{row.runs}", f"{row.cost_usd:.5f}", f"{row.seconds:.2f}")
            for row in found
        ),
    )  # fmt: skip
    for row in found:
        for why in row.failures[:_MAX_FAILURES]:
            note(f"{row.suite}/{row.case}{f' [{row.model}]' if row.model else ''}: {why}", "red")
        if (more := len(row.failures) - _MAX_FAILURES) > 0:
            note(f"{row.suite}/{row.case}: the report has {counted(more, 'more failure')}.", "red")
    if evaluation.stopped:
        note(f"Stopped: the cost limit was reached after {evaluation.cost_usd:.4f} USD.", "red")
    for comparison in compared:
        _print_comparison(comparison)
    note(f"{evaluation.evaluation_id}: {evaluation.cost_usd:.4f} USD")


def _print_comparison(one: Comparison) -> None:
    print(f"\n{one.title}: {len(one.better)} better, {len(one.worse)} worse, {one.same} the same. {one.hint}")
    for label, changes in (("better", one.better), ("worse", one.worse)):
        for change in changes:
            (was, runs), (now, later) = change.before, change.after
            print(f"  {label}  {change.suite}/{change.case}  {was}/{runs} → {now}/{later}")
    (cost, new_cost), (seconds, new_seconds) = one.cost_usd, one.seconds
    print(f"  cost {cost:.5f} → {new_cost:.5f} USD, latency {seconds:.2f} → {new_seconds:.2f} s a run")
    for label, cases in (("only before", one.only_before), ("only now", one.only_after)):
        if cases:
            print(f"  {label}: {', '.join(cases)}")


def write_file(file: Path | None, content: Callable[[], bytes]) -> None:
    """Writes a file that an option names, if any. Raises: ConfigError: it cannot be written."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content())
    except OSError as error:
        raise ConfigError(f"Cannot write {file}: {error.strerror}.") from error
