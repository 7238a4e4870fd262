"""Operations for tests: what a stage does is told by its input, so that one function serves many stages."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

#: events that tests set to let a stage go on, by name
GATES: dict[str, asyncio.Event] = {}
#: names of stages that hold on at their gate, as they arrive there
ARRIVED: list[str] = []
#: the records of a log, which a stage answers the last one of
RECORDS: list[Any] = []
#: what a stage has set in its context
MARK: ContextVar[Any] = ContextVar("mark", default=None)


async def last_record(input: Any, context: Any, tools: Any) -> Any:
    return [RECORDS[-1]["type"], RECORDS[-1].get("stage")]


async def mark(input: Any, context: Any, tools: Any) -> Any:
    found = MARK.get()
    MARK.set(input)
    return found


async def named(input: Any, context: Any, tools: Any) -> Any:
    names = ("task_id", "stage_id", "attempt", "idempotency_key")
    return {name: getattr(context, name) for name in names}


async def echo(input: Any, context: Any, tools: Any) -> Any:
    return input


def sync_echo(input: Any, context: Any, tools: Any) -> Any:
    return input


async def fail(input: Any, context: Any, tools: Any) -> Any:
    raise ValueError("as told")


async def fail_if_bad(input: Any, context: Any, tools: Any) -> Any:
    if input == "bad" or (isinstance(input, dict) and input.get("bad")):
        raise ValueError("bad input")
    return input


async def add_a(input: Any, context: Any, tools: Any) -> Any:
    return f"{input}a"


async def add_b(input: Any, context: Any, tools: Any) -> Any:
    return f"{input}b"


async def add_c(input: Any, context: Any, tools: Any) -> Any:
    return f"{input}c"


async def add_d(input: Any, context: Any, tools: Any) -> Any:
    return f"{input}d"


async def change_in_place(input: Any, context: Any, tools: Any) -> Any:
    input["changed"] = True
    return input


async def as_items(input: Any, context: Any, tools: Any) -> Any:
    return {"subtask_inputs": input}


async def no_items(input: Any, context: Any, tools: Any) -> Any:
    return {"subtask_inputs": []}


async def malformed(input: Any, context: Any, tools: Any) -> Any:
    return {"subtask_inputs": "three"}


async def per_label(input: Any, context: Any, tools: Any) -> Any:
    return {"left": 1, "other": 2}


async def select(input: Any, context: Any, tools: Any) -> Any:
    """The input is the edge, or a mapping with it."""
    return input if isinstance(input, dict) else {"selected_edge": input, "output": input}


async def turn_off(input: Any, context: Any, tools: Any) -> Any:
    return {"selected_edge": "off", "output": input}


async def all_of_it(input: Any, context: Any, tools: Any) -> Any:
    return input


async def count_inputs(input: Any, context: Any, tools: Any) -> Any:
    return {"inputs": len(input["inputs"]), "failures": len(input["failures"])}


#: stages that run `crowd` now
RUNNING = [0]


async def crowd(input: Any, context: Any, tools: Any) -> Any:
    """Returns how many of its kind run, itself included."""
    RUNNING[0] += 1
    for _ in range(20):
        await asyncio.sleep(0)
    seen = RUNNING[0]
    RUNNING[0] -= 1
    return seen


async def hold_a(input: Any, context: Any, tools: Any) -> Any:
    return await _hold("a", input)


async def hold_b(input: Any, context: Any, tools: Any) -> Any:
    return await _hold("b", input)


async def _hold(name: str, input: Any) -> Any:
    ARRIVED.append(name)
    await GATES.setdefault(name, asyncio.Event()).wait()
    return f"{input}{name}"


async def for_ever(input: Any, context: Any, tools: Any) -> Any:
    ARRIVED.append("for_ever")
    await asyncio.Event().wait()


async def nap(input: Any, context: Any, tools: Any) -> Any:
    await asyncio.sleep(0.05)
    return input


async def not_json(input: Any, context: Any, tools: Any) -> Any:
    return {1, 2, 3}


async def cancel_itself(input: Any, context: Any, tools: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def half_an_emoji(input: Any, context: Any, tools: Any) -> Any:
    return "\ud83d"


async def nan(input: Any, context: Any, tools: Any) -> Any:
    return {"rates": [1.0, None, float(input)]}


async def call_tool(input: Any, context: Any, tools: Any) -> Any:
    answer = await tools.call(input["tool"], **input.get("arguments", {}))
    return {"ok": answer.ok, "value": answer.value, "error": answer.error}


async def see_context(input: Any, context: Any, tools: Any) -> Any:
    return {"profile": context.profile, "values": context.values, "nodes": [i.node for i in context.items]}


async def double(number: int) -> Any:
    return {"result": 2 * number}


async def broken_tool(number: int) -> Any:
    raise OSError("the disk is full")
