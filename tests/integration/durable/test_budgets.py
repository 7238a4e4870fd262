"""R8: budgets of sessions and principals, over runs, restarts and processes."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from astromesh.durable.budgets import (
    BudgetAccount,
    BudgetAmounts,
    BudgetCaps,
    BudgetCharge,
    BudgetHold,
    Reservation,
)
from astromesh.errors import BudgetExhausted
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.testing import RecordingSink, RecordingTool, ScriptedProvider, plugin_of
from astromesh.tokens import FIRST_ANSWER_TOKENS as ANSWER_TOKENS
from astromesh.tokens import estimate_request
from astromesh.types import CallerContext, CompletionResult, ToolCall, Usage
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.platform.stores import impatient

BODY = {"query": "Hello", "session_id": "s-1"}
SESSION = BudgetAccount("session", "default", "helper", "s-1", "anonymous")
ANN, BOB = (CallerContext(user_id=name, tenant_id="default") for name in ("ann", "bob"))
ANSWER = CompletionResult("Hi", usage=Usage(80, 20, 0, 0.25))


@pytest.fixture(params=("sqlite", "postgres"))
def storage(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else ""


def folder_of(tmp_path: Path, budgets: dict[str, Any], storage: str = "", **spec: Any) -> Path:
    folder = write(tmp_path, manifest(budgets=budgets, **spec))
    if storage:
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (folder / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": storage}}}))
    return folder


def answering(answer: Any = ANSWER) -> ScriptedProvider:
    return ScriptedProvider(answer, repeat=True)


async def spent(runtime: AgentRuntime, account: BudgetAccount = SESSION) -> BudgetAmounts:
    await runtime.runner.budgets.flush()
    return await (await runtime.stores.open_budgets()).spent(account)


async def reserved_by_another(runtime: AgentRuntime, expires_at: float) -> None:
    """All of the session's tokens, by a process that says nothing more."""
    hold = BudgetHold("h-1", "run-1", "another", expires_at)
    want = Reservation(SESSION, BudgetAmounts(tokens=10_000), BudgetCaps(tokens=10_000), hold)
    assert await (await runtime.stores.open_budgets()).reserve([want]) == (want.amounts,)


async def test_a_session_spends_its_budget_over_a_restart(tmp_path, storage):
    """429 with the budget's name before the model is asked; another session goes on."""
    folder = folder_of(tmp_path, {"per_session": {"tokens": 250}}, storage)
    async with runtime_of(folder, answering()) as one:
        await one.run("helper", "Hello", "s-1")
        await one.run("helper", "Hello", "s-1")
        assert (await spent(one)).tokens == 200
    runtime = runtime_of(folder, provider := answering())
    async with client_of(runtime) as client:
        codes = [(await client.post("/v1/agents/helper/run", json=BODY)).status_code for _ in range(2)]
        last = await client.post("/v1/agents/helper/run", json=BODY)
        other = await client.post("/v1/agents/helper/run", json={**BODY, "session_id": "s-2"})
    assert (codes, last.status_code, other.status_code) == ([200, 429], 429, 200)
    assert last.json()["code"] == "budget_exhausted"
    assert "retry-after" not in last.headers  # it never will be otherwise
    assert "tokens for this session" in last.json()["detail"]
    assert len(provider.requests) == 2


async def test_a_day_s_budget_is_one_principal_s_and_says_when_it_renews(tmp_path):
    folder = folder_of(tmp_path, {"per_principal_daily": {"cost_usd": 0.5}})
    async with runtime_of(folder, answering()) as runtime:
        for session in ("a", "b"):
            await runtime.run("helper", "Hello", session, caller=ANN)
        with pytest.raises(BudgetExhausted, match="Today's budget of cost_usd") as refused:
            await runtime.run("helper", "Hello", "c", caller=ANN)
        await runtime.run("helper", "Hello", "d", caller=BOB)
    assert 0 < refused.value.retry_after <= 86_400


async def test_runs_at_once_in_two_processes_spend_no_more_than_the_budget(tmp_path, storage):
    """R8 through whole runs: a call reserves its prompt and its answer, whose limit is what is left."""
    budget = ANSWER_TOKENS + 1000
    folder = folder_of(tmp_path, {"per_principal_daily": {"tokens": budget}}, storage)
    gate = asyncio.Event()

    async def slow(request: Any) -> CompletionResult:
        await asyncio.wait_for(gate.wait(), 30)
        return CompletionResult(
            "Hi", usage=Usage(estimate_request(request), request.parameters["max_tokens"])
        )

    one, two = answering(slow), answering(slow)
    async with runtime_of(folder, one) as first, runtime_of(folder, two) as second:
        runs = [
            asyncio.create_task((first, second)[n % 2].run("helper", "Hello", f"s-{n}")) for n in range(12)
        ]
        async with asyncio.timeout(30):
            while sum(run.done() for run in runs) < 10:  # those that are refused at once
                await asyncio.sleep(0.01)
        gate.set()
        results = await asyncio.gather(*runs, return_exceptions=True)
    assert sum(isinstance(result, BudgetExhausted) for result in results) == 10
    limits = [request.parameters["max_tokens"] for request in (*one.requests, *two.requests)]
    prompt = estimate_request((*one.requests, *two.requests)[0])
    assert sorted(limits) == [1000 - 2 * prompt, ANSWER_TOKENS]


async def test_a_plain_run_beside_one_that_has_reserved_the_rest_is_429_and_leaves_nothing(tmp_path):
    """No answer is made up, no turn is kept, and it may come back long before midnight."""
    folder = folder_of(tmp_path, {"per_principal_daily": {"tokens": 100}})
    gate, asked = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> CompletionResult:
        asked.set()
        await asyncio.wait_for(gate.wait(), 30)
        return ANSWER

    runtime = runtime_of(folder, answering(slow))
    async with client_of(runtime) as client:
        first = asyncio.create_task(client.post("/v1/agents/helper/run", json=BODY))
        await asyncio.wait_for(asked.wait(), 30)
        refused = await client.post("/v1/agents/helper/run", json={**BODY, "session_id": "s-2"})
        gate.set()
        answered = await first
        history = await client.get("/v1/agents/helper/sessions/s-2")
    assert (refused.status_code, refused.json()["code"]) == (429, "budget_exhausted")
    assert (answered.status_code, history.status_code) == (200, 404)
    assert "reserved" in refused.json()["detail"] and 0 < int(refused.headers["retry-after"]) < 60


async def test_an_accepted_run_waits_for_what_others_have_reserved(tmp_path):
    """And for what a dead process has left, whose time passes; a plain run is told to come back soon."""
    folder = folder_of(tmp_path, {"per_session": {"tokens": 5000}})
    async with runtime_of(folder, answering()) as runtime:
        await reserved_by_another(runtime, runtime.clock.now() + 3600)
        with pytest.raises(BudgetExhausted, match="Active runs have reserved") as refused:
            await runtime.run("helper", "Hello", "s-1")
        row = await runtime.runner.accept(runtime.agent("helper"), RunRequest("Hello", "s-1"))
        async with asyncio.timeout(30):
            while (found := await runtime.durable.store.get(row.run_id)) is None or found.status == "queued":
                await asyncio.sleep(0.01)
        await (await runtime.stores.open_budgets()).release_holder("another")
        async with asyncio.timeout(30):
            while (found := await runtime.durable.store.get(row.run_id)) is None or found.status == "running":
                await asyncio.sleep(0.01)
        used = await spent(runtime)
    assert (found.status, used.tokens) == ("completed", 100)
    assert 0 < refused.value.retry_after < 60


async def test_calls_of_tools_are_counted_exactly_and_the_model_is_told(tmp_path):
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})
    calls = [ToolCall(f"c{n}", "lookup", "{}") for n in range(3)]
    spec: Any = {"tools": [{"name": "lookup", "type": "lookup", "effect": "read"}]}
    folder = folder_of(tmp_path, {"per_session": {"tool_calls": 2}}, **spec)
    provider = ScriptedProvider(calls, "done", calls, "done")
    async with runtime_of(folder, provider, plugins={"tools": {"lookup": plugin_of(tool)}}) as runtime:
        for _ in range(2):
            await runtime.run("helper", "Hello", "s-1")
        used = await spent(runtime)
    told = [m.content for m in provider.requests[1].messages if m.role == "tool"]
    assert (len(tool.calls), used.tool_calls) == (2, 2)
    assert sum("tool_calls for this session" in text for text in told) == 1


async def test_a_nested_run_is_charged_to_the_accounts_above_it(tmp_path):
    """Its own agent has no budget; that of the outer one is used up by both."""
    folder = folder_of(
        tmp_path, {"per_session": {"tokens": 150}}, tools=[{"name": "ask", "type": "agent", "agent": "inner"}]
    )
    write(folder, manifest("inner"))
    call = CompletionResult(
        "",
        tool_calls=(ToolCall("c1", "ask", '{"query": "?"}'),),
        usage=Usage(50, 0),
        finish_reason="tool_calls",
    )
    inner = CompletionResult("inside", usage=Usage(100, 0))
    async with runtime_of(folder, ScriptedProvider(call, inner, ANSWER)) as runtime:
        answer = await runtime.run("helper", "Hello", "s-1")
        assert (answer.metadata["stop_reason"], (await spent(runtime)).tokens) == ("budget", 150)
        with pytest.raises(BudgetExhausted):
            await runtime.run("helper", "Hello", "s-1")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_breaks_off_gives_its_reservation_back(tmp_path, streamed):
    """It is charged what it is known or thought to have cost, as in the run's own usage."""
    folder = folder_of(tmp_path, {"per_session": {"tokens": 100_000}})
    begun = asyncio.Event()

    async def hangs(_: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with runtime_of(folder, ScriptedProvider(hangs)) as runtime:
        sinks = (RecordingSink(),) if streamed else ()
        run = asyncio.create_task(runtime.run("helper", "Hello", "s-1", sinks=sinks))
        await asyncio.wait_for(begun.wait(), 30)
        reserved = (await spent(runtime)).tokens
        run.cancel()
        await asyncio.wait([run])
        kept = (await spent(runtime)).tokens
    assert reserved > ANSWER_TOKENS > kept > 0


async def test_time_is_charged_and_a_run_beyond_its_own_is_ended(tmp_path):
    """A session whose runs have used up their time begins no more; per_run ends the run itself."""
    folder = folder_of(tmp_path, {"per_session": {"wall_seconds": 1}})
    async with runtime_of(folder, answering()) as runtime:
        await runtime.run("helper", "Hello", "s-1")
        left = await spent(runtime)
        assert 0 < left.wall_seconds < 120  # what was reserved has come back
        store = await runtime.stores.open_budgets()
        await store.reserve([], [BudgetCharge(SESSION, BudgetAmounts(wall_seconds=1.0))])
        with pytest.raises(BudgetExhausted, match="wall_seconds"):
            await runtime.run("helper", "Hello", "s-1")
    write(tmp_path, manifest(budgets={"per_run": {"wall_seconds": 0.05}}))

    async def hangs(_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    async with runtime_of(tmp_path, ScriptedProvider(hangs)) as runtime:
        ended = await runtime.run("helper", "Hello", "s-1")
    assert (ended.metadata["stop_reason"], ended.metadata["budget"]) == ("budget", "per_run.wall_seconds")


async def test_a_durable_run_that_is_taken_up_again_is_not_charged_twice(tmp_path):
    """Calls that its record answers cost nothing; the one under way when it was cut off counts."""
    tool = RecordingTool("lookup", lambda **_: "found", parameters={"type": "object", "properties": {}})
    spec: Any = {"tools": [{"name": "lookup", "type": "lookup", "effect": "read"}]}
    folder = folder_of(tmp_path, {"per_session": {"tokens": 100_000, "tool_calls": 10}}, **spec)
    begun = asyncio.Event()
    call = CompletionResult(
        "", tool_calls=(ToolCall("c1", "lookup", "{}"),), usage=Usage(50, 0), finish_reason="tool_calls"
    )

    async def hangs(_: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    plugins = {"tools": {"lookup": plugin_of(tool)}}
    one = runtime_of(folder, ScriptedProvider(call, hangs), plugins=dict(plugins))
    await one.bootstrap()
    row = await one.runner.accept(one.agent("helper"), RunRequest("Hello", "s-1"))
    await asyncio.wait_for(begun.wait(), 30)
    await one.close(grace=0.0)
    async with runtime_of(folder, ScriptedProvider(ANSWER), plugins=dict(plugins)) as two:
        await two.durable.start()
        async with asyncio.timeout(30):
            while (found := await two.durable.store.get(row.run_id)) is None or found.status != "completed":
                await asyncio.sleep(0.01)
        used = await spent(two)
    assert (used.tool_calls, len(tool.calls)) == (1, 1)
    assert 150 <= used.tokens < 150 + ANSWER_TOKENS


async def test_agents_without_stored_budgets_open_no_store(tmp_path):
    folder = folder_of(tmp_path, {"per_run": {"tokens": 1000}})
    async with runtime_of(folder, answering()) as runtime:
        await runtime.run("helper", "Hello", "s-1")
        assert runtime.runner.budgets._store is None


async def test_what_a_cancelled_reservation_has_taken_along_is_charged_once(tmp_path, storage):
    """The store may have done it, or may do it yet: who asked is gone, what calls have cost is not."""
    folder = folder_of(tmp_path, {"per_session": {"tokens": 100_000}}, storage)
    async with runtime_of(folder, answering()) as runtime:
        budgets = runtime.runner.budgets
        await budgets.reserve(())
        for n in range(5):
            budgets.settle([BudgetCharge(SESSION, BudgetAmounts(tokens=1))])
            hold = budgets.hold("run-1")
            want = Reservation(SESSION, BudgetAmounts(tokens=10), BudgetCaps(tokens=100_000), hold)
            asking = asyncio.create_task(budgets.reserve([want]))
            for _ in range(n):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
        assert await spent(runtime) == BudgetAmounts(tokens=5)


async def test_a_process_that_closes_has_reserved_nothing_any_more(tmp_path):
    """Whoever comes next does not wait until its reservations are over."""
    folder = folder_of(tmp_path, {"per_session": {"tokens": 100}})
    async with runtime_of(folder, answering()) as runtime:
        hold = runtime.runner.budgets.hold("run-1")
        await runtime.runner.budgets.reserve(
            [Reservation(SESSION, BudgetAmounts(tokens=100), BudgetCaps(tokens=100), hold)]
        )
    async with runtime_of(folder, answering()) as runtime:
        assert await spent(runtime) == BudgetAmounts()


async def test_what_a_store_that_was_away_has_not_charged_is_charged_when_it_is_back(tmp_path):
    """Without another call of this process: others would spend what is spent."""
    async with runtime_of(folder_of(tmp_path, {"per_session": {"tokens": 100}}), answering()) as runtime:
        await impatient(runtime.state.deps)
        budgets, store = runtime.runner.budgets, await runtime.stores.open_budgets()
        await budgets.reserve(())
        with closing(sqlite3.connect(next(tmp_path.rglob("astromesh.db")), isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            budgets.settle([BudgetCharge(SESSION, BudgetAmounts(tokens=7))])
            await budgets.flush()  # in vain: the file is locked
            other.execute("COMMIT")
        async with asyncio.timeout(30):
            while await store.spent(SESSION) != BudgetAmounts(tokens=7):
                await asyncio.sleep(0.05)


async def test_a_sign_of_life_waits_for_no_reservation_that_ends_just_now(tmp_path, postgres_database):
    """Two transactions over the same reservations, each in its own order, would wait for each other."""
    folder = folder_of(tmp_path, {"per_session": {"tokens": 100}}, postgres_database)
    async with runtime_of(folder, answering()) as runtime:
        await reserved_by_another(runtime, runtime.clock.now() + 3600)
        other = await asyncpg.connect(postgres_database)
        try:
            async with other.transaction():
                await other.execute("DELETE FROM astromesh.budget_holds WHERE id = 'h-1'")
                await (await runtime.stores.open_budgets()).renew("another", runtime.clock.now() + 3600)
        finally:
            await other.close()
