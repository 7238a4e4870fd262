"""Graphs as plain data (mappings, lists, texts, numbers), and back, without loss: what `*.graph.yaml` holds.

What is not plain data stands there by name: tools by theirs, Python objects as `module:name`, never as code.
Where a plain value could stand too, an object is written `{python: "module:name"}`.
"""

from astromesh.graph.plain.mentions import mentions
from astromesh.graph.plain.read import faults, read_graph
from astromesh.graph.plain.write import write_graph

__all__ = ["faults", "mentions", "read_graph", "write_graph"]
