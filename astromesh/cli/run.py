"""`astromesh run`: one question, one answer, in this process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from uuid import uuid4

import typer

from astromesh.abc.events import EventSink
from astromesh.cli.called import asked, named
from astromesh.cli.failure import CANCELLED, report
from astromesh.cli.output import note, plain, print_json
from astromesh.cli.printer import Events, Printer, tell_of_fallback
from astromesh.errors import AstromeshError
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.telemetry.logs import configure_logging


def run(
    places: tuple[Path, Path], agent: str, query: str, session: str, *, as_json: bool, stream: bool
) -> None:
    """Prints the answer; without a session nothing of the run is kept in memory.

    Raises:
        typer.Exit: with the code of what went wrong.
    """
    configure_logging("warning")
    query = sys.stdin.read() if query == "-" else query
    printer = Events() if as_json else Printer()
    sinks = (printer,) if stream else ()
    try:
        answer = asyncio.run(_run(places, agent, query, session, sinks))
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    except KeyboardInterrupt:
        note("cancelled")
        raise typer.Exit(CANCELLED) from None
    if stream:
        printer.finish(answer.response)
    elif as_json:
        print_json(answer.to_json())
    else:
        print(plain(answer.response))
    if not as_json:
        tell_of_fallback(answer)


async def _run(
    places: tuple[Path, Path], agent: str, query: str, session: str, sinks: tuple[EventSink, ...]
) -> RunAnswer:
    query = asked(query)
    async with AgentRuntime(places[0], data_dir=places[1]) as runtime:
        request = RunRequest(query, session or f"cli-{uuid4().hex}", persist=bool(session))
        return await runtime.start(named(runtime, agent), request, sinks=sinks)
