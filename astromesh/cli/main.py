"""`astromesh`: the entry point. It loads the module of the command that is called, and reports errors.

A command's options and its work stand in one module of `astromesh.cli.commands`. Exit codes: 0 success, 1 the
run failed, 2 the configuration or the call is wrong. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from astromesh import __version__
from astromesh.cli import startup
from astromesh.errors import AstromeshError

#: command -> its module, and its help, which a list of all commands prints without loading their modules
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("astromesh.cli.commands.serve", "Serve the agents over HTTP and WebSocket."),
    "dev": ("astromesh.cli.commands.serve", "Serve the agents for development."),
    "worker": (
        "astromesh.cli.commands.worker",
        "Execute durable runs of the servers on the same database.",
    ),
    "drain": (
        "astromesh.cli.commands.worker",
        "Let servers and workers end their work, and take no more.",
    ),
    "new": ("astromesh.cli.commands.new", "Write a project that runs at once."),
    "init": ("astromesh.cli.commands.new", "Add a configuration to an existing project."),
    "run": ("astromesh.cli.commands.agents", "Ask an agent one question, without a server."),
    "chat": ("astromesh.cli.commands.chat", "Talk to an agent in the terminal."),
    "validate": ("astromesh.cli.commands.validate", "Report every fault of a configuration."),
    "doctor": (
        "astromesh.cli.commands.doctor",
        "Check the settings, stores and models that the agents need.",
    ),
    "migrate": ("astromesh.cli.commands.doctor", "Bring the tables of every store up to date."),
    "schema": ("astromesh.cli.commands.new", "Print the JSON Schema of a kind of file, for editors."),
    "graph": ("astromesh.cli.commands.agents", "Draw what an agent does as a Mermaid diagram."),
    "audit": (
        "astromesh.cli.commands.access",
        "Show who did what: the audit log.",
    ),
}
#: commands with subcommands
GROUPS: Mapping[str, tuple[str, str]] = {
    "keys": ("astromesh.cli.commands.access", "API keys for 'auth: {mode: api_key}' in runtime.yaml."),
    "runs": ("astromesh.cli.commands.runs", "List, show, cancel and resume runs."),
    "eval": ("astromesh.cli.commands.evaluation", "Run the cases of agents and workflows."),
    "tools": ("astromesh.cli.commands.agents", "The tools of the agents."),
    "rag": ("astromesh.cli.commands.rag", "Knowledge pipelines: add documents, search them."),
    "mcp": (
        "astromesh.cli.commands.mcp",
        "Serve the agents as MCP tools; log in at MCP servers.",
    ),
    "workflow": ("astromesh.cli.commands.workflow", "Workflows: the DAGs in workflows/NAME/."),
}
#: groups that do something without a subcommand
_ALSO_COMMANDS = frozenset({"mcp"})
#: set while a shell completes a command; `astromesh --install-completion` makes it do so
_COMPLETION = "_ASTROMESH_COMPLETE"
#: commands that take the fast start of a server
_SERVING = ("serve", "dev", "worker")
_HELP = "An agent runtime: define agents in YAML, serve them over HTTP or run them here."


def main() -> None:
    """The entry point. An error becomes one clear message and an exit code."""
    try:
        if os.environ.get(startup.SECRETS_VARIABLE):
            startup.load_secret_files(os.environ)
        _run_command(sys.argv[1:])
    except AstromeshError as error:
        from astromesh.cli.errors import report

        sys.exit(report(error))
    except Exception as error:
        if isinstance(error, OSError):
            from astromesh.cli import errors

            if code := errors.report_os_error(error):
                sys.exit(code)
        sys.excepthook = _report_crash  # here, because typer sets its own hook before
        raise


def _run_command(words: list[str]) -> None:
    if _COMPLETION in os.environ:
        words = _completed_words(os.environ)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from astromesh.cli import errors

        errors.replace_closed_streams(words)
    if isinstance(sys.stdin, TextIOWrapper):  # commands refuse what is not UTF-8; most locales raise an error
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        app_for(words)()
    finally:
        sys.stdout.flush()  # a failure to write is reported only from here


def _completed_words(env: Mapping[str, str]) -> list[str]:
    """Returns the words of the command that a shell completes."""
    return (env.get("_TYPER_COMPLETE_ARGS") or env.get("COMP_WORDS", "")).split()[1:]


def app_for(words: Sequence[str]) -> typer.Typer:
    """Returns the app with the command that the words call; for all other words, e.g. `--help`, with stubs.

    A stub has a command's name and help. The modules of all commands would take half a second to load.
    """
    name = words[0] if words else ""
    app = _empty_app()
    if name in COMMANDS or name in GROUPS:
        if name in ("serve", "dev"):
            gc.disable()  # until the server is up: collections take a tenth of the start and find nothing
        if name in _SERVING:
            startup.prepare_imports()
        _add(app, name)
        return app
    for command, (_, text) in COMMANDS.items():
        app.command(command, help=text)(lambda: None)
    for group, (_, text) in GROUPS.items():
        app.add_typer(typer.Typer(help=text), name=group)
    return app


def worker_app() -> Callable[..., Awaitable[None]]:
    """Returns the application of a process of `astromesh serve --workers N`, made from the environment.

    Its lifespan opens its runtime. The parent process has checked the configuration.
    """
    startup.prepare_imports()
    from astromesh.cli.commands.serve import LINKS_VARIABLE, TALLIES_VARIABLE, application, runtime_of
    from astromesh.logs import configure_logging

    folders = Path(os.environ["ASTROMESH_CONFIG_DIR"]), Path(os.environ["ASTROMESH_DATA_DIR"])
    spec = runtime_of(folders).load_configuration().runtime.spec
    configure_logging(spec.telemetry.log_level, spec.telemetry.log_format)
    server = application(folders, spec, Path(os.environ[TALLIES_VARIABLE]))
    server.state.runtime.runner.run_links = os.environ.get(LINKS_VARIABLE, "")
    startup.freeze_memory()
    return server


def complete_app() -> typer.Typer:
    """Returns the app with every command, for documentation and tests."""
    app = _empty_app()
    for name in (*COMMANDS, *GROUPS):
        _add(app, name)
    return app


def _empty_app() -> typer.Typer:
    app = typer.Typer(
        name="astromesh", help=_HELP, no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich takes half of the start of `astromesh --help`
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback(help=_HELP)(_global_options)
    return app


def _add(app: typer.Typer, name: str) -> None:
    """Loads a command or a group and adds it to the app."""
    module_name, _ = COMMANDS.get(name) or GROUPS[name]
    module = importlib.import_module(module_name)
    if name in GROUPS:
        needs_subcommand = name not in _ALSO_COMMANDS
        app.add_typer(module.app, name=name, help=GROUPS[name][1], no_args_is_help=needs_subcommand)
    else:
        app.command(name)(getattr(module, name))


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"astromesh {__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def _report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Reports a bug of astromesh; with ASTROMESH_DEBUG=1 with its traceback."""
    if os.environ.get("ASTROMESH_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    typer.echo(f"astromesh failed: {kind.__name__}: {error}", err=True)
    typer.echo("This is a bug of astromesh. Set ASTROMESH_DEBUG=1 to see the traceback.", err=True)
