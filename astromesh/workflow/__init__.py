"""Workflows: the DAG of Tasks (document 004).

A folder of manifests becomes a `Project` (checked at once), a `Plan` for each start (what can be known
before a run), and runs: `flow` decides by the rules R1 to R7 without I/O, `run` carries out what it decides.
"""

from astromesh.workflow.engine import Engine
from astromesh.workflow.project import Project, load_project
from astromesh.workflow.result import Entry, TaskResult
from astromesh.workflow.seams import TaskLog

__all__ = ["Engine", "Entry", "Project", "TaskLog", "TaskResult", "load_project"]
