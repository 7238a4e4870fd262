"""A look into `graphs/*.graph.yaml` while the configuration is read: every fault, with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astromesh.config.seams import GraphFindings, GraphMention
from astromesh.graph.graph import PromptGraph
from astromesh.graph.plain import faults, mentions


def check_graph(spec: Mapping[str, Any]) -> GraphFindings:
    """What is wrong with the spec of a graph, and which tools and roles it names."""
    return GraphFindings(
        [(problem.at, problem.words) for problem in faults(PromptGraph, spec)],
        [GraphMention(*mention) for mention in mentions(spec)],
    )
