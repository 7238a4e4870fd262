"""YAML in, validated records out (api.md section 4).

`astromesh.config.load.load` reads a folder. The modules named after a kind (`agent`, `providers`, `rag`,
`channels`, `mcp`, `runtime`, `graph`) hold every key of that file with its type, default and description.
"""
