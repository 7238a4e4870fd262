"""`astromesh workflow …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.options import Config, Data, Json, at

app = typer.Typer(no_args_is_help=True, help="Workflows: the DAGs of workflows/NAME/.")

Workflow = Annotated[str, typer.Argument(metavar="NAME", help="Folder in workflows/, or a path.")]


@app.command("validate")
def workflow_validate(name: Workflow, config: Config = CONFIG, json: Json = False) -> None:
    """Say everything that is wrong with a workflow."""
    from astromesh.cli import workflow as command

    raise typer.Exit(command.validate(config, name, as_json=json))


@app.command("graph")
def workflow_graph(name: Workflow, config: Config = CONFIG) -> None:
    """Draw a workflow as a Mermaid diagram."""
    from astromesh.cli import workflow as command

    raise typer.Exit(command.graph(config, name))


@app.command("run")
def workflow_run(
    name: Workflow,
    input: Annotated[str, typer.Argument(help="JSON or text; '@FILE' reads a file, '-' stdin.")] = "null",
    config: Config = CONFIG,
    data: Data = DATA,
    start: Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")] = "",
    json: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print Tasks and history as well, as JSON.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the run's events as they come.")] = False,
) -> None:
    """Run a workflow on one input, without a server."""
    from astromesh.cli import workflow as command

    command.run(at(config, data), name, input, start, as_json=json, trace=trace, stream=stream)


@app.command("record")
def workflow_record(
    name: Workflow,
    input: Annotated[str, typer.Argument(help="JSON or text; '@FILE' reads a file, '-' stdin.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The cassette.")],
    config: Config = CONFIG,
    data: Data = DATA,
    start: Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")] = "",
    golden: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outcome, too, to compare with.")
    ] = None,
) -> None:
    """Run a workflow and record what its models and tools answer."""
    from astromesh.cli import workflow_tape as command

    command.record(at(config, data), name, input, start, out, golden)


@app.command("replay")
def workflow_replay(
    name: Workflow,
    tape: Annotated[str, typer.Argument(metavar="FILE", help="A cassette, or the id of a kept Task.")],
    config: Config = CONFIG,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Run a recorded Task again, offline, and name the first divergence."""
    from astromesh.cli import workflow_tape as command

    command.replay(at(config, data), name, tape, as_json=json)


@app.command("eval")
def workflow_eval(
    name: Workflow,
    config: Config = CONFIG,
    data: Data = DATA,
    suite: Annotated[str, typer.Option(metavar="NAME", help="Only this suite.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only suites with this tag.")] = "",
    json: Json = False,
) -> None:
    """Run the suites of evaluations.yaml; exit code 1 where a case does not pass."""
    from astromesh.cli import workflow_tape as command

    command.evaluate(at(config, data), name, suite, tag, as_json=json)


@app.command("inspect")
def workflow_inspect(
    name: Workflow,
    what: Annotated[
        str, typer.Argument(metavar="TASK|INPUT", help="Id of a kept Task, or an input to step through.")
    ],
    config: Config = CONFIG,
    data: Data = DATA,
    stage: Annotated[
        str, typer.Option(metavar="STAGE", help="Of a kept Task: run it again, into a scratch record.")
    ] = "",
    path: Annotated[str, typer.Option(metavar="PATH", help="With --stage: the descendant that ran it.")] = "",
    before: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE", help="Wait only before this stage; repeatable. Default: every one."),
    ] = None,
    start: Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")] = "",
) -> None:
    """Look into a kept Task, or step through a new one: context packages, inputs, outputs."""
    from astromesh.cli import workflow_inspect as command

    places = at(config, data)
    if what.startswith("task_"):
        command.look(places, name, what, stage, path)
    else:
        command.step_through(places, name, what, start, before or [])


@app.command("repl")
def workflow_repl(
    name: Workflow,
    config: Config = CONFIG,
    data: Data = DATA,
    profile: Annotated[
        str, typer.Option(metavar="ID", help="Of cli_profiles.yaml; default: its first.")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="E.g. task.timeout_s=60, for this process."),
    ] = None,
    workspace: Annotated[Path, typer.Option(metavar="DIR", help="Attachments must lie in there.")] = Path(),
    start: Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")] = "",
) -> None:
    """Work with a workflow line by line; /help says what there is."""
    from astromesh.cli import workflow_repl as command

    command.repl(at(config, data), name, profile, settings or [], workspace, start)
