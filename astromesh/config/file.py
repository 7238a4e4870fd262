"""One file on its way from text to record, with all that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from astromesh.config import checks
from astromesh.config.agent import AgentManifest
from astromesh.config.binding import Binder, Given
from astromesh.config.channels import ChannelManifest
from astromesh.config.checks import Finding
from astromesh.config.graph import GraphManifest
from astromesh.config.head import Manifest
from astromesh.config.loader import NO_NUMBERS, fault, read
from astromesh.config.mcp import MCPManifest
from astromesh.config.nodes import Node, Place, Steps, made
from astromesh.config.providers import ProviderManifest
from astromesh.config.rag import RAGManifest
from astromesh.config.runtime import RuntimeManifest
from astromesh.config.seams import Unsupported
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


class File:
    """A file, its record and its faults.

    Args:
        kind: what it must be.
        path: where it is.
        root: what it holds; its head where there is no such file.
    """

    def __init__(self, kind: str, path: Path, root: Node, faults: Iterable[InvalidManifest] = ()) -> None:
        self.kind = kind
        self.path = path
        #: as written; `_sound` is the part of it that the record was made from
        self.root = self._sound = root
        self.faults: list[InvalidManifest] = list(faults)
        self.warnings: list[InvalidManifest] = []
        #: the record; where there are faults, of the part that has none, to look for more
        self.manifest: Any = None

    @classmethod
    def read(cls, kind: str, path: Path, env: Mapping[str, str]) -> File:
        """Reads a file."""
        document = read(path, env)
        return cls(kind, path, document.node or Node({}, Place(1, 1)), document.faults)

    @classmethod
    def absent(cls, kind: str, path: Path) -> File:
        """Stands for a file that need not be there."""
        return cls(kind, path, made({"apiVersion": "astromesh/v1", "kind": kind}))

    @property
    def name(self) -> str:
        """metadata.name, else the first part of the file's own name."""
        return self.root.text("metadata", "name") or self.path.name.split(".")[0]

    def validate(self, defaults: Callable[[Node], Node] = lambda root: root) -> None:
        """Makes the record, or says why not."""
        if not self.root.entries and self.faults:
            return
        if not isinstance(self.root.value, dict):
            self.take([Finding((), "must be a mapping with apiVersion, kind, metadata and spec")])
            return
        salvaged = salvage(KINDS[self.kind], defaults(self.root), self.path, standing_in=True)
        # what such a number is instead is nobody's mistake
        told = {(one.line, one.column) for one in self.faults if one.message in NO_NUMBERS.values()}
        self.faults += (one for one in salvaged.faults if (one.line, one.column) not in told)
        if salvaged.record is not None:
            salvaged.record.read_from(self.path)
            self.manifest, self._sound = salvaged.record, salvaged.node

    def check(self, findings: Callable[[Any, Node], Iterable[Finding]]) -> None:
        """Looks for more faults in the record."""
        if self.manifest is not None:
            self.take(findings(self.manifest, self._sound))

    def bind(self, given: Given, work: Callable[[Binder, Any], None]) -> None:
        """Binds the record's plugin blocks."""
        if self.manifest is None:
            return
        binder = Binder(given, self.path, self._sound)
        work(binder, self.manifest)
        self.faults += binder.faults
        self.warnings += binder.warnings

    def refuse(self, unsupported: Unsupported) -> None:
        """Keys that this runtime does not do yet are faults."""
        self.take(checks.unsupported(self.kind, self.root, unsupported))

    def take(self, findings: Iterable[Finding]) -> None:
        """Turns findings into faults at their places."""
        for finding in findings:
            if self._sound.stood_in_for(finding.steps):
                continue
            place = finding.place or self._sound.place_of(finding.steps)
            self.faults.append(fault(self.path, finding.message, place, finding.steps, finding.hint))

    @property
    def sound(self) -> Node:
        """What the record was made from: the file without what is wrong with it."""
        return self._sound

    def where(self, steps: Steps) -> str:
        """Where a path stands, as sentences say it: `FILE:LINE:COLUMN`."""
        place = self.root.place_of(steps)
        return f"{self.path}:{place.line}:{place.column}"

    def sorted_faults(self) -> tuple[InvalidManifest, ...]:
        """In the order of lines, each once."""
        unique = {str(found): found for found in self.faults}
        return tuple(sorted(unique.values(), key=lambda found: (found.line, found.column)))


def with_defaults(root: Node, at: Steps, values: Mapping[str, Any]) -> Node:
    """The document with values where it has none; untouched where that is no mapping."""
    if not isinstance(root.value, dict):
        return root
    if not at:
        return root.over(made({key: value for key, value in values.items() if value is not None}))
    below = root.entries.get(at[0], made({}))
    changed = with_defaults(below, at[1:], values)
    return root if changed is below else root.with_entry(str(at[0]), changed)
