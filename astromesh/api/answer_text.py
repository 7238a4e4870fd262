"""The text of a run that belongs to its answer, for protocols in which a client cannot take text back.

The text of a step that ends in tool calls is not part of the answer (docs/api.md, Events), so the text
of a step that offers tools waits for its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from astromesh.types import Event


class AnswerText:
    """Finds the deltas that a client may have. Call `of` with every event of a run."""

    def __init__(self) -> None:
        #: deltas of active steps that offer tools
        self._pending: dict[int, list[str]] = {}
        #: steps that offer no tools, whose text leaves at once
        self._open_steps: set[int] = set()
        #: the newest step without a `model.started`: a relayed one of an agent in a swarm, or the answer
        self._relayed_step = 0

    def of(self, event: Event) -> Iterable[str]:
        """Returns the texts that leave with an event."""
        make = getattr(self, "_" + event.type.replace(".", "_"), None)
        return make(event) if make else ()

    def is_sent(self, step: int) -> bool:
        """Whether the text of a step leaves at once."""
        return step in self._open_steps

    def discard(self) -> None:
        """Drops the text that waits."""
        self._pending.clear()

    def rest(self) -> Iterable[str]:
        """Returns the text that still waits when the run ends."""
        pending, self._pending = self._pending, {}
        return chain.from_iterable(pending.values())

    def _model_started(self, event: Event) -> Iterable[str]:
        if event.data["role"] == "assistant":
            self._drop_relayed()
            if event.data.get("tools"):
                self._pending[event.data["step"]] = []
            else:
                self._open_steps.add(event.data["step"])
        return ()

    def _model_restarted(self, event: Event) -> Iterable[str]:
        """Drops the text of a step that starts again after a crash, as far as it waits here."""
        if event.data["step"] in self._pending:
            self._pending[event.data["step"]] = []
        return ()

    def _model_finished(self, event: Event) -> Iterable[str]:
        texts = self._pending.pop(event.data["step"], [])
        return () if event.data["tool_calls"] else texts

    def _model_delta(self, event: Event) -> Iterable[str]:
        if event.data["role"] != "assistant":
            return ()
        step, content = event.data["step"], event.data["content"]
        if step in self._open_steps:
            return (content,)
        if step not in self._pending and step != self._relayed_step:
            self._drop_relayed()
            self._relayed_step = step
        self._pending.setdefault(step, []).append(content)
        return ()

    def _drop_relayed(self) -> None:
        """Drops the text of a relayed step that another one follows: it is not part of the response."""
        self._pending.pop(self._relayed_step, None)
        self._relayed_step = 0
