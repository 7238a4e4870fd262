"""RAG pipelines by their names: those of a running runtime, and one alone for the command."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.deps import Resources
from astromesh.abc.rag import Knowledge
from astromesh.config.configuration import Configuration
from astromesh.config.rag import RAGManifest
from astromesh.errors import InvalidConfiguration, PipelineNotFound, Unavailable
from astromesh.plugins import Plugins
from astromesh.runtime.bootstrap import Bootstrapped, load_configuration, open_pipeline


def knowledge_of(opened: Bootstrapped, name: str) -> Knowledge:
    """A pipeline of a running runtime.

    Raises:
        PipelineNotFound: there is none of that name.
        Unavailable: it could not be opened.
    """
    if name in opened.knowledge:
        return opened.knowledge[name]
    if name in opened.configuration.rag:
        raise Unavailable(f"The pipeline {name!r} could not be opened; the server's log says why.")
    raise _unknown(name, opened.configuration.rag)


@asynccontextmanager
async def pipeline_alone(
    folder: Path, data_dir: Path, name: str, plugins: Plugins | None = None, clock: Clock | None = None
) -> AsyncIterator[Knowledge]:
    """One pipeline of a configuration folder, open, without the agents; nothing was taken in yet.

    Raises:
        InvalidConfiguration: the pipeline's file, or one that concerns all, has faults.
        PipelineNotFound: there is none of that name.
    """
    plugins = plugins or Plugins()
    configuration = load_configuration(folder, plugins)
    configuration.require_sound()
    opened = Bootstrapped(configuration, Resources())
    try:
        manifest = _manifest(configuration, name)
        yield await open_pipeline(opened, manifest, plugins, data_dir, clock or SystemClock())
    finally:
        await opened.resources.close()


def _manifest(configuration: Configuration, name: str) -> RAGManifest:
    if name in configuration.rag:
        return configuration.rag[name]
    faults = [fault for found in configuration.unusable.values() for fault in found if ".rag." in fault.file]
    if faults:  # the pipeline's own file may be among them: whose name it is cannot always be read
        raise InvalidConfiguration(faults)
    raise _unknown(name, configuration.rag)


def _unknown(name: str, known: Iterable[str]) -> PipelineNotFound:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names) or 'none'}."
    return PipelineNotFound(f"There is no RAG pipeline named {name!r}. {hint}")
