"""plugins.yaml of a workflow: its observers, and whether their classes exist (workflow.md E15)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from astromesh.config.workflow.load import WorkflowFolder
from astromesh.config.workflow.operations import ObserversFile, ObserverSpec
from astromesh.errors import InvalidManifest
from astromesh.workflow.references import load_operation

FILE = "plugins.yaml"


def faults(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    """Observers whose class is not there (E15)."""
    for i, spec in enumerate(folder.file(FILE, ObserversFile).plugins):
        try:
            if spec.enabled and not inspect.isclass(class_of(folder, spec)):
                yield folder.fault(FILE, "unknown_plugin", "is no class", ("plugins", i, "module"))
        except LookupError as error:
            yield folder.fault(FILE, "unknown_plugin", str(error.args[0]), ("plugins", i, "module"))


def enabled(folder: WorkflowFolder) -> Iterator[ObserverSpec]:
    """The observers that are switched on."""
    return (spec for spec in folder.file(FILE, ObserversFile).plugins if spec.enabled)


def class_of(folder: WorkflowFolder, spec: ObserverSpec) -> Any:
    """Raises: LookupError: there is none."""
    module, _, name = spec.module.rpartition(".")
    return load_operation(folder.folder, f"{module}:{name}")
