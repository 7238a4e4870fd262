"""The configuration of one runtime: what a folder holds, with every fault that was found in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from astromesh.config.agent import AgentManifest
from astromesh.config.channels import ChannelManifest
from astromesh.config.graph import GraphManifest
from astromesh.config.mcp import MCPManifest
from astromesh.config.providers import ProviderManifest
from astromesh.config.rag import RAGManifest
from astromesh.config.runtime import RuntimeManifest
from astromesh.errors import InvalidConfiguration, InvalidManifest

Faults = tuple[InvalidManifest, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a folder holds.

    Args:
        folder: where it was read.
        agents: sound agents by name.
        broken: agents with faults by name (a file whose name cannot be read counts under its file's name).
        faults: what nothing can run with: in providers.yaml, runtime.yaml, mcp.yaml or channels.yaml, or a
            missing folder.
        unusable: faults of pipelines and graphs by file; agents that need one of them are broken.
        circles: agents that call each other in a circle, one fault for each circle.
        warnings: what works but deserves a look: a literal api_key, a provider that is skipped …
        edges: for each agent, broken ones too, the agents that it may call.
    """

    folder: Path
    agents: Mapping[str, AgentManifest] = field(default_factory=dict)
    broken: Mapping[str, Faults] = field(default_factory=dict)
    faults: Faults = ()
    unusable: Mapping[str, Faults] = field(default_factory=dict)
    circles: Faults = ()
    warnings: Faults = ()
    providers: ProviderManifest = field(
        default_factory=lambda: ProviderManifest(apiVersion="astromesh/v1", kind="ProviderConfig")
    )
    rag: Mapping[str, RAGManifest] = field(default_factory=dict)
    channels: ChannelManifest = field(
        default_factory=lambda: ChannelManifest(apiVersion="astromesh/v1", kind="ChannelConfig")
    )
    mcp: MCPManifest = field(default_factory=lambda: MCPManifest(apiVersion="astromesh/v1", kind="MCPConfig"))
    runtime: RuntimeManifest = field(
        default_factory=lambda: RuntimeManifest(apiVersion="astromesh/v1", kind="RuntimeConfig")
    )
    graphs: Mapping[str, GraphManifest] = field(default_factory=dict)
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def every_fault(self) -> Faults:
        """All faults, fatal or not, in file and line order."""
        return tuple(sorted(self._all(), key=lambda f: (f.file, f.line, f.column)))

    def require_sound(self, *, strict: bool = False) -> None:
        """Raises InvalidConfiguration with the fatal faults, or with every fault where `strict`."""
        faults = self.every_fault() if strict else self.faults
        if faults:
            raise InvalidConfiguration(faults)

    def _all(self) -> Iterator[InvalidManifest]:
        yield from self.faults
        yield from self.circles
        for faults in (*self.broken.values(), *self.unusable.values()):
            yield from faults
