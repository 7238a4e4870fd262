"""What people decide about runs that wait, written down: the run goes on from its row, wherever that is."""

from __future__ import annotations

from astromesh.abc.durable import RunRow, RunStore
from astromesh.errors import ApprovalNotFound, NotDurable, NotWaiting
from astromesh.types import JsonObject


async def decide(store: RunStore, row: RunRow, decision: JsonObject) -> RunRow:
    """The row as it is queued again; any process of its database may take it up.

    Args:
        decision: `{"decision", "arguments"?, "answer"?, "by"}`.

    Raises:
        NotDurable: it never waits. NotWaiting: it does not wait, or no longer.
    """
    if not row.durable:
        raise NotDurable(f"The run {row.run_id!r} is not durable: it never waits for a person.")
    if row.status != "waiting" or row.waiting_for is None:
        raise NotWaiting(f"The run {row.run_id!r} does not wait for anybody; it is {row.status}.")
    asked = row.waiting_for
    steps = await store.steps(row.run_id)
    step = next((s for s in steps if (s.path, s.n) == (asked["path"], asked["n"])), None)
    if step is None:
        raise ApprovalNotFound(f"The run {row.run_id!r} has no such question.")
    done = step._replace(state="done", output={**(step.output or {}), **decision})
    advanced = await store.advance(row.run_id, row.segment, [done])
    if advanced is None:
        raise NotWaiting(f"The run {row.run_id!r} has been decided already.")
    return advanced
