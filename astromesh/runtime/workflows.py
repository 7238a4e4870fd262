"""Workflows of a runtime: `workflows/NAME/` of its configuration folder, with its agents for agent nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from astromesh.abc.clock import Clock
from astromesh.abc.deps import Deps, Resources
from astromesh.abc.run import RunAgent
from astromesh.errors import InvalidManifest
from astromesh.net.http import Http
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Agent
from astromesh.runtime.bootstrap import Bootstrapped
from astromesh.runtime.workflow_folders import workflow_folder
from astromesh.workflow.engine import Engine
from astromesh.workflow.layers import LayerStore
from astromesh.workflow.seams import Gate, TaskLog
from astromesh.workflow.stages import Kit


class Host(Protocol):
    """What workflows need of the runtime."""

    config_dir: Path
    data_dir: Path
    plugins: Plugins
    clock: Clock

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def opened(self) -> Bootstrapped: ...

    @property
    def run_agent(self) -> RunAgent: ...

    @property
    def agents(self) -> Mapping[str, Agent]: ...

    @property
    def broken(self) -> Mapping[str, tuple[InvalidManifest, ...]]: ...


async def open_workflow(  # noqa: PLR0913 (what an engine is opened with)
    runtime: Host,
    name: str,
    *,
    log: TaskLog | None = None,
    gate: Gate | None = None,
    equip: Callable[[Kit], Kit] = lambda kit: kit,
    layers: Mapping[str, LayerStore] | None = None,
    resources: Resources | None = None,
    stages_at_once: int = 0,
    overrides: Mapping[str, object] | None = None,
) -> Engine:
    """A workflow whose agent nodes may name agents of the runtime; closed by `engine.close()`.

    Args:
        layers: stores of memory instead of its own.
        resources: where models are opened; the caller closes them. Absent: the runtime's.

    Raises:
        WorkflowNotFound: there is none.
        InvalidWorkflow: all its faults at once.
    """
    folder = workflow_folder(runtime.config_dir, name)
    resources = resources or runtime.opened.resources
    deps = Deps(
        http=await runtime.opened.resources.shared(Http, Http),
        clock=runtime.clock,
        data_dir=runtime.data_dir,
        config_dir=folder,
        resources=resources,
        knowledge=runtime.opened.knowledge,
        run_agent=runtime.run_agent,
    )
    return Engine.load(
        folder,
        agents=(*runtime.agents, *runtime.broken),
        run_agent=runtime.run_agent,
        plugins=runtime.plugins,
        deps=replace(
            deps, agents={n: a.manifest.spec.identity.description for n, a in runtime.agents.items()}
        ),
        env=runtime.env,
        clock=runtime.clock,
        log=log,
        gate=gate,
        equip=equip,
        layers=layers,
        stages_at_once=stages_at_once,
        overrides=overrides,
    )
