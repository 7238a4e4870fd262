"""Where workflows stand: `workflows/NAME/` of a configuration folder."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from astromesh.errors import WorkflowNotFound

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
    raise not_found(name, workflow_names(config))


def not_found(name: str, known: Sequence[str]) -> WorkflowNotFound:
    """The error for a name that no workflow has."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    return WorkflowNotFound(f"There is no workflow {name!r}. {hint}")
