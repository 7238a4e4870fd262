"""Commands of the project's own for `astromesh workflow repl`: each is called with (argument, session)."""

from __future__ import annotations

from typing import Any


async def review(argument: str, session: Any) -> Any:
    """Reviews a text file of the workspace."""
    return await session.run({"text": session.read(argument)})
