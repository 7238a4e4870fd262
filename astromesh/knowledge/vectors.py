"""An exact index of unit vectors in memory: one product of a matrix and a vector, then the best.

numpy is loaded with the first index, not at start: it takes 11 MiB and a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

_INITIAL_CAPACITY = 64


@cache
def _numpy() -> Any:
    return import_module("numpy")


class VectorIndex:
    """Vectors by id, in the order in which they were added. Not safe for threads.

    Args:
        dimensions: floats of each vector.
    """

    __slots__ = ("_count", "_ids", "_matrix", "dimensions")

    def __init__(self, dimensions: int) -> None:
        np = _numpy()
        self.dimensions = dimensions
        self._count = 0
        self._ids = np.empty(_INITIAL_CAPACITY, np.int64)
        self._matrix = np.empty((_INITIAL_CAPACITY, dimensions), np.float32)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with the space reserved for growth."""
        return int(self._matrix.nbytes + self._ids.nbytes)

    def extend(self, ids: Sequence[int], blobs: Iterable[bytes]) -> None:
        """Adds vectors.

        Args:
            blobs: float32, little-endian, `dimensions` each.

        Raises:
            ValueError: a vector has another size.
        """
        rows = _numpy().frombuffer(b"".join(blobs), "<f4").reshape(len(ids), self.dimensions)
        end = self._count + len(ids)
        if end > len(self._ids):
            self._grow(end)
        self._ids[self._count : end] = ids
        self._matrix[self._count : end] = rows
        self._count = end

    def retain(self, ids: Iterable[int]) -> None:
        """Drops every vector except those of these ids."""
        np = _numpy()
        retained = np.flatnonzero(np.isin(self._ids[: self._count], np.fromiter(ids, np.int64)))
        self._ids[: len(retained)] = self._ids[retained]
        self._matrix[: len(retained)] = self._matrix[retained]
        self._count = len(retained)

    def nearest(self, vector: Any, limit: int, among: Iterable[int] | None = None) -> list[tuple[int, float]]:
        """Returns the ids of the nearest vectors with their cosine, nearest first; equals as they were added.

        Args:
            among: the ids to search; None for all.
        """
        if not self._count or limit < 1:
            return []
        np = _numpy()
        near = self._matrix[: self._count] @ np.frombuffer(vector, np.float32)
        few = min(limit, self._count)
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
        """Returns the cosines of ids that are in the index. Ids must have been added in ascending order."""
        np = _numpy()
        requested = np.fromiter(ids, np.int64)
        stored = self._ids[: self._count]
        places = np.searchsorted(stored, requested)
        known = places < self._count
        known[known] = stored[places[known]] == requested[known]
        near = self._matrix[places[known]] @ np.frombuffer(vector, np.float32)
        return dict(zip(requested[known].tolist(), near.tolist(), strict=True))

    def _grow(self, capacity: int) -> None:
        size = max(capacity, 2 * len(self._ids))
        ids, matrix = self._ids, self._matrix
        np = _numpy()
        self._ids = np.empty(size, np.int64)
        self._matrix = np.empty((size, self.dimensions), np.float32)
        self._ids[: self._count] = ids[: self._count]
        self._matrix[: self._count] = matrix[: self._count]
