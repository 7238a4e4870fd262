"""Agents that are declared in Python: `astromesh.Agent` (docs/python.md)."""
