"""Reload: what changes in the configuration folder reaches the next run of a running runtime.

Agents, Python tools, graphs, workflows and RAG pipelines are opened again. Active runs keep the objects that
they began with. A file with faults changes nothing: its last good version stays in use, and its faults are
logged and listed (`GET /v1/faults`) until it is valid again.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import sysconfig
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from watchfiles import Change, DefaultFilter, awatch

from astromesh.config.agent import AgentManifest, GraphManifest
from astromesh.config.folder import Configuration, Faults
from astromesh.errors import AstromeshError, InvalidManifest, ShuttingDown
from astromesh.logs import get_logger
from astromesh.runtime.bootstrap import AppliedChanges, RuntimeState
from astromesh.runtime.config_loader import WORKFLOWS_FOLDER
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.knowledge import refresh_pipeline
from astromesh.tools.process_pool import close_idle_processes

log = get_logger("astromesh.reload")

Agents: TypeAlias = Mapping[str, AgentManifest]
Graphs: TypeAlias = Mapping[str, GraphManifest]
#: milliseconds between two looks for changes, and the longest time that changes are collected
_STEP_MS, _DEBOUNCE_MS = 50, 400
#: files that only a restart applies
_NEED_RESTART = ("runtime.yaml", "mcp.yaml", "channels.yaml")
#: folders of installed packages, whose modules stay as they are
_INSTALLED = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload has changed.

    Args:
        agents, pipelines, workflows: The names of what is new or was opened again.
        removed: The names of agents that are not there any more.
        faults: The faults of files whose last good version stays in use.
        broken: The faults of files that have no good version.
        restart: Changed files that only a restart applies; none that is again as it was at the start.
    """

    agents: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    workflows: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    faults: Faults = ()
    broken: Faults = ()
    restart: tuple[str, ...] = ()


class Reloader:
    """Reloads an open runtime when its files change."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime
        self._folder = runtime.config_dir.resolve()
        self._workflow_faults: dict[str, Faults] = {}
        self._reported: frozenset[str] = frozenset()
        #: what the process began with
        self._started_with = {name: _content(self._folder / name) for name in _NEED_RESTART}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the files while the context is open."""
        tasks = [asyncio.create_task(self._watch_tree()), asyncio.create_task(self._watch_modules())]
        for task in tasks:
            task.add_done_callback(_log_watch_error)
        await asyncio.sleep(0)  # both tasks watch now
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- applying changes ----------------------------------------------------------------------------------

    async def reload(self, changed: Collection[Path]) -> Reloaded:
        """Applies changed files, one call after the other.

        Args:
            changed: Absolute paths.
        """
        async with self._lock:
            report = await self._reload(changed)
        self._log(report)
        return report

    async def _reload(self, changed: Collection[Path]) -> Reloaded:
        workflows = {name for path in changed if (name := self._workflow_of(path))}
        code_changed = any(path.suffix == ".py" and not self._workflow_of(path) for path in changed)
        if code_changed:
            _forget_modules(self._module_folders())
            close_idle_processes()
        state = self._runtime.state
        applied, faults = await self._reload_agents(state, code_changed)
        await self._refresh_sources(changed, applied.pipelines)
        await self._reload_workflows(workflows)
        self._runtime.schedules.read_again()
        state.rejected = (*faults, *(f for found in self._workflow_faults.values() for f in found))
        outdated = await asyncio.to_thread(self._outdated)
        state.outdated = tuple(
            InvalidManifest("has changed.", file=str(file), hint="Restart the server to apply it.")
            for file in outdated
        )
        return Reloaded(
            agents=tuple(name for name in applied.agents if name not in state.broken),
            pipelines=applied.pipelines,
            workflows=tuple(sorted(name for name in workflows if self._is_good(name))),
            removed=applied.removed,
            faults=state.rejected,
            broken=tuple(fault for found in state.broken.values() for fault in found),
            restart=tuple(file.name for file in outdated if file in changed),
        )

    async def _reload_agents(self, state: RuntimeState, code_changed: bool) -> tuple[AppliedChanges, Faults]:
        """Returns what has changed, and the faults of files whose last good version stays."""
        found = await asyncio.to_thread(self._runtime.load_configuration)
        if found.faults or found.cycles:
            return AppliedChanges(), (*found.faults, *found.cycles)
        merged, faults = _merged(state, found)
        assert state.apply is not None
        applied = await state.apply(merged, code_changed)
        self._runtime.runner.read_agents(state)
        failed = {fault.file for fault in applied.rejected}
        good = tuple(n for n in applied.agents if _file_name(merged, n) not in failed)
        return replace(applied, agents=good), (*faults, *applied.rejected)

    async def _refresh_sources(self, changed: Collection[Path], pipelines: Collection[str]) -> None:
        """Ingests the folders of pipelines in which a file has changed."""
        state = self._runtime.state
        for name, manifest in state.configuration.rag.items():
            folders = [folder.resolve() for folder in manifest.folders]
            touched = any(path.is_relative_to(folder) for path in changed for folder in folders)
            if touched and name not in pipelines and (pipeline := state.knowledge.get(name)) is not None:
                try:
                    await refresh_pipeline(pipeline)
                except AstromeshError as error:
                    log.error("knowledge_not_refreshed", pipeline=name, error=str(error))

    async def _reload_workflows(self, names: Collection[str]) -> None:
        if not names:
            return
        await self._runtime.load_workflows()
        for name in sorted(names):
            if (self._folder / WORKFLOWS_FOLDER / name / "workflow.yaml").is_file():
                self._workflow_faults[name] = await self._runtime.workflows.loaded.reload(name)
            else:  # Tasks may still need what is loaded
                self._workflow_faults.pop(name, None)

    def _outdated(self) -> list[Path]:
        """Returns each file that is no longer what the process began with."""
        files = {self._folder / name: content for name, content in self._started_with.items()}
        return [file for file, content in files.items() if _content(file) != content]

    def _is_good(self, workflow: str) -> bool:
        loaded = self._runtime.workflows.loaded
        return not self._workflow_faults.get(workflow) and loaded.engine(workflow) is not None

    def _workflow_of(self, path: Path) -> str:
        """Returns the name of the workflow whose folder has a file, else an empty string."""
        try:
            parts = path.relative_to(self._folder).parts
        except ValueError:
            return ""
        return parts[1] if len(parts) > 1 and parts[0] == WORKFLOWS_FOLDER else ""

    def _log(self, report: Reloaded) -> None:
        names = {
            "agents": report.agents, "pipelines": report.pipelines, "workflows": report.workflows,
            "removed": report.removed,
        }  # fmt: skip
        if any(names.values()):
            log.info("reloaded", **{what: ", ".join(found) for what, found in names.items() if found})
        problems = {str(fault): "no run" for fault in report.broken}
        problems |= {str(fault): "last good version" for fault in report.faults}
        for problem, use in problems.items():
            if problem not in self._reported:
                log.error("file_has_faults", error=problem, in_use=use)
        if self._reported and not problems:
            log.info("faults_mended")
        self._reported = frozenset(problems)
        for name in report.restart:
            log.warning("restart_needed", file=name)

    # -- watching ------------------------------------------------------------------------------------------

    async def _watch_tree(self) -> None:
        """Watches the configuration folder and the folders of knowledge with everything below them."""
        while True:
            folders = self._tree()
            async for changes in self._changes(folders, recursive=True):
                await self._reload_safely(changes)
                if self._tree() != folders:
                    break

    async def _watch_modules(self) -> None:
        """Watches the folders that have Python modules of the project, each by itself."""
        while True:
            folders = self._module_folders()
            async for changes in self._changes(folders, recursive=False):
                code = {path for path in changes if path.suffix == ".py" and not self._is_below_tree(path)}
                if code:
                    await self._reload_safely(code)
                if self._module_folders() != folders:
                    break

    async def _changes(self, folders: Collection[Path], *, recursive: bool) -> AsyncIterator[set[Path]]:
        changes = awatch(
            *folders, watch_filter=_Filter(self._runtime.data_dir), debounce=_DEBOUNCE_MS, step=_STEP_MS,
            recursive=recursive, ignore_permission_denied=True,
        )  # fmt: skip
        async for found in changes:
            yield {Path(path) for _, path in found}

    async def _reload_safely(self, changed: set[Path]) -> None:
        try:
            await self.reload(changed)
        except AstromeshError as error:  # a store does not answer, for example; the next change tries again
            log.error("reload_failed", error=str(error))

    def _tree(self) -> set[Path]:
        rag = self._runtime.state.configuration.rag.values()
        sources = {folder.resolve() for manifest in rag for folder in manifest.folders}
        return {self._folder, *(folder for folder in sources if folder.is_dir())}

    def _is_below_tree(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._tree())

    def _module_folders(self) -> set[Path]:
        """Returns the folders of loaded modules of the project, and those in which modules are searched."""
        roots = {self._folder, self._folder.parent, Path.cwd().resolve()}
        return {*roots, *(file.parent for _, file in _project_modules(roots))}


def _log_watch_error(watching: asyncio.Task[None]) -> None:
    """Logs why files are not watched any more, e.g. the system's limit of watches."""
    if watching.cancelled() or (error := watching.exception()) is None:
        return
    if not isinstance(error, ShuttingDown):
        log.error("files_not_watched", error=str(error))


class _Filter(DefaultFilter):
    """Leaves out what editors, version control and the runtime itself write."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(ignore_paths=[str(data_dir.resolve())])

    def __call__(self, change: Change, path: str) -> bool:
        return super().__call__(change, path)


def _file_name(configuration: Configuration, agent: str) -> str:
    """Returns the file of an agent as faults for clients name it."""
    return str(configuration.agents[agent].file).removeprefix(f"{configuration.folder}/")


def _content(file: Path) -> bytes | None:
    """Returns what a file has; None if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return None


# -- the last good version -----------------------------------------------------------------------------------


def _merged(state: RuntimeState, found: Configuration) -> tuple[Configuration, Faults]:
    """Returns a configuration with the last good version of each file that has faults, and these faults."""
    before = state.configuration
    faulty = {fault.file for faults in found.broken.values() for fault in faults}
    unchanged = {
        name: agent
        for name, agent in before.agents.items()
        if name not in found.agents and (name in found.broken or str(agent.file) in faulty)
    }
    files = {str(agent.file) for agent in unchanged.values()}
    broken: dict[str, Faults] = {}
    faults: list[InvalidManifest] = []
    for name, those in found.broken.items():
        if name in unchanged or any(fault.file in files for fault in those):
            faults += those
        else:
            broken[name] = those
    graphs = {
        n: g for n, g in before.graphs.items() if n not in found.graphs and str(g.file) in found.unusable
    }
    rag = {n: r for n, r in before.rag.items() if n not in found.rag and str(r.file) in found.unusable}
    faults += [fault for those in found.unusable.values() for fault in those]
    state.texts = _last_texts(state, unchanged, graphs)
    merged = replace(
        found,
        agents={**found.agents, **unchanged},
        broken=broken,
        graphs={**found.graphs, **graphs},
        rag={**found.rag, **rag},
        edges={**found.edges, **{name: before.edges.get(name, ()) for name in unchanged}},
        runtime=before.runtime,
        mcp=before.mcp,
        channels=before.channels,
    )
    return merged, tuple(dict.fromkeys(faults))


def _last_texts(state: RuntimeState, agents: Agents, graphs: Graphs) -> dict[Path, str]:
    """Returns the last good text of each file that stays in use: snapshots of runs have it."""
    texts: dict[Path, str] = {}
    for agent in state.agents.values():
        for name, text in {**agent.snapshot.get("agents", {}), agent.name: agent.snapshot["source"]}.items():
            if name in agents:
                texts[agents[name].file] = text
        for name, text in agent.snapshot.get("graphs", {}).items():
            if name in graphs:
                texts[graphs[name].file] = text
    return texts


# -- Python modules ------------------------------------------------------------------------------------------


def _project_modules(roots: Collection[Path]) -> Iterator[tuple[str, Path]]:
    """Yields the loaded modules below the roots that belong to no installed package, with their files."""
    below = frozenset(roots)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and name != "__main__":
            path, is_ours = _place_of(file, below)
            if is_ours:
                yield name, path


@lru_cache(maxsize=20_000)
def _place_of(file: str, roots: frozenset[Path]) -> tuple[Path, bool]:
    """Returns the path of a module, and whether it is below the roots and of no installed package.

    It is asked for every loaded module at every change, in the event loop.
    """
    path = Path(file).resolve()
    own = Path(sys.modules["astromesh"].__file__ or "").parent.resolve()
    below = any(path.is_relative_to(root) for root in roots)
    return path, below and not any(path.is_relative_to(folder) for folder in (*_INSTALLED, own))


def _forget_modules(folders: Collection[Path]) -> None:
    """Lets the next import read the modules of the project again, from their source.

    Python takes a cached module for current if the source has the same size and was written in the same
    second.
    """
    for name, _ in list(_project_modules(folders)):
        module = sys.modules.pop(name)
        if cached := getattr(module, "__cached__", None):
            with suppress(OSError):
                Path(cached).unlink()
    importlib.invalidate_caches()
