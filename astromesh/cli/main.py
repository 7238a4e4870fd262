"""`astromesh`: the entry point and the top-level commands with their options.

What a command does stands in `astromesh.cli.commands`; commands with subcommands (`astromesh keys
create`) stand in
`astromesh.cli.command_groups`. Exit codes: 0 success, 1 the run failed, 2 the configuration or the call
is wrong. Results go
to stdout, everything else to stderr.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import MutableMapping
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from astromesh import __version__
from astromesh.cli import command_groups
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, Session, folders_of
from astromesh.errors import AstromeshError, ConfigError

# Secrets from files: each file of `ASTROMESH_SECRETS_DIR` is a variable of its name.
#
# Containers get secrets as files (`/run/secrets/openai_api_key`), because environments are shown to everybody
# who may look at a container. YAML and keys name variables: `OPENAI_API_KEY` is then what that file holds.

SECRETS_VARIABLE = "ASTROMESH_SECRETS_DIR"


def load_secret_files(env: MutableMapping[str, str]) -> None:
    """Adds the files' contents, but for empty ones; what the environment holds already goes before.

    Raises:
        ConfigError: the folder or a file of it cannot be read.
    """
    folder = Path(env[SECRETS_VARIABLE])
    try:
        for file in sorted(folder.iterdir()):
            content = file.read_text(encoding="utf-8").strip() if _is_secret_file(file) else ""
            if content:
                env.setdefault(file.name.upper(), content)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(
            f"{SECRETS_VARIABLE}: what is in {folder} cannot be read as secrets: {error}."
        ) from error


def _is_secret_file(file: Path) -> bool:
    """Mounted folders hold hidden folders of their own beside the files."""
    return file.is_file() and not file.name.startswith(".")


app = typer.Typer(
    name="astromesh", help="An agent runtime: agents from YAML, served over HTTP or used from here.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich costs half the start of `astromesh --help`
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


app.add_typer(command_groups.keys_app, name="keys")


app.add_typer(command_groups.runs_app, name="runs")


app.add_typer(command_groups.tools_app, name="tools")


app.add_typer(command_groups.rag_app, name="rag")


app.add_typer(command_groups.workflow_app, name="workflow")


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
            load_secret_files(os.environ)
        _run_command(sys.argv[1:])
    except AstromeshError as error:
        from astromesh.cli.errors import report

        sys.exit(report(error))
    except Exception as error:
        if isinstance(error, OSError):
            from astromesh.cli import errors

            if code := errors.report_os_error(error):
                sys.exit(code)
        sys.excepthook = _report_crash  # not before: typer sets one of its own
        raise


def _run_command(words: list[str]) -> None:
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from astromesh.cli import errors

        errors.replace_closed_streams(words)
    try:
        _app_for(words)()
    finally:
        sys.stdout.flush()  # here, where somebody hears that it cannot be written


def _app_for(words: list[str]) -> typer.Typer:
    """The app with only the command or group that is asked for: to build them all takes 50 ms."""
    asked = words[0] if words else ""
    commands = [one for one in app.registered_commands if getattr(one.callback, "__name__", "") == asked]
    groups = [one for one in app.registered_groups if one.name == asked]
    if not commands and not groups:
        return app
    narrowed = copy(app)
    narrowed.registered_commands, narrowed.registered_groups = commands, groups
    return narrowed


def _report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A fault of astromesh itself; the whole of it for those who report it."""
    if os.environ.get("ASTROMESH_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    typer.echo(f"astromesh failed: {kind.__name__}: {error}", err=True)
    typer.echo("This is a fault of astromesh; ASTROMESH_DEBUG=1 shows where.", err=True)


# -- serving -------------------------------------------------------------------------------------------------
@app.command()
def serve(
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    host: Annotated[str, typer.Option(help="Address to listen on; default: runtime.yaml's.")] = "",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0: any free one; default: runtime.yaml's.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the port.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to start with a broken agent.")] = False,
) -> None:
    """Serve the agents over HTTP and WebSocket."""
    gc.disable()  # until the server is up: what start-up makes stays, and looking for garbage costs a tenth
    from astromesh.cli import startup

    startup.prepare_imports()
    from astromesh.cli.commands import serve as command

    command.serve(folders_of(config, data), host, port, workers, strict=strict)


@app.command()
def worker(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Work on durable runs beside the servers of the same database."""
    from astromesh.cli import startup

    startup.prepare_imports()
    from astromesh.cli.commands import worker as command

    command.run_worker(folders_of(config, data))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    name: Annotated[
        str, typer.Option(help="Name of its agent or workflow; default: assistant, triage.")
    ] = "",
    template: Annotated[str, typer.Option(metavar="KIND", help="agent or workflow.")] = "agent",
) -> None:
    """Write a project that runs at once."""
    from astromesh.cli.commands import new as command

    command.new(folder, name, template)


# -- talking -------------------------------------------------------------------------------------------------
@app.command()
def run(
    agent: Annotated[str, typer.Argument()],
    query: Annotated[str, typer.Argument(help="The message; '-' reads it from stdin.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    session: Session = "",
    json: Json = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print the answer as it comes; with --json: events.")
    ] = False,
) -> None:
    """Ask an agent one question, without a server."""
    from astromesh.cli.commands import agents as command

    command.run(folders_of(config, data), agent, query, session, as_json=json, stream=stream)


@app.command()
def chat(
    agent: Annotated[str, typer.Argument()],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    session: Session = "",
) -> None:
    """Talk to an agent in the terminal. /new starts over, /quit ends, Ctrl-C cancels an answer."""
    from astromesh.cli.commands import agents as command

    command.chat(folders_of(config, data), agent, session)


# -- looking -------------------------------------------------------------------------------------------------
@app.command()
def validate(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A folder or one file; default: --config.")
    ] = None,
    config: Config = CONFIG_FOLDER,
    json: Json = False,
) -> None:
    """Say everything that is wrong with a configuration."""
    from astromesh.cli.commands import validate as command

    raise typer.Exit(command.validate(path or config, as_json=json))


@app.command()
def doctor(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER, json: Json = False) -> None:
    """Look whether everything that the agents need is there and answers."""
    from astromesh.cli.commands import doctor as command

    raise typer.Exit(command.doctor(folders_of(config, data), as_json=json))


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="E.g. Agent; without one: the list.")] = "",
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every kind's schema there.")
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of file, for editors."""
    from astromesh.cli.commands import schema as command

    command.schema(kind, write)


@app.command()
def graph(
    agent: Annotated[str, typer.Argument()], config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER
) -> None:
    """Draw what an agent does as a Mermaid diagram."""
    from astromesh.cli.commands import agents as command

    command.graph(folders_of(config, data), agent)


@app.command()
def audit(
    data: Data = DATA_FOLDER,
    action: Annotated[str, typer.Option(help="Only this, e.g. key.revoke.")] = "",
    principal: Annotated[str, typer.Option(help="Only what this one did.")] = "",
    object: Annotated[str, typer.Option(help="Only what was done to this.")] = "",
    tenant: Annotated[str, typer.Option(help="Only of this tenant.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 100,
    json: Json = False,
) -> None:
    """Show who did what: keys made and revoked, runs cancelled and decided, data shown and erased."""
    from astromesh.cli.commands import audit as command

    command.show(data, tenant, (action, principal, object, limit), as_json=json)
