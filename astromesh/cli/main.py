"""`astromesh`: the commands and their options; what they do stands in the module of their name.

Commands with commands below them (`astromesh keys create`) stand in `astromesh.cli.groups`.

Exit codes: 0 fine, 1 the run failed, 2 the configuration or the call is wrong. Results go to stdout, all else
to stderr.
"""

from __future__ import annotations

import gc
import os
import sys
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from astromesh import __version__
from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.groups import keys, rag, runs, tools, workflow
from astromesh.cli.options import Config, Data, Json, Session, at
from astromesh.errors import AstromeshError

app = typer.Typer(
    name="astromesh", help="An agent runtime: agents from YAML, served over HTTP or used from here.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich costs half the start of `astromesh --help`
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.add_typer(keys.app, name="keys")
app.add_typer(runs.app, name="runs")
app.add_typer(tools.app, name="tools")
app.add_typer(rag.app, name="rag")
app.add_typer(workflow.app, name="workflow")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"astromesh {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An agent runtime: agents from YAML, served over HTTP or used from here."""


def main() -> None:
    """The entry point: errors become one clear message and an exit code."""
    try:
        if os.environ.get("ASTROMESH_SECRETS_DIR"):
            from astromesh.cli import mounted

            mounted.take_in(os.environ)
        _answer(sys.argv[1:])
    except AstromeshError as error:
        from astromesh.cli.failure import report

        sys.exit(report(error))
    except Exception as error:
        if isinstance(error, OSError):
            from astromesh.cli import streams

            if code := streams.told(error):
                sys.exit(code)
        sys.excepthook = _unexpected  # not before: typer sets one of its own
        raise


def _answer(words: list[str]) -> None:
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from astromesh.cli import streams

        streams.stand_in(words)
    try:
        _narrowed(words)()
    finally:
        sys.stdout.flush()  # here, where somebody hears that it cannot be written


def _narrowed(words: list[str]) -> typer.Typer:
    """The app with only the command or group that is asked for: to build them all takes 50 ms."""
    asked = words[0] if words else ""
    commands = [one for one in app.registered_commands if getattr(one.callback, "__name__", "") == asked]
    groups = [one for one in app.registered_groups if one.name == asked]
    if not commands and not groups:
        return app
    narrowed = copy(app)
    narrowed.registered_commands, narrowed.registered_groups = commands, groups
    return narrowed


def _unexpected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A fault of astromesh itself; the whole of it for those who report it."""
    if os.environ.get("ASTROMESH_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    typer.echo(f"astromesh failed: {kind.__name__}: {error}", err=True)
    typer.echo("This is a fault of astromesh; ASTROMESH_DEBUG=1 shows where.", err=True)


# -- serving -------------------------------------------------------------------------------------------------


@app.command()
def serve(
    config: Config = CONFIG,
    data: Data = DATA,
    host: Annotated[str, typer.Option(help="Address to listen on; default: runtime.yaml's.")] = "",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0: any free one; default: runtime.yaml's.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the port.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to start with a broken agent.")] = False,
) -> None:
    """Serve the agents over HTTP and WebSocket."""
    gc.disable()  # until the server is up: what start-up makes stays, and looking for garbage costs a tenth
    from astromesh.cli import lean

    lean.begin()
    from astromesh.cli import serve as command

    command.serve(at(config, data), host, port, workers, strict=strict)


@app.command()
def worker(config: Config = CONFIG, data: Data = DATA) -> None:
    """Work on durable runs beside the servers of the same database."""
    from astromesh.cli import lean

    lean.begin()
    from astromesh.cli import work as command

    command.work(at(config, data))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    name: Annotated[
        str, typer.Option(help="Name of its agent or workflow; default: assistant, triage.")
    ] = "",
    template: Annotated[str, typer.Option(metavar="KIND", help="agent or workflow.")] = "agent",
) -> None:
    """Write a project that runs at once."""
    from astromesh.cli import new as command

    command.new(folder, name, template)


# -- talking -------------------------------------------------------------------------------------------------


@app.command()
def run(
    agent: Annotated[str, typer.Argument()],
    query: Annotated[str, typer.Argument(help="The message; '-' reads it from stdin.")],
    config: Config = CONFIG,
    data: Data = DATA,
    session: Session = "",
    json: Json = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the answer as it comes; with --json: events.")
    ] = False,
) -> None:
    """Ask an agent one question, without a server."""
    from astromesh.cli import run as command

    command.run(at(config, data), agent, query, session, as_json=json, stream=stream)


@app.command()
def chat(
    agent: Annotated[str, typer.Argument()],
    config: Config = CONFIG,
    data: Data = DATA,
    session: Session = "",
) -> None:
    """Talk to an agent in the terminal. /new starts over, /quit ends, Ctrl-C cancels an answer."""
    from astromesh.cli import chat as command

    command.chat(at(config, data), agent, session)


# -- looking -------------------------------------------------------------------------------------------------


@app.command()
def validate(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A folder or one file; default: --config.")
    ] = None,
    config: Config = CONFIG,
    json: Json = False,
) -> None:
    """Say everything that is wrong with a configuration."""
    from astromesh.cli import validate as command

    raise typer.Exit(command.validate(path or config, as_json=json))


@app.command()
def doctor(config: Config = CONFIG, data: Data = DATA, json: Json = False) -> None:
    """Look whether everything that the agents need is there and answers."""
    from astromesh.cli import doctor as command

    raise typer.Exit(command.doctor(at(config, data), as_json=json))


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="E.g. Agent; without one: the list.")] = "",
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every kind's schema there.")
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of file, for editors."""
    from astromesh.cli import schema as command

    command.schema(kind, write)


@app.command()
def graph(agent: Annotated[str, typer.Argument()], config: Config = CONFIG, data: Data = DATA) -> None:
    """Draw what an agent does as a Mermaid diagram."""
    from astromesh.cli import graph as command

    command.graph(at(config, data), agent)


@app.command()
def audit(
    data: Data = DATA,
    action: Annotated[str, typer.Option(help="Only this, e.g. key.revoke.")] = "",
    principal: Annotated[str, typer.Option(help="Only what this one did.")] = "",
    object: Annotated[str, typer.Option(help="Only what was done to this.")] = "",
    tenant: Annotated[str, typer.Option(help="Only of this tenant.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
    json: Json = False,
) -> None:
    """Show who did what: keys made and revoked, runs cancelled and decided, data shown and erased."""
    from astromesh.cli import audit as command

    command.show(data, tenant, (action, principal, object, limit), as_json=json)
