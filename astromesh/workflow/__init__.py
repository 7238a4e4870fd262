"""Workflows: the DAG of Tasks (document 004).

A folder of manifests is loaded as a `Project` and compiled into a `Plan` for each start. In a run,
`state_machine` decides by its rules without I/O, and `execution` carries out its commands.
"""

from astromesh.workflow.base import Entry, TaskLog, TaskResult
from astromesh.workflow.engine import Engine
from astromesh.workflow.project import Project, load_project

__all__ = ["Engine", "Entry", "Project", "TaskLog", "TaskResult", "load_project"]
