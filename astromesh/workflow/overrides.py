"""Settings of a workflow changed for one process: `--set task.timeout_s=60` (document 004, section 8.9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from astromesh.config.keys import did_you_mean, listed
from astromesh.config.workflow.nodes import TaskSpec
from astromesh.config.workflow.operations import SchedulerFile, SchedulerSpec
from astromesh.errors import InvalidInput
from astromesh.workflow.project import Project

S = TypeVar("S", bound=BaseModel)
#: keys of one section that stand in another file
_ELSEWHERE: Mapping[str, str] = {"task.timeout_s": "scheduler.task_timeout_s"}
_SECTIONS: Mapping[str, type[BaseModel]] = {"task": TaskSpec, "scheduler": SchedulerSpec}
KEYS = tuple(
    sorted((*_ELSEWHERE, *(f"{name}.{key}" for name, kind in _SECTIONS.items() for key in kind.model_fields)))
)


def settings_of(texts: Sequence[str]) -> dict[str, object]:
    """`KEY=VALUE` as a mapping; values are JSON, or texts where they are none.

    Raises:
        InvalidInput: there is no such key, or no `=`.
    """
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in KEYS:
            hint = did_you_mean(key, KEYS) or listed(KEYS)
            raise InvalidInput(f"There is no setting {text!r} of the form KEY=VALUE: {hint}.")
        try:
            found[_ELSEWHERE.get(key, key)] = orjson.loads(value)
        except orjson.JSONDecodeError:
            found[_ELSEWHERE.get(key, key)] = value
    return found


def overridden(project: Project, settings: Mapping[str, object]) -> Project:
    """The project with other settings, which its fingerprint tells.

    Raises:
        InvalidInput: a value that the key may not have.
    """
    if not settings:
        return project
    task = _changed(project.workflow.task, "task", settings)
    scheduler = _changed(project.scheduler, "scheduler", settings)
    workflow = project.workflow.model_copy(update={"task": task})
    files = {
        **project.files.files,
        "workflow.yaml": workflow,
        "scheduler.yaml": SchedulerFile(scheduler=scheduler),
    }
    return replace(
        project, workflow=workflow, files=replace(project.files, files=files), overrides=dict(settings)
    )


def _changed(spec: S, section: str, settings: Mapping[str, object]) -> S:
    ours = {key.partition(".")[2]: v for key, v in settings.items() if key.startswith(f"{section}.")}
    try:
        return type(spec).model_validate_json(orjson.dumps({**spec.model_dump(mode="json"), **ours}))
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{section}.{'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
