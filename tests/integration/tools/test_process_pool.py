"""Calls in worker processes: JSON, questions to the parent, deaths, time limits and memory limits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astromesh.errors import BudgetExhausted, ForeignError, ProcessDied
from astromesh.tools.process_pool import MAX_PROCESSES, call_in_process

HANDLERS = "tests.integration.tools.worker_handlers"


async def call(name: str, payload: Any = None, **options: Any) -> Any:
    return await call_in_process(f"{HANDLERS}:{name}", payload, **options)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def gone(*pids: int) -> None:
    async with asyncio.timeout(30):
        while any(map(is_alive, pids)):
            await asyncio.sleep(0.01)


async def test_a_call_runs_in_another_process_which_serves_the_next_one_too() -> None:
    first, second = await call("double", 21), await call("double", [1])
    assert (first["value"], second["value"]) == (42, [1, 1])
    assert first["pid"] == second["pid"] == first["group"] != os.getpid()
    alone = await call("double", 1, alone=True)
    assert alone["pid"] != first["pid"]
    await gone(alone["pid"])


async def test_calls_at_once_have_processes_of_their_own() -> None:
    found = await asyncio.gather(*(call("linger", seconds) for seconds in (2.0, 2.1, 2.2)))
    assert [one["value"] for one in found] == [2.0, 2.1, 2.2]
    assert len({one["pid"] for one in found}) > 1


@pytest.mark.parametrize(
    ("name", "payload", "message"),
    [("fail", None, "ValueError: as told, with the password=***"), ("leave", 2, "SystemExit: 2"),
     ("no_json", None, "is not JSON serializable"), ("missing", None, "AttributeError")],
)  # fmt: skip
async def test_what_a_call_raises_is_its_error(name: str, payload: Any, message: str) -> None:
    before = await call("double", 1)
    with pytest.raises(ForeignError) as raised:
        await call(name, payload)
    assert message in str(raised.value)
    assert raised.value.code == "operation_error"
    assert not isinstance(raised.value, ProcessDied)
    assert (await call("double", 1))["pid"] == before["pid"], "the process lives on"


@pytest.mark.parametrize(("how", "message"), [("exit", "exit code 3"), ("kill", "signal 9")])
async def test_the_death_of_a_process_is_the_error_of_its_call_alone(how: str, message: str) -> None:
    others = asyncio.gather(*(call("double", n) for n in range(2)))
    with pytest.raises(ProcessDied, match=message) as raised:
        await call("die", how)
    assert raised.value.code == "crashed"
    assert [one["value"] for one in await others] == [0, 2]


async def test_the_parent_answers_questions() -> None:
    async def answer(question: Any) -> Any:
        return question["n"] * 10

    assert await call("ask", 5, answer=answer) == [0, 10, 20, 30, 40]


async def test_a_question_that_ends_the_run_ends_the_call() -> None:
    async def answer(question: Any) -> Any:
        raise BudgetExhausted("no tokens are left")

    with pytest.raises(BudgetExhausted, match="no tokens are left"):
        await call("ask", 2, answer=answer)


async def test_a_time_limit_kills_the_process_and_all_that_it_has_started(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    hanging = asyncio.create_task(call("hang", str(file)))
    async with asyncio.timeout(30):
        while not file.exists() or len(file.read_text().split()) < 2:
            await asyncio.sleep(0.01)
    worker, child = map(int, file.read_text().split())
    assert is_alive(worker) and is_alive(child)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    await gone(worker, child)


async def test_a_process_dies_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed while the call holds the worker's event loop."""
    file = tmp_path / "pids"
    code = (
        "import asyncio, sys; from astromesh.tools.process_pool import call_in_process;"
        f"asyncio.run(call_in_process('{HANDLERS}:hang', sys.argv[1]))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(file)], cwd=Path(__file__).parents[3])
    async with asyncio.timeout(60):
        while not file.exists() or len(file.read_text().split()) < 2:
            await asyncio.sleep(0.01)
    parent.kill()
    parent.wait()
    await gone(*map(int, file.read_text().split()))


async def test_a_memory_limit_is_that_of_its_call_alone() -> None:
    with pytest.raises(ForeignError, match="MemoryError"):
        await call("allocate", 512, max_memory_mb=256)
    assert await call("allocate", 512) == 512 * 1024 * 1024
    assert await call("allocate", 16, max_memory_mb=256) == 16 * 1024 * 1024


async def test_more_calls_than_processes_wait_for_their_turn() -> None:
    found = await asyncio.gather(*(call("double", n) for n in range(MAX_PROCESSES + 2)))
    assert [one["value"] for one in found] == [n * 2 for n in range(MAX_PROCESSES + 2)]


async def test_modules_are_found_where_the_parent_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert await call("module", "only_here") == "only_here"
