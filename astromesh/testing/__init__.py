"""Public test doubles: implementations of the seams that do what a script says. Imported by tests only."""

from astromesh.testing.doubles import (
    FaultInjector,
    InMemoryEpisodicStore,
    InMemorySemanticStore,
    ManualClock,
    RecordingSink,
    RecordingTool,
    ScriptedTools,
    plugin_of,
)
from astromesh.testing.provider import Reply, ScriptedProvider

__all__ = [
    "FaultInjector",
    "InMemoryEpisodicStore",
    "InMemorySemanticStore",
    "ManualClock",
    "RecordingSink",
    "RecordingTool",
    "Reply",
    "ScriptedProvider",
    "ScriptedTools",
    "plugin_of",
]
