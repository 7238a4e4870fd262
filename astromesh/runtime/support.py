"""What the pages define and this runtime does not do yet; writing such a key is a fault, never ignored."""

from __future__ import annotations

from collections.abc import Mapping

#: see `astromesh.config.seams.Unsupported`
UNSUPPORTED: Mapping[str, str] = {}
