"""The head that every file has: apiVersion, kind, metadata, spec."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr

from astromesh.config.fields import Name, Record

ApiVersion = Literal["astromesh/v1"]


class Metadata(Record):
    """Who this is; the name is optional where a folder can hold only one such file."""

    name: Name | Literal[""] = Field("", description="Unique among all files of this kind.")
    version: str = Field("", description="Version of this manifest, free text; quote it.")
    namespace: str = Field("", description="Group of agents, free text.")
    labels: dict[str, str] = Field(default_factory=dict, description="Free key-value pairs.")


class NamedMetadata(Metadata):
    name: Name = Field(description="Unique among all files of this kind; stands in URLs.")


class Manifest(Record):
    """One file."""

    apiVersion: ApiVersion = Field(description="Always astromesh/v1.")  # noqa: N815 (the YAML key)

    _file: Path = PrivateAttr(default=Path())

    @property
    def file(self) -> Path:
        """Where it was read; relative paths of its sources start in this file's folder."""
        return self._file

    def read_from(self, file: Path) -> None:
        """Called once, at load."""
        self._file = file
