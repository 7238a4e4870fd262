"""How the command was called, for lines to paste; and agents by name, for people at a terminal."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
import sys
from pathlib import Path

from astromesh.errors import AgentNotFoundError, InvalidInput
from astromesh.runtime.agent import Agent
from astromesh.runtime.engine import AgentRuntime
from astromesh.unseen import blank

NAME = "astromesh"


def called() -> str:
    """`astromesh` where the shell finds this very command, else its path, such as `.venv/bin/astromesh`."""
    own = Path(sys.argv[0])
    if own.name != NAME:
        return NAME
    found = shutil.which(NAME)
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return NAME
    path = os.path.relpath(own)
    return shlex.quote(str(own.absolute()) if path.startswith("..") else path)


def named(runtime: AgentRuntime, name: str) -> Agent:
    """The agent. Raises: AgentNotFoundError, with the names that there are; AgentUnavailable."""
    try:
        return runtime.agent(name)
    except AgentNotFoundError:
        near = difflib.get_close_matches(name, runtime.agents, 1)
        others = f"There are: {', '.join(sorted(runtime.agents))}." if runtime.agents else "There are none."
        raise AgentNotFoundError(name, f"Did you mean {near[0]!r}?" if near else others) from None


def asked(query: str) -> str:
    """A query as it was typed or piped, if it is one.

    Raises:
        InvalidInput: there is nothing to be seen in it, or it holds bytes that are no text.
    """
    if blank(query):
        raise InvalidInput("The query is empty.")
    if any("\ud800" <= char <= "\udfff" for char in query):  # what Python makes of such bytes
        raise InvalidInput("The query is not UTF-8: it holds bytes that are no text.")
    return query
