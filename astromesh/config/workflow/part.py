"""What the records of a workflow's files are made of: closed to unknown keys, but for `x-…`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from astromesh.config.fields import Record

#: node, agent, tool and profile ids; `#`, `/`, `:` separate ids from what is written after them
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
#: the only version of the files so far
VERSION = 1


class Part(Record):
    """A mapping in a workflow's files; keys that begin with `x-` are the author's own."""


class FilePart(Part):
    """A whole file."""

    version: int = Field(VERSION, description="Version of the file's form.")
