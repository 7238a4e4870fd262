"""`astromesh`: the commands and their options; what they do stands in the module of their name.

Exit codes: 0 fine, 1 the run failed, 2 the configuration or the call is wrong. Results go to stdout, all else
to stderr.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from astromesh import __version__
from astromesh.cli.folders import CONFIG, DATA
from astromesh.errors import AstromeshError

app = typer.Typer(
    name="astromesh", help="An agent runtime: agents from YAML, served over HTTP or used from here.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich costs half the start of `astromesh --help`
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
keys_app = typer.Typer(no_args_is_help=True, help="API keys for 'auth: {mode: api_key}' in runtime.yaml.")
tools_app = typer.Typer(no_args_is_help=True, help="What the agents' tools are.")
runs_app = typer.Typer(no_args_is_help=True, help="What became of runs; ending them, deciding for them.")
app.add_typer(keys_app, name="keys")
app.add_typer(runs_app, name="runs")
app.add_typer(tools_app, name="tools")
rag_app = typer.Typer(no_args_is_help=True, help="Knowledge pipelines: take documents in, search them.")
app.add_typer(rag_app, name="rag")

workflow_app = typer.Typer(no_args_is_help=True, help="Workflows: the DAGs of workflows/NAME/.")
app.add_typer(workflow_app, name="workflow")

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="DIR", envvar="ASTROMESH_CONFIG_DIR", help="Configuration.")
]
Data = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", envvar="ASTROMESH_DATA_DIR", help="What is kept between runs."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Session = Annotated[
    str, typer.Option("--session", "-s", metavar="ID", help="The conversation to go on with.")
]


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
        app()
    except AstromeshError as error:
        from astromesh.cli.failure import report

        sys.exit(report(error))
    except Exception:
        sys.excepthook = _unexpected  # not before: typer sets one of its own
        raise


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
    port: Annotated[int, typer.Option(min=-1, max=65535, help="0: any free one; default: runtime.yaml's.",
                                      show_default=False)] = -1,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the port.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to start with a broken agent.")] = False,
) -> None:  # fmt: skip
    """Serve the agents over HTTP and WebSocket."""
    gc.disable()  # until the server is up: what start-up makes stays, and looking for garbage costs a tenth
    from astromesh.cli import serve as command

    command.serve(_at(config, data), host, port if port >= 0 else None, workers, strict=strict)


@app.command()
def worker(config: Config = CONFIG, data: Data = DATA) -> None:
    """Work on durable runs beside the servers of the same database."""
    from astromesh.cli import work as command

    command.work(_at(config, data))


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

    command.run(_at(config, data), agent, query, session, as_json=json, stream=stream)


@app.command()
def chat(
    agent: Annotated[str, typer.Argument()],
    config: Config = CONFIG,
    data: Data = DATA,
    session: Session = "",
) -> None:
    """Talk to an agent in the terminal. /new starts over, /quit ends, Ctrl-C cancels an answer."""
    from astromesh.cli import chat as command

    command.chat(_at(config, data), agent, session)


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

    raise typer.Exit(command.doctor(_at(config, data), as_json=json))


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

    command.graph(_at(config, data), agent)


@tools_app.command("list")
def tools_list(config: Config = CONFIG, data: Data = DATA, json: Json = False) -> None:
    """List the tools that agents may use."""
    from astromesh.cli import tools as command

    command.list_tools(_at(config, data), as_json=json)


@tools_app.command("call")
def tools_call(
    tool: Annotated[str, typer.Argument(metavar="NAME", help="As 'tools list' shows it.")],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="The arguments, an object; '-' reads it from stdin.")
    ] = "{}",
    config: Config = CONFIG,
    data: Data = DATA,
    agent: Annotated[
        str, typer.Option("--agent", "-a", metavar="NAME", help="Whose tool, where several have one.")
    ] = "",
    json: Json = False,
) -> None:
    """Call a tool as an agent would, behind its permissions, limits and checks."""
    from astromesh.cli import tools as command

    command.call(_at(config, data), tool, arguments, agent, as_json=json)


# -- knowledge -----------------------------------------------------------------------------------------------


@rag_app.command("ingest")
def rag_ingest(
    pipeline: Annotated[str, typer.Argument(help="NAME of rag/NAME.rag.yaml.")],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="A file or folder; default: the pipeline's sources."),
    ] = None,
    config: Config = CONFIG,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Take documents in; what is unchanged costs nothing, what was broken off goes on."""
    from astromesh.cli import rag as command

    command.ingest(_at(config, data), pipeline, path, as_json=json)


@rag_app.command("query")
def rag_query(
    pipeline: Annotated[str, typer.Argument(help="NAME of rag/NAME.rag.yaml.")],
    text: Annotated[str, typer.Argument(help="What is sought; '-' reads it from stdin.")],
    config: Config = CONFIG,
    data: Data = DATA,
    top_k: Annotated[int, typer.Option(min=0, max=100, help="Passages; 0: the pipeline's own.")] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only documents with this metadata; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the passages that answer a question best, with their sources."""
    from astromesh.cli import rag as command

    command.query(_at(config, data), pipeline, text, command.filters(where or []), top_k, as_json=json)


# -- workflows -----------------------------------------------------------------------------------------------

Workflow = Annotated[str, typer.Argument(metavar="NAME", help="Folder in workflows/, or a path.")]


@workflow_app.command("validate")
def workflow_validate(name: Workflow, config: Config = CONFIG, json: Json = False) -> None:
    """Say everything that is wrong with a workflow."""
    from astromesh.cli import workflow as command

    raise typer.Exit(command.validate(config, name, as_json=json))


@workflow_app.command("graph")
def workflow_graph(name: Workflow, config: Config = CONFIG) -> None:
    """Draw a workflow as a Mermaid diagram."""
    from astromesh.cli import workflow as command

    raise typer.Exit(command.graph(config, name))


@workflow_app.command("run")
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

    command.run(_at(config, data), name, input, start, as_json=json, trace=trace, stream=stream)


@workflow_app.command("record")
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

    command.record(_at(config, data), name, input, start, out, golden)


@workflow_app.command("replay")
def workflow_replay(
    name: Workflow,
    tape: Annotated[str, typer.Argument(metavar="FILE", help="A cassette, or the id of a kept Task.")],
    config: Config = CONFIG,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Run a recorded Task again, offline, and name the first divergence."""
    from astromesh.cli import workflow_tape as command

    command.replay(_at(config, data), name, tape, as_json=json)


@workflow_app.command("eval")
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

    command.evaluate(_at(config, data), name, suite, tag, as_json=json)


@workflow_app.command("inspect")
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

    places = _at(config, data)
    if what.startswith("task_"):
        command.look(places, name, what, stage, path)
    else:
        command.step_through(places, name, what, start, before or [])


@workflow_app.command("repl")
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

    command.repl(_at(config, data), name, profile, settings or [], workspace, start)


# -- keys ----------------------------------------------------------------------------------------------------


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


@keys_app.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="What the key is for, for people.")],
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="What it allows; repeatable.")
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="AGENT", help="Run only these; repeatable.")
    ] = None,
    user: Annotated[str, typer.Option(metavar="ID", help="Who calls with it; default: the key itself.")] = "",
    tenant: Annotated[str, typer.Option(metavar="ID", help="Whose sessions it can reach.")] = "default",
    expires: Annotated[float, typer.Option(metavar="DAYS", min=0, help="0: never.")] = 0,
    data: Data = DATA,
    json: Json = False,
) -> None:
    """Make a key; it is shown this once."""
    from astromesh.cli import keys as command

    wanted = command.wanted(name, scope or [], agent or [], user, tenant, expires)
    command.create(data, wanted, as_json=json)


@keys_app.command("list")
def keys_list(data: Data = DATA, json: Json = False) -> None:
    """List the keys, without their secrets."""
    from astromesh.cli import keys as command

    command.list_keys(data, as_json=json)


@keys_app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="As 'keys list' shows it.")], data: Data = DATA
) -> None:
    """Make a key invalid, in running servers too."""
    from astromesh.cli import keys as command

    command.revoke(data, key)


@keys_app.command("encrypt")
def keys_encrypt(
    key_env: Annotated[str, typer.Option(metavar="VARIABLE", help="Variable that holds the key.")] = "",
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File that holds the key.")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Write a new key to that file first.")] = False,
) -> None:
    """Encrypt a secret from stdin for provider_credentials.yaml (auth.type: encrypted)."""
    from astromesh.cli import secrets as command

    command.encrypt(key_env, key_file, makes_key=new_key)


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


@runs_app.command("list")
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

    where = command.Where(_at(config, data), url, key, tenant)
    command.list_runs(where, RunFilter(agent, session, status, limit), as_json=json)


@runs_app.command("show")
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

    command.show(command.Where(_at(config, data), url, key, tenant), run, as_json=json)


@runs_app.command("cancel")
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

    command.cancel(command.Where(_at(config, data), url, key, tenant), run, as_json=json)


@runs_app.command("resume")
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
    command.resume(command.Where(_at(config, data), url, key, tenant), run, said, as_json=json)


def _at(config: Path, data: Path) -> tuple[Path, Path]:
    """The two folders. The environment names them too, for what reads it: defaults in YAML, and workers."""
    os.environ["ASTROMESH_CONFIG_DIR"], os.environ["ASTROMESH_DATA_DIR"] = str(config), str(data)
    return config, data
