"""`astromesh tools …`."""

from __future__ import annotations

from typing import Annotated

import typer

from astromesh.cli.folders import CONFIG, DATA
from astromesh.cli.options import Config, Data, Json, at

app = typer.Typer(no_args_is_help=True, help="What the agents' tools are.")


@app.command("list")
def tools_list(config: Config = CONFIG, data: Data = DATA, json: Json = False) -> None:
    """List the tools that agents may use."""
    from astromesh.cli import tools as command

    command.list_tools(at(config, data), as_json=json)


@app.command("call")
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

    command.call(at(config, data), tool, arguments, agent, as_json=json)
