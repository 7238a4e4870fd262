"""memory.yaml of a workflow: three stores and the context profiles."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astromesh.config.fields import Count
from astromesh.config.workflow.nodes import Layer
from astromesh.config.workflow.part import FilePart, Id, Part


class StoreSpec(Part):
    type: Literal["in_memory", "sqlite", "jsonl"] = Field("in_memory", description="Where items are kept.")
    path: str | None = Field(
        None, min_length=1, description="File, relative to the workflow's folder; for sqlite and jsonl."
    )
    max_items: Count = Field(10_000, description="Older items are dropped.")


class SourceSpec(Part):
    store: Layer = Field(description="Which layer is read.")
    tags: tuple[str, ...] = Field((), description="Only items with any of these tags; empty: all.")


class ContextProfile(Part):
    id: Id = Field(description="Unique among the profiles; not 'global' or 'none'.")
    max_tokens: Count = Field(2000, description="Most tokens of a package, estimated.")
    retrieval_policy: Literal["recency", "semantic", "hybrid"] = Field(
        "recency", description="How items are chosen."
    )
    sources: tuple[SourceSpec, ...] = Field(min_length=1, description="What is read.")


class MemorySpec(Part):
    task_store: StoreSpec = StoreSpec()
    project_store: StoreSpec = StoreSpec()
    global_store: StoreSpec = StoreSpec()
    context_profiles: tuple[ContextProfile, ...] = ()


class MemoryFile(FilePart):
    memory: MemorySpec = MemorySpec()
