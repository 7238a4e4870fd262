"""Public test doubles: implementations of the protocols that follow a script. Import them in tests only."""

from astromesh.testing.doubles import (
    FaultInjector,
    ManualClock,
    RecordingSink,
    RecordingTool,
    Reply,
    ScriptedProvider,
    ScriptedTools,
    plugin_of,
)
from astromesh.testing.recording import record

__all__ = [
    "FaultInjector",
    "ManualClock",
    "RecordingSink",
    "RecordingTool",
    "Reply",
    "ScriptedProvider",
    "ScriptedTools",
    "plugin_of",
    "record",
]
