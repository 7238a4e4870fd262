"""YAML in, validated records out (docs/configuration.md).

`astromesh.config.folder.load` reads a folder. The records in `agent`, `providers`, `rag`
and `runtime` define every key of a file with its type, default and description.
"""
