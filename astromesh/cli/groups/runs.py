"""`astromesh runs …`."""

from __future__ import annotations

from typing import Annotated

import typer

from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.options import Config, Data, Json, Session, at

app = typer.Typer(no_args_is_help=True, help="What became of runs; ending them, deciding for them.")

Url = Annotated[
    str,
    typer.Option("--url", metavar="URL", envvar="ASTROMESH_URL", help="A server; default: its store itself."),
]
ApiKey = Annotated[
    str,
    typer.Option("--key", metavar="KEY", envvar="ASTROMESH_API_KEY", help="API key or token for the server."),
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Whose runs, in the store.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="As 'runs list' shows it.")]


@app.command("list")
def runs_list(
    config: Config = CONFIG,
    data: Data = DATA,
    agent: Annotated[str, typer.Option(metavar="AGENT", help="Of this one.")] = "",
    session: Session = "",
    status: Annotated[
        str, typer.Option(metavar="STATUS", help="queued, running, waiting, completed, …")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List runs, the newest first."""
    from astromesh.cli import runs as command
    from astromesh.runtime.registry import RunFilter

    where = command.Where(at(config, data), url, key, tenant)
    command.list_runs(where, RunFilter(agent, session, status, limit), as_json=json)


@app.command("show")
def runs_show(
    run: RunId,
    config: Config = CONFIG,
    data: Data = DATA,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show one run: its state, its answer or its error, what it waits for."""
    from astromesh.cli import runs as command

    command.show(command.Where(at(config, data), url, key, tenant), run, as_json=json)


@app.command("cancel")
def runs_cancel(
    run: RunId,
    config: Config = CONFIG,
    data: Data = DATA,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """End a run and all that it started, whichever server it is in."""
    from astromesh.cli import runs as command

    command.cancel(command.Where(at(config, data), url, key, tenant), run, as_json=json)


@app.command("resume")
def runs_resume(
    run: RunId,
    decision: Annotated[str, typer.Argument(help="approve, deny or answer")],
    config: Config = CONFIG,
    data: Data = DATA,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="approve: instead of the model's.")] = "",
    answer: Annotated[str, typer.Option(metavar="TEXT", help="answer: what to.")] = "",
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Decide for a run that waits for a person."""
    from astromesh.cli import runs as command

    said = command.decision(decision, arguments, answer)
    command.resume(command.Where(at(config, data), url, key, tenant), run, said, as_json=json)
