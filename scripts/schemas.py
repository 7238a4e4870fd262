"""Writes the JSON Schemas to config/schemas/: run it after a change of a key or of a plugin's options."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from astromesh.config.schema import FILES, schema
from astromesh.plugins import Plugins

FOLDER = Path(__file__).parents[1] / "config" / "schemas"


def text(kind: str) -> bytes:
    return orjson.dumps(schema(kind, Plugins()), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind, name in FILES.items():
        file = FOLDER / f"{name}.schema.json"
        written = text(kind)
        if not file.exists() or file.read_bytes() != written:
            file.write_bytes(written)
            print(f"wrote {file.relative_to(FOLDER.parents[1])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
