"""graphs/NAME.graph.yaml, kind Graph. The spec is the graph engine's own form (`PromptGraph.from_config`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astromesh.config.fields import JsonMap
from astromesh.config.head import Manifest, Metadata


class GraphManifest(Manifest):
    kind: Literal["Graph"]
    metadata: Metadata = Metadata.empty()
    spec: JsonMap = Field(description="The graph, as PromptGraph.to_config writes it.")

    @property
    def name(self) -> str:
        """metadata.name, else NAME of the file NAME.graph.yaml."""
        return self.metadata.name or self.file.name.removesuffix(".graph.yaml")
