"""Memory as one run sees it: task memory by lineage, the others as they were when it began (E37)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

from astromesh.config.workflow.memory import ContextProfile
from astromesh.workflow.context import Item, Package, assemble, matching
from astromesh.workflow.layers import LayerStore
from astromesh.workflow.result import Entry
from astromesh.workflow.task import Task


class RunMemory:
    """What the stages of one run remember.

    A child sees what its parent had written before the fork, and what it wrote itself; a merge appends what
    its inputs wrote, in their order, to the memory of the Task that goes on. Writes to stores are kept back
    until the run has ended, so that what stages read does not depend on other runs or on timing.

    Args:
        stores: by layer.
        write: layers that outputs are written to.
        tags: node → tags of what it writes.
        kept: layers whose store outlives the process.
    """

    def __init__(
        self,
        stores: Mapping[str, LayerStore],
        write: Sequence[str],
        tags: Mapping[str, tuple[str, ...]],
        kept: frozenset[str] = frozenset(),
    ) -> None:
        self._stores, self._write, self._tags, self._kept = stores, write, tags, kept
        self._own: dict[str, list[tuple[int, Item]]] = {}
        self._staged: dict[str, list[Item]] = {}
        self._snapshots: dict[str, list[Item]] = {}
        self._reading = asyncio.Lock()

    def remember(self, task: Task, entry: Entry) -> None:
        """Takes the output of a stage that succeeded."""
        written = f"{task.id}@{entry.stage}"
        for layer in self._write:
            item = Item(written, layer, entry.node, self._tags.get(entry.node, ()), entry.output)
            if layer == "task":
                self._own.setdefault(task.path, []).append((entry.seq, item))
            if layer != "task" or "task" in self._kept:
                self._staged.setdefault(layer, []).append(item)

    def merge(self, task: Task, inputs: Iterable[Task], seq: int) -> None:
        """What a merge's inputs wrote since they were forked off becomes part of the Task that goes on."""
        scope = task.parent if task.lineage == "merge" else task
        known = {item.id for item in self._view(task)}
        own = self._own.setdefault(task.path, [])
        for one in inputs:
            for _, item in self._since(one, scope):
                if item.id not in known:
                    known.add(item.id)
                    own.append((seq, item))

    async def package(self, task: Task, profile: ContextProfile, query: str) -> Package:
        """What a stage of this Task is given."""
        found: dict[str, Item] = {}
        for source in profile.sources:
            items = list(self._view(task)) if source.store == "task" else await self._snapshot(source.store)
            for item in matching(items, source.tags):
                found.setdefault(f"{item.layer}:{item.id}", item)
        return assemble(profile, list(found.values()), query)

    async def commit(self) -> None:
        """Writes to the stores what was kept back, layer by layer in the order of the stages."""
        staged, self._staged = self._staged, {}
        for layer, items in staged.items():
            await self._stores[layer].append(items)

    async def _snapshot(self, layer: str) -> list[Item]:
        async with self._reading:  # stages that begin together are given the same
            if layer not in self._snapshots:
                self._snapshots[layer] = await self._stores[layer].items()
        return self._snapshots[layer]

    def _view(self, task: Task) -> list[Item]:
        """Own items and those of the ancestors up to each fork, oldest first."""
        found: list[Item] = []
        limit: float = float("inf")
        one: Task | None = task
        while one is not None:
            own = [item for seq, item in self._own.get(one.path, ()) if seq <= limit]
            found[:0] = own
            limit = min(limit, one.forked_from_seq)
            one = one.parent
        return found

    def _since(self, task: Task, scope: Task | None) -> Iterator[tuple[int, Item]]:
        line: list[Task] = []
        one: Task | None = task
        while one is not None and one is not scope:
            line.append(one)
            one = one.parent
        for each in reversed(line):
            yield from self._own.get(each.path, ())
