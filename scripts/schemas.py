"""Writes the JSON Schemas to config/schemas/: run it after a change of a key or of a plugin's options."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from astromesh.config.schema import SCHEMA_FILES, schema
from astromesh.config.workflow_folder import FILES, json_schema_of
from astromesh.plugins import Plugins

FOLDER = Path(__file__).parents[1] / "config" / "schemas"


def text(kind: str) -> bytes:
    return orjson.dumps(schema(kind, Plugins()), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def workflow_text(name: str) -> bytes:
    """The schema of a file of a workflow's folder."""
    return orjson.dumps(json_schema_of(name), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def main() -> int:
    made = {FOLDER / f"{name}.schema.json": text(kind) for kind, name in SCHEMA_FILES.items()}
    made |= {FOLDER / "workflow" / f"{Path(n).stem}.schema.json": workflow_text(n) for n in FILES}
    for file, written in made.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_bytes() != written:
            file.write_bytes(written)
            print(f"wrote {file.relative_to(FOLDER.parents[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
