"""Graphs as plain data (mappings, lists, texts, numbers), and back, without loss: `*.graph.yaml`."""

from astromesh.graph.serialization.format import references
from astromesh.graph.serialization.reader import find_problems, read_graph
from astromesh.graph.serialization.writer import write_graph

__all__ = ["find_problems", "read_graph", "references", "write_graph"]
