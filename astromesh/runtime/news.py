"""Who waits for something new about a run in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class News:
    """Listeners by run."""

    def __init__(self) -> None:
        self._listening: dict[str, set[asyncio.Event]] = {}

    def listen(self, run_id: str, news: asyncio.Event) -> Callable[[], None]:
        """Sets `news` whenever the run is told of. Answers what ends that."""
        self._listening.setdefault(run_id, set()).add(news)

        def leave() -> None:
            listening = self._listening.get(run_id)
            if listening is not None:
                listening.discard(news)
                if not listening:
                    del self._listening[run_id]

        return leave

    def tell(self, run_id: str) -> None:
        for news in self._listening.get(run_id, ()):
            news.set()
