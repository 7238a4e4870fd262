"""Workflows of a runtime: `workflows/NAME/` of its configuration folder, with its agents for agent nodes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from astromesh.abc.deps import Deps
from astromesh.errors import WorkflowNotFound
from astromesh.net.http import Http
from astromesh.runtime.engine import AgentRuntime
from astromesh.workflow.engine import Engine
from astromesh.workflow.seams import Gate, TaskLog

FOLDER = "workflows"


def workflow_names(config: Path) -> Sequence[str]:
    """Folders that hold a workflow.yaml, sorted."""
    return sorted(file.parent.name for file in (config / FOLDER).glob("*/workflow.yaml"))


def workflow_folder(config: Path, name: str) -> Path:
    """The folder of a workflow, by its name or as a path.

    Raises:
        WorkflowNotFound: there is none.
    """
    for folder in (config / FOLDER / name, Path(name)):
        if (folder / "workflow.yaml").exists():
            return folder
    known = workflow_names(config)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    raise WorkflowNotFound(f"There is no workflow {name!r}. {hint}")


async def open_workflow(
    runtime: AgentRuntime, name: str, *, log: TaskLog | None = None, gate: Gate | None = None
) -> Engine:
    """A workflow whose agent nodes may name agents of the runtime; closed by `engine.close()`.

    Raises:
        WorkflowNotFound: there is none.
        InvalidWorkflow: all its faults at once.
    """
    folder = workflow_folder(runtime.config_dir, name)
    resources = runtime.opened.resources
    deps = Deps(
        http=await resources.shared(Http, Http),
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
    )
