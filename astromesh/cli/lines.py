"""Lines that somebody types, or that come from a pipe, while the event loop goes on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


class Lines:
    """Reads a line when it is asked for one; a thread waits for the keyboard, not the event loop.

    Args:
        prompt: printed before each line, where somebody sits at the keyboard.
    """

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self.interactive = sys.stdin.isatty()

    async def next(self, text: str = "") -> str | None:
        """The next line without its end, None behind the last.

        Args:
            text: stands in the line already, to be edited.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | None] = loop.create_future()

        def read() -> None:
            line = self._typed(text) if self.interactive else _piped()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_answer, answer, line)

        threading.Thread(target=read, daemon=True).start()
        return await answer

    def _typed(self, text: str) -> str | None:
        import readline  # gives input() history and editing; only where there is a keyboard

        fill: Callable[[], None] | None = (lambda: readline.insert_text(text)) if text else None
        readline.set_startup_hook(fill)
        try:
            return input(self._prompt).strip()
        except EOFError:
            print()
            return None
        finally:
            readline.set_startup_hook(None)


def _answer(waiting: asyncio.Future[str | None], line: str | None) -> None:
    if not waiting.done():
        waiting.set_result(line)


def _piped() -> str | None:
    line = sys.stdin.readline()
    return line.strip() if line else None
