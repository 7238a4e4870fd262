"""One configuration file: from text to record, with all of its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from astromesh.config.agent import AgentManifest, GraphManifest
from astromesh.config.base import Node, Place, Steps, node_from_value
from astromesh.config.binding import Binder, BindingContext
from astromesh.config.checks import Finding
from astromesh.config.connections import ChannelManifest, MCPManifest
from astromesh.config.parser import NUMBER_FAULTS, manifest_fault, read_file
from astromesh.config.providers import ProviderManifest
from astromesh.config.rag import RAGManifest
from astromesh.config.records import Manifest
from astromesh.config.runtime import RuntimeManifest
from astromesh.config.validation import salvage
from astromesh.errors import InvalidManifest

#: kind → its record
KINDS: Mapping[str, type[Manifest]] = {
    "Agent": AgentManifest,
    "ProviderConfig": ProviderManifest,
    "ChannelConfig": ChannelManifest,
    "RAGPipeline": RAGManifest,
    "MCPConfig": MCPManifest,
    "RuntimeConfig": RuntimeManifest,
    "Graph": GraphManifest,
}


class ConfigFile:
    """A file, its record and its faults.

    Args:
        kind: what it must be.
        path: where it is.
        root: its content; only the head where the file does not exist.
    """

    def __init__(self, kind: str, path: Path, root: Node, faults: Iterable[InvalidManifest] = ()) -> None:
        self.kind = kind
        self.path = path
        #: as written; `sound` is the valid part, from which the record was created
        self.root = self.sound = root
        self.faults: list[InvalidManifest] = list(faults)
        self.warnings: list[InvalidManifest] = []
        #: the record; after faults that of the valid part, in which further checks find more faults
        self.manifest: Any = None

    @classmethod
    def read(cls, kind: str, path: Path, env: Mapping[str, str]) -> ConfigFile:
        """Reads a file."""
        document = read_file(path, env)
        return cls(kind, path, document.node or Node({}, Place(1, 1)), document.faults)

    @classmethod
    def absent(cls, kind: str, path: Path) -> ConfigFile:
        """Creates a file that does not exist and need not."""
        return cls(kind, path, node_from_value({"apiVersion": "astromesh/v1", "kind": kind}))

    @property
    def name(self) -> str:
        """metadata.name, else the first part of the file's own name."""
        return self.root.text("metadata", "name") or self.path.name.split(".")[0]

    def validate(self, defaults: Callable[[Node], Node] = lambda root: root) -> None:
        """Creates the record, or adds the faults."""
        if not self.root.entries and self.faults:
            return
        if not isinstance(self.root.value, dict):
            self.add_findings([Finding((), "must be a mapping with apiVersion, kind, metadata and spec")])
            return
        salvaged = salvage(KINDS[self.kind], defaults(self.root), self.path, placeholders=True)
        # the parser has reported these numbers already
        known_places = {
            (one.line, one.column) for one in self.faults if one.message in NUMBER_FAULTS.values()
        }
        self.faults += (one for one in salvaged.faults if (one.line, one.column) not in known_places)
        if salvaged.record is not None:
            salvaged.record.read_from(self.path)
            self.manifest, self.sound = salvaged.record, salvaged.node

    def check(self, findings: Callable[[Any, Node], Iterable[Finding]]) -> None:
        """Checks the record for more faults."""
        if self.manifest is not None:
            self.add_findings(findings(self.manifest, self.sound))

    def bind(self, context: BindingContext) -> None:
        """Binds the record's plugin blocks."""
        if self.manifest is None:
            return
        binder = Binder(context, self.path, self.sound)
        binder.bind(self.manifest.spec)
        self.faults += binder.faults
        self.warnings += binder.warnings

    def warn(self, findings: Callable[[Any, Node], Iterable[Finding]]) -> None:
        """Checks the record for more warnings."""
        if self.manifest is not None:
            self.warnings += self._placed(findings(self.manifest, self.sound))

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Turns findings into faults at their places."""
        self.faults += self._placed(findings)

    def _placed(self, findings: Iterable[Finding]) -> Iterator[InvalidManifest]:
        for finding in findings:
            if self.sound.has_placeholder(finding.steps):
                continue
            place = finding.place or self.sound.place_of(finding.steps)
            yield manifest_fault(self.path, finding.message, place, finding.steps, finding.hint)

    def location(self, steps: Steps) -> str:
        """Returns the place of a path as `FILE:LINE:COLUMN`."""
        place = self.root.place_of(steps)
        return f"{self.path}:{place.line}:{place.column}"

    def sorted_faults(self) -> tuple[InvalidManifest, ...]:
        """Returns the faults in the order of lines, each once."""
        unique = {str(found): found for found in self.faults}
        return tuple(sorted(unique.values(), key=lambda found: (found.line, found.column)))


def with_defaults(root: Node, at: Steps, values: Mapping[str, Any]) -> Node:
    """Returns the document with defaults for missing values; unchanged where it is not a mapping."""
    if not isinstance(root.value, dict):
        return root
    if not at:
        return root.merged_over(
            node_from_value({key: value for key, value in values.items() if value is not None})
        )
    below = root.entries.get(at[0], node_from_value({}))
    changed = with_defaults(below, at[1:], values)
    return root if changed is below else root.with_entry(str(at[0]), changed)
