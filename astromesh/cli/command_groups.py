"""Commands with subcommands: `astromesh keys`, `rag`, `runs`, `tools` and `workflow`, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, Session, folders_of

# `astromesh keys …`.

keys_app = typer.Typer(no_args_is_help=True, help="API keys for 'auth: {mode: api_key}' in runtime.yaml.")


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
    expires: Annotated[float, typer.Option(metavar="DAYS", min=0, max=36_500, help="0: never.")] = 0,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Make a key; it is shown this once."""
    from astromesh.cli.commands import keys as command

    wanted = command.key_from_options(name, scope or [], agent or [], user, tenant, expires)
    command.create(data, wanted, as_json=json)
    if agent:
        from astromesh.cli.commands import validate

        validate.warn_of_unknown_agents(config, agent)


@keys_app.command("list")
def keys_list(data: Data = DATA_FOLDER, json: Json = False) -> None:
    """List the keys, without their secrets."""
    from astromesh.cli.commands import keys as command

    command.list_keys(data, as_json=json)


@keys_app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="As 'keys list' shows it.")], data: Data = DATA_FOLDER
) -> None:
    """Make a key invalid, in running servers too."""
    from astromesh.cli.commands import keys as command

    command.revoke(data, key)


@keys_app.command("encrypt")
def keys_encrypt(
    key_env: Annotated[str, typer.Option(metavar="VARIABLE", help="Variable that holds the key.")] = "",
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File that holds the key.")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Write a new key to that file first.")] = False,
) -> None:
    """Encrypt a secret from stdin for provider_credentials.yaml (auth.type: encrypted)."""
    from astromesh.cli.commands import keys as command

    command.encrypt(key_env, key_file, makes_key=new_key)


# `astromesh rag …`.

rag_app = typer.Typer(no_args_is_help=True, help="Knowledge pipelines: take documents in, search them.")


@rag_app.command("ingest")
def rag_ingest(
    pipeline: Annotated[str, typer.Argument(help="NAME of rag/NAME.rag.yaml.")],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="A file or folder; default: the pipeline's sources."),
    ] = None,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Take documents in; what is unchanged costs nothing, what was broken off goes on."""
    from astromesh.cli.commands import rag as command

    command.ingest(folders_of(config, data), pipeline, path, as_json=json)


@rag_app.command("query")
def rag_query(
    pipeline: Annotated[str, typer.Argument(help="NAME of rag/NAME.rag.yaml.")],
    text: Annotated[str, typer.Argument(help="What is sought; '-' reads it from stdin.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    top_k: Annotated[int, typer.Option(min=0, max=100, help="Passages; 0: the pipeline's own.")] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only documents with this metadata; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the passages that answer a question best, with their sources."""
    from astromesh.cli.commands import rag as command

    command.query(folders_of(config, data), pipeline, text, command.filters(where or []), top_k, as_json=json)


# `astromesh runs …`.

runs_app = typer.Typer(no_args_is_help=True, help="What became of runs; ending them, deciding for them.")


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
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
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
    from astromesh.cli.commands import runs as command
    from astromesh.durable.run_registry import RunFilter

    where = command.Where(folders_of(config, data), url, key, tenant)
    command.list_runs(where, RunFilter(agent, session, status, limit), as_json=json)


@runs_app.command("show")
def runs_show(
    run: RunId,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show one run: its state, its answer or its error, what it waits for."""
    from astromesh.cli.commands import runs as command

    command.show(command.Where(folders_of(config, data), url, key, tenant), run, as_json=json)


@runs_app.command("cancel")
def runs_cancel(
    run: RunId,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """End a run and all that it started, whichever server it is in."""
    from astromesh.cli.commands import runs as command

    command.cancel(command.Where(folders_of(config, data), url, key, tenant), run, as_json=json)


@runs_app.command("resume")
def runs_resume(
    run: RunId,
    decision: Annotated[str, typer.Argument(help="approve, deny or answer")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="approve: instead of the model's.")] = "",
    answer: Annotated[str, typer.Option(metavar="TEXT", help="answer: what to.")] = "",
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Decide for a run that waits for a person."""
    from astromesh.cli.commands import runs as command

    said = command.parse_decision(decision, arguments, answer)
    command.resume(command.Where(folders_of(config, data), url, key, tenant), run, said, as_json=json)


# `astromesh tools …`.

tools_app = typer.Typer(no_args_is_help=True, help="What the agents' tools are.")


@tools_app.command("list")
def tools_list(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER, json: Json = False) -> None:
    """List the tools that agents may use."""
    from astromesh.cli.commands import tools as command

    command.list_tools(folders_of(config, data), as_json=json)


@tools_app.command("call")
def tools_call(
    tool: Annotated[str, typer.Argument(metavar="NAME", help="As 'tools list' shows it.")],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="The arguments, an object; '-' reads it from stdin.")
    ] = "{}",
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    agent: Annotated[
        str, typer.Option("--agent", "-a", metavar="NAME", help="Whose tool, where several have one.")
    ] = "",
    json: Json = False,
) -> None:
    """Call a tool as an agent would, behind its permissions, limits and checks."""
    from astromesh.cli.commands import tools as command

    command.call(folders_of(config, data), tool, arguments, agent, as_json=json)


# `astromesh workflow …`.

workflow_app = typer.Typer(no_args_is_help=True, help="Workflows: the DAGs of workflows/NAME/.")


Workflow = Annotated[str, typer.Argument(metavar="NAME", help="Folder in workflows/, or a path.")]


@workflow_app.command("validate")
def workflow_validate(name: Workflow, config: Config = CONFIG_FOLDER, json: Json = False) -> None:
    """Say everything that is wrong with a workflow."""
    from astromesh.cli.commands import workflow as command

    raise typer.Exit(command.validate(config, name, as_json=json))


@workflow_app.command("graph")
def workflow_graph(name: Workflow, config: Config = CONFIG_FOLDER) -> None:
    """Draw a workflow as a Mermaid diagram."""
    from astromesh.cli.commands import workflow as command

    raise typer.Exit(command.graph(config, name))


@workflow_app.command("run")
def workflow_run(
    name: Workflow,
    input: Annotated[str, typer.Argument(help="JSON or text; '@FILE' reads a file, '-' stdin.")] = "null",
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    start: Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")] = "",
    json: Json = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print Tasks and history as well, as JSON.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the run's events as they come.")] = False,
) -> None:
    """Run a workflow on one input, without a server."""
    from astromesh.cli.commands import workflow as command

    command.run(folders_of(config, data), name, input, start, as_json=json, trace=trace, stream=stream)


@workflow_app.command("record")
def workflow_record(
    name: Workflow,
    input: Annotated[str, typer.Argument(help="JSON or text; '@FILE' reads a file, '-' stdin.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The recording.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    start: Annotated[str, typer.Option(metavar="NODE", help="Start node; default: the default one.")] = "",
    golden: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outcome, too, to compare with.")
    ] = None,
) -> None:
    """Run a workflow and record what its models and tools answer."""
    from astromesh.cli.commands import workflow as command

    command.record(folders_of(config, data), name, input, start, out, golden)


@workflow_app.command("replay")
def workflow_replay(
    name: Workflow,
    tape: Annotated[str, typer.Argument(metavar="FILE", help="A recording, or the id of a stored Task.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    json: Json = False,
) -> None:
    """Run a recorded Task again, offline, and name the first divergence."""
    from astromesh.cli.commands import workflow as command

    command.replay(folders_of(config, data), name, tape, as_json=json)


@workflow_app.command("eval")
def workflow_eval(
    name: Workflow,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    suite: Annotated[str, typer.Option(metavar="NAME", help="Only this suite.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only suites with this tag.")] = "",
    json: Json = False,
) -> None:
    """Run the suites of evaluations.yaml; exit code 1 where a case does not pass."""
    from astromesh.cli.commands import workflow as command

    command.evaluate(folders_of(config, data), name, suite, tag, as_json=json)


@workflow_app.command("inspect")
def workflow_inspect(
    name: Workflow,
    what: Annotated[
        str, typer.Argument(metavar="TASK|INPUT", help="Id of a kept Task, or an input to step through.")
    ],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
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
    from astromesh.cli.commands import workflow as command

    places = folders_of(config, data)
    if what.startswith("task_"):
        command.inspect(places, name, what, stage, path)
    else:
        command.step_through(places, name, what, start, before or [])


@workflow_app.command("repl")
def workflow_repl(
    name: Workflow,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
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
    from astromesh.cli.commands import workflow_repl as command

    command.repl(folders_of(config, data), name, profile, settings or [], workspace, start)
