"""Opens the stores of `storage.url`, and the engine of durable runs, on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astromesh.durable.base import DurableBackend, RunStore
from astromesh.durable.budgets import BudgetStore
from astromesh.durable.leases import RetentionPolicy
from astromesh.durable.tasks import TaskStore
from astromesh.plugins import Plugins
from astromesh.runtime.bootstrap import RuntimeState, open_durable_backend
from astromesh.storage.sqlite import default_file


class RuntimeStores:
    """Opens the stores of a runtime, which closes them.

    Args:
        state: Returns what the runtime holds open.
    """

    def __init__(self, plugins: Plugins, state: Callable[[], RuntimeState]) -> None:
        self._plugins, self._state = plugins, state

    @property
    def may_hold_runs(self) -> bool:
        """Whether somebody may have written to the store of runs."""
        return self._kind() == "postgres" or default_file(self._state().deps).exists()

    @property
    def retention(self) -> RetentionPolicy:
        """How many ended runs are stored, and for how long."""
        spec = self._state().configuration.runtime.spec
        storage, recording = spec.storage, spec.recording
        return RetentionPolicy(storage.keep_days, storage.keep_runs, recording.retention_days)

    async def open_runs(self) -> RunStore:
        """Opens the store of runs. Readiness checks ask it from then on."""
        store: RunStore = await self._open("run_stores")
        self._manage("runs", store)
        return store

    async def open_tasks(self) -> TaskStore:
        """Opens the store of Tasks. Readiness checks ask it from then on."""
        store: TaskStore = await self._open("task_stores")
        self._manage("tasks", store)
        self._state().erasers.append(store.erase_owner)
        return store

    async def open_budgets(self) -> BudgetStore:
        store: BudgetStore = await self._open("budget_stores")
        return store

    async def open_backend(self) -> DurableBackend:
        """Opens what dispatches segments to this process; the claim of a segment decides who executes it."""
        return await open_durable_backend(self._state())

    def _kind(self) -> str:
        url = self._state().deps.storage_url
        return "sqlite" if not url or url.startswith("sqlite:") else "postgres"

    async def _open(self, group: str) -> Any:
        return await self._plugins.open(group, self._kind(), {}, self._state().deps)

    def _manage(self, name: str, store: RunStore | TaskStore) -> None:
        state = self._state()
        state.checks[f"store:{name}:{self._kind()}"] = store.ping
        state.resources.on_close(store.close)
