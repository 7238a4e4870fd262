"""What metrics.yaml may ask for, and how much of it a workflow wants (document 004, section 8.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astromesh.config.keys import did_you_mean, listed
from astromesh.config.workflow.load import WorkflowFolder
from astromesh.config.workflow.operations import MetricsFile
from astromesh.errors import InvalidManifest

#: name in metrics.yaml → its kind, and the metric under /metrics (without the prefix `astromesh_`)
METRICS: Mapping[str, tuple[str, str]] = {
    "node_execution_duration": ("timer", "workflow_stage_duration_seconds"),
    "node_execution_count": ("counter", "workflow_stages"),
    "tool_invocation_duration": ("timer", "workflow_tool_duration_seconds"),
    "task_total_duration": ("timer", "workflow_task_duration_seconds"),
    "queue_latency": ("timer", "workflow_queue_seconds"),
    "task_concurrency": ("gauge", "workflow_tasks"),
    "stage_concurrency": ("gauge", "workflow_stages_in_progress"),
}
FILE = "metrics.yaml"


def wanted(folder: WorkflowFolder) -> frozenset[str]:
    """The metrics that a workflow keeps: those of its enabled profiles; all where there is no file."""
    if FILE not in folder.files:
        return frozenset(METRICS)
    profiles = folder.file(FILE, MetricsFile).profiles
    return frozenset(metric.name for profile in profiles if profile.enabled for metric in profile.metrics)


def faults(folder: WorkflowFolder) -> Iterator[InvalidManifest]:
    """Metrics that there are none of, and kinds that they do not have."""
    for i, profile in enumerate(folder.file(FILE, MetricsFile).profiles):
        for k, metric in enumerate(profile.metrics):
            at = ("profiles", i, "metrics", k)
            if metric.name not in METRICS:
                hint = did_you_mean(metric.name, METRICS) or listed(METRICS)
                message = f"there is no metric {metric.name!r}"
                yield folder.fault(FILE, "unknown_metric", message, (*at, "name"), hint)
            elif metric.type != METRICS[metric.name][0]:
                message = f"{metric.name} is a {METRICS[metric.name][0]}, no {metric.type}"
                yield folder.fault(FILE, "wrong_metric_type", message, (*at, "type"))
