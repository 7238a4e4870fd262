"""Public test doubles: implementations of the seams that do what a script says. Imported by tests only."""

from astromesh.testing.clock import ManualClock
from astromesh.testing.faults import Faulty
from astromesh.testing.plugin import plugin_of
from astromesh.testing.provider import Reply, ScriptedProvider
from astromesh.testing.sinks import RecordingSink
from astromesh.testing.stores import ListedEvents, ListedPassages
from astromesh.testing.tools import RecordingTool, ScriptedTools

__all__ = [
    "Faulty",
    "ListedEvents",
    "ListedPassages",
    "ManualClock",
    "RecordingSink",
    "RecordingTool",
    "Reply",
    "ScriptedProvider",
    "ScriptedTools",
    "plugin_of",
]
