"""What stands where there is no model and no run: objects that say so when they are used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn, cast

from astromesh.errors import ConfigError
from astromesh.graph.config import Nesting, NodeConfig
from astromesh.types import CompletionRequest, CompletionResult, Delta


class NoModel:
    """A `ModelPort` without a model.

    Args:
        why: a sentence for whoever asks it.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        self._refuse()

    async def stream(self, request: CompletionRequest) -> AsyncIterator[Delta | CompletionResult]:
        self._refuse()
        yield Delta("")  # type: ignore[unreachable]  # what makes this a stream

    def _refuse(self) -> NoReturn:
        raise ConfigError(self._why)


NO_MODEL = NoModel("This graph was given no model, and one of its nodes asked for it.")
#: what a finalizer gets: a run that was stopped asks nobody any more
STOPPED_MODEL = NoModel("The finalizer runs without a model.")

#: for nodes that are not given a config: functions of the state alone, without flags and hooks
NO_CONFIG = NodeConfig(cast(Nesting, None), cast(Any, None), "", NO_MODEL)
