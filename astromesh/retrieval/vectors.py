"""Unit vectors of one size in memory, found exactly: one product of a matrix and a vector, then the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 64


class VectorIndex:
    """Vectors by id, in the order in which they came. Not for several threads at once.

    Args:
        dimensions: floats of each vector.
    """

    __slots__ = ("_count", "_ids", "_matrix", "dimensions")

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._count = 0
        self._ids: NDArray[np.int64] = np.empty(_FIRST_ROOM, np.int64)
        self._matrix: NDArray[np.float32] = np.empty((_FIRST_ROOM, dimensions), np.float32)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, room to grow included."""
        return self._matrix.nbytes + self._ids.nbytes

    def extend(self, ids: Sequence[int], blobs: Iterable[bytes]) -> None:
        """Adds vectors.

        Args:
            blobs: float32, little-endian, `dimensions` each.

        Raises:
            ValueError: one is of another size.
        """
        rows = np.frombuffer(b"".join(blobs), "<f4").reshape(len(ids), self.dimensions)
        end = self._count + len(ids)
        if end > len(self._ids):
            self._grow(end)
        self._ids[self._count : end] = ids
        self._matrix[self._count : end] = rows
        self._count = end

    def keep(self, ids: Iterable[int]) -> None:
        """Drops every vector but those of these ids."""
        kept = np.flatnonzero(np.isin(self._ids[: self._count], np.fromiter(ids, np.int64)))
        self._ids[: len(kept)] = self._ids[kept]
        self._matrix[: len(kept)] = self._matrix[kept]
        self._count = len(kept)

    def nearest(self, vector: Any, most: int, among: Iterable[int] | None = None) -> list[tuple[int, float]]:
        """The ids of the nearest vectors with their cosine, nearest first; equals in the order they came.

        Args:
            among: only these ids; None for all.
        """
        if not self._count or most < 1:
            return []
        near = self._matrix[: self._count] @ np.frombuffer(vector, np.float32)
        few = min(most, self._count)
        if among is not None:
            allowed = np.isin(self._ids[: self._count], np.fromiter(among, np.int64))
            near[~allowed] = -np.inf
            few = min(few, int(allowed.sum()))
            if not few:
                return []
        best = np.argpartition(near, self._count - few)[self._count - few :]
        best = best[np.lexsort((best, -near[best]))]
        return list(zip(self._ids[best].tolist(), near[best].tolist(), strict=True))

    def cosines(self, ids: Iterable[int], vector: Any) -> dict[int, float]:
        """The cosines of those of these ids that it holds, if all were added in rising order."""
        asked = np.fromiter(ids, np.int64)
        held = self._ids[: self._count]
        places = np.searchsorted(held, asked)
        known = places < self._count
        known[known] = held[places[known]] == asked[known]
        near = self._matrix[places[known]] @ np.frombuffer(vector, np.float32)
        return dict(zip(asked[known].tolist(), near.tolist(), strict=True))

    def _grow(self, least: int) -> None:
        room = max(least, 2 * len(self._ids))
        ids, matrix = self._ids, self._matrix
        self._ids = np.empty(room, np.int64)
        self._matrix = np.empty((room, self.dimensions), np.float32)
        self._ids[: self._count] = ids[: self._count]
        self._matrix[: self._count] = matrix[: self._count]
