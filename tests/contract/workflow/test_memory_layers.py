"""The stores of workflow memory: what each must do, and what a run writes to them when it has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from astromesh.config.workflow import MemorySpec
from astromesh.errors import StoreError
from astromesh.workflow import Engine
from astromesh.workflow.memory import Item, open_layers
from tests.unit.workflow.samples import project

SEES: dict[str, Any] = {"op": "see_context", "context": "own"}


def items(*values: Any) -> list[Item]:
    return [Item(f"i{n}", "task", f"n{n}", ("tag",), value) for n, value in enumerate(values)]


@pytest.mark.parametrize("kind", ["in_memory", "sqlite", "jsonl"])
async def test_e37_project_memory_is_written_when_the_run_has_ended(kind: str, tmp_path: Path) -> None:
    """A run reads the project memory as it was when it began; the next one finds what this one wrote."""
    memory = {
        "memory": {
            "project_store": {"type": kind, "path": str(tmp_path / "project")},
            "context_profiles": [{"id": "own", "sources": [{"store": "project"}]}],
        }
    }
    nodes: dict[str, Any] = {"x": {"op": "add_a"}, "y": SEES}
    made = project("s>x x>y y>e", nodes, files={"memory": memory}, memory={"write": ["project"]})
    engine = Engine(made)
    first, second = await engine.run("1"), await engine.run("2")
    assert first.output["values"] == []
    assert second.output["values"][:2] == ["1", "1a"]


@pytest.mark.parametrize("kind", ["in_memory", "sqlite", "jsonl"])
async def test_layers_keep_items_once_in_order_and_within_their_bound(kind: str, tmp_path: Path) -> None:
    spec = {"project_store": {"type": kind, "path": "project.store", "max_items": 3}}
    store = open_layers(tmp_path, MemorySpec.model_validate_json(orjson.dumps(spec)))["project"]
    assert await store.items() == []
    await store.append(items("a", "b"))
    await store.append(items("a", "b", "c", "d"))
    assert [item.value for item in await store.items()] == ["b", "c", "d"]


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_stages_that_begin_together_open_a_new_store_together(kind: str, tmp_path: Path) -> None:
    """SQLite refuses a second connection at once while the first one changes the journal of a new file."""
    for n in range(40):
        spec = {"project_store": {"type": kind, "path": f"{n}/project.store"}}
        memory = MemorySpec.model_validate_json(orjson.dumps(spec))
        stores = [open_layers(tmp_path, memory)["project"] for _ in range(6)]
        await asyncio.gather(*(store.append(items(*"abc")) for store in stores))
        assert await asyncio.gather(*(store.items() for store in stores)) == [await stores[0].items()] * 6
        assert [item.value for item in await stores[0].items()] == ["a", "b", "c"]


async def test_the_unfinished_line_of_a_killed_process_takes_no_other_item_with_it(tmp_path: Path) -> None:
    spec = MemorySpec.model_validate_json(b'{"project_store": {"type": "jsonl", "path": "p.jsonl"}}')
    store, (first, *others) = open_layers(tmp_path, spec)["project"], items("a", "b", "c")
    await store.append([first])
    with (tmp_path / "p.jsonl").open("ab") as file:
        file.write(b'{"id": "i7", "lay')
    await store.append(others)
    assert [item.value for item in await store.items()] == ["a", "b", "c"]


async def test_a_store_that_is_none_is_a_store_error_with_its_name(tmp_path: Path) -> None:
    spec = MemorySpec.model_validate_json(b'{"project_store": {"type": "sqlite", "path": "p.db"}}')
    (tmp_path / "p.db").write_bytes(b"this is no database" * 100)
    store = open_layers(tmp_path, spec)["project"]
    for work in (store.items(), store.append(items("a"))):
        with pytest.raises(StoreError, match=r"p\.db cannot be used: file is not a database"):
            await work


async def test_a_jsonl_layer_survives_a_line_that_was_not_finished(tmp_path: Path) -> None:
    spec = MemorySpec.model_validate_json(b'{"global_store": {"type": "jsonl", "path": "g.jsonl"}}')
    store = open_layers(tmp_path, spec)["global"]
    await store.append(items("a"))
    with (tmp_path / "g.jsonl").open("ab") as file:
        file.write(b'{"id": "cut')
    assert [item.value for item in await store.items()] == ["a"]
