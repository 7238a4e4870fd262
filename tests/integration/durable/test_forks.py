"""Forks: a new run answers the steps before a step from the record, and continues from there with an edit."""

from __future__ import annotations

import asyncio
import importlib
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
import yaml

from astromesh.access.scopes import Viewer
from astromesh.errors import Forbidden, RunNotFound
from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.time_travel import ForkRequest
from astromesh.testing import ManualClock, RecordingTool, ScriptedProvider, plugin_of
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import client_of, manifest, store_in, write

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
LOOKUP = {"name": "lookup", "type": "lookup", "effect": "read"}
SEND = {"name": "lookup", "type": "lookup", "effect": "external"}
MEMORY = {"conversational": {"backend": "sqlite"}}


class Server:
    """A server over a script and one tool, both of which count their calls."""

    def __init__(
        self,
        folder: Path,
        *script: Any,
        other: ScriptedProvider | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.folder, self.model = folder, ScriptedProvider(*script)
        self.tool = RecordingTool("lookup", lambda query: f"found {query}", parameters=QUERY)
        providers = {"scripted": plugin_of(self.model), "other": plugin_of(other or ScriptedProvider())}
        plugins = {"tools": {"lookup": plugin_of(self.tool)}, "providers": providers}
        self.runtime = AgentRuntime(
            folder, data_dir=folder / "data", plugins=Plugins(plugins), env={}, clock=clock
        )
        self._context = client_of(self.runtime)

    async def __aenter__(self) -> Self:
        self.client = await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._context.__aexit__(kind, error, at)

    @property
    def calls(self) -> tuple[int, int]:
        """Model calls and tool calls so far."""
        return len(self.model.requests), len(self.tool.calls)

    async def rests(self, run_id: str) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while True:
                run: dict[str, Any] = (await self.client.get(f"/v1/runs/{run_id}")).json()
                if run["status"] not in ("queued", "running"):
                    return run
                await asyncio.sleep(0.01)

    async def run(self, query: str = "Hello", agent: str = "helper", **more: Any) -> dict[str, Any]:
        body = {"query": query, "session_id": "s", **more}
        accepted = await self.client.post(f"/v1/agents/{agent}/runs", json=body)
        return await self.rests(accepted.json()["run_id"])

    async def steps(self, run_id: str) -> list[dict[str, Any]]:
        return list((await self.client.get(f"/v1/runs/{run_id}/steps")).json()["steps"])

    async def step(self, run_id: str, kind: str, number: int = 0) -> int:
        """Returns the number of a step: the first of its kind, or another one."""
        found = [step["step"] for step in await self.steps(run_id) if step["kind"] == kind]
        return int(found[number])

    async def post(self, run_id: str, at: int, edit: Any = None, **more: Any) -> httpx.Response:
        body = {"at": at, **({"edit": edit} if edit else {}), **more}
        return await self.client.post(f"/v1/runs/{run_id}/fork", json=body)

    async def fork(self, run_id: str, at: int, edit: Any = None, **more: Any) -> dict[str, Any]:
        answer = await self.post(run_id, at, edit, **more)
        assert answer.status_code == 202, answer.text
        return await self.rests(answer.json()["run_id"])


def asks(*queries: str) -> list[ToolCall]:
    return [ToolCall(f"call_{q}", "lookup", json.dumps({"query": q})) for q in queries]


def said(request: CompletionRequest) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in request.messages]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_fork_at_any_step_executes_nothing_before_it_and_reproduces_the_answer(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    """Calls of the model and the tool before the step are answered from the record, and counted here."""

    def script(request: CompletionRequest) -> Any:
        done = [m for m in request.messages if m.role == "tool"]
        return asks(f"{len(done)}") if len(done) < 2 else f"done after {done[-1].content}"

    folder = write(tmp_path, manifest(tools=[LOOKUP], memory=MEMORY))
    if database == "postgres":
        store_in(folder, request.getfixturevalue("postgres_database"))
    async with Server(folder, *[script] * 40) as server:
        run = await server.run()
        assert run["result"]["response"] == "done after found 1"
        steps = await server.steps(run["run_id"])
        order = [(s["step"], s["kind"], s["path"]) for s in steps]
        for step in steps:
            before = [s for s in steps if s["step"] < step["step"]]
            models, tools = (sum(s["kind"] == kind for s in before) for kind in ("model", "tool"))
            at = server.calls
            fork = await server.fork(run["run_id"], step["step"])
            made = server.calls[0] - at[0], server.calls[1] - at[1]
            assert fork["result"]["response"] == "done after found 1", step
            assert made == (3 - models, 2 - tools), step
            assert fork["forked_from"] == {"run_id": run["run_id"], "step": step["step"], "edit": None}
            again = await server.steps(fork["run_id"])
            kept = [s for s in again if s["step"] < step["step"]]
            assert kept == before
            assert [(s["step"], s["kind"], s["path"]) for s in again] == order
            replay = (await server.client.post(f"/v1/runs/{fork['run_id']}/replay")).json()
            assert replay["reproduced"], replay


@pytest.mark.parametrize(
    ("kind", "number", "edit", "answer"),
    [
        ("rule", 0, {"query": "Bye"}, "Bye / You are helper. Helps. / found a"),
        ("prompt", 0, {"system": "You are another."}, "Hello / You are another. / found a"),
        ("model", 1, {"system": "You are another."}, "Hello / You are another. / found a"),
        ("tool", 0, {"tool_result": {"found": 7}}, 'Hello / You are helper. Helps. / {"found":7}'),
        ("model", 1, {"output": "I say so."}, "I say so."),
        ("model", 0, {"output": "At once."}, "At once."),
        (
            "model",
            0,
            {"output": {"tool_calls": [{"name": "lookup", "arguments": {"query": "z"}}]}},
            "Hello / You are helper. Helps. / found z",
        ),
        ("model", 1, {"message": "Wait!"}, "Wait! / You are helper. Helps. / found a"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
async def test_what_is_edited_is_what_the_run_goes_on_with(
    tmp_path: Path, kind: str, number: int, edit: Any, answer: str
) -> None:
    def script(request: CompletionRequest) -> Any:
        by_role = {m.role: m.content for m in request.messages}
        if "tool" not in by_role:
            return asks("a")
        return f"{by_role['user']} / {by_role['system']} / {by_role['tool']}"

    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    async with Server(folder, *[script] * 9) as server:
        run = await server.run()
        at = await server.step(run["run_id"], kind, number)
        step = (await server.client.get(f"/v1/runs/{run['run_id']}/steps/{at}")).json()
        assert next(iter(edit)) in step["editable"]
        fork = await server.fork(run["run_id"], at, edit)
    assert run["result"]["response"] == "Hello / You are helper. Helps. / found a"
    assert fork["result"]["response"] == answer
    assert fork["forked_from"]["edit"] == next(iter(edit))


async def test_an_effect_does_not_happen_again_under_another_query(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[SEND]))
    async with Server(folder, asks("a"), "done", asks("a"), "done again") as server:
        run = await server.run()
        fork = await server.fork(run["run_id"], 1, {"query": "Bye"})
        calls = len(server.tool.calls)
    assert (fork["status"], calls) == ("completed", 1)


async def test_a_message_stays_in_the_conversation_that_follows(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    async with Server(folder, asks("a"), "done", asks("b"), "again") as server:
        run = await server.run()
        await server.fork(run["run_id"], await server.step(run["run_id"], "model", 1), {"message": "More!"})
        third, fourth = server.model.requests[2:]
    assert said(third)[-2:] == [("tool", "found a"), ("user", "More!")]
    assert said(fourth) == [*said(third), ("assistant", ""), ("tool", "found b")]


async def test_a_fork_with_another_model_asks_that_model(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    other = ScriptedProvider("from the other")
    async with Server(folder, asks("a"), "done", "never", other=other) as server:
        run = await server.run()
        at = await server.step(run["run_id"], "model", 1)
        fork = await server.fork(run["run_id"], at, {"model": "other:big"})
        named = await server.post(run["run_id"], at, {"model": "test-model-2"})
        row = await server.runtime.durable.store.get(named.json()["run_id"])
    assert fork["result"]["response"] == "from the other"
    assert len(other.requests) == 1 and said(other.requests[0])[-1] == ("tool", "found a")
    assert row is not None and row.manifest is not None
    primary = yaml.safe_load(row.manifest["source"])["spec"]["model"]["primary"]
    assert primary == {"provider": "scripted", "model": "test-model-2"}


async def test_the_model_of_a_fork_names_no_variable_of_the_environment(tmp_path: Path) -> None:
    async with Server(write(tmp_path, manifest()), "done", "again", "again") as server:
        run = await server.run()
        named = await server.post(run["run_id"], 3, {"model": "${HOME}"})
        block = {"provider": "scripted", "model": "m", "parameters": {"stop": "${HOME}"}}
        await server.fork(run["run_id"], 3, {"model": block})
        row = await server.runtime.durable.store.get(named.json()["run_id"])
    assert row is not None and row.manifest is not None and "$${HOME}" in row.manifest["source"]
    assert server.model.requests[-1].parameters in ({}, {"stop": "${HOME}"})
    assert named.status_code == 202


async def test_a_fork_under_the_present_manifest_has_its_prompt_and_its_rules(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    async with Server(folder, asks("a"), "done") as server:
        run = await server.run()
        at = await server.step(run["run_id"], "model", 1)
    write(folder, manifest(tools=[LOOKUP], prompts={"system": "You are the new one."}))
    async with Server(folder, "new", "old") as server:
        fork = await server.fork(run["run_id"], at, {"manifest": "current"})
        old = await server.fork(run["run_id"], at)
        new, former = server.model.requests
    assert (fork["result"]["response"], old["result"]["response"]) == ("new", "old")
    assert said(new)[0] == ("system", "You are the new one.")
    assert said(former)[0] == ("system", "You are helper. Helps.")


# -- graphs --------------------------------------------------------------------------------------------------


PROJECT = """
calls = []

def first(state):
    calls.append("first")
    return "rough"

def second(state):
    calls.append("second")
    return f"{state.context['draft']} {state.context.get('tone', 'plainly')}"
"""


@pytest.mark.parametrize(
    ("edit", "answer", "calls"),
    [
        (None, "rough plainly", ["first", "second"]),
        ({"output": "smooth"}, "smooth plainly", ["second"]),
        ({"state": {"tone": "kindly"}}, "rough kindly", ["second"]),
        ({"state": {"draft": "other"}}, "other plainly", ["second"]),
    ],
    ids=["unedited", "output", "state", "state of the output"],
)
async def test_a_node_has_another_output_or_leaves_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Any, answer: str, calls: list[str]
) -> None:
    (tmp_path / "fork_nodes.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fork_nodes", raising=False)
    nodes = [
        {"name": name, "kind": "function", "function": f"fork_nodes:{name}", "effect": "read", **more}
        for name, more in (("first", {"output_key": "draft"}), ("second", {"is_terminal": True}))
    ]
    spec = {"name": "plan", "entry": "first", "nodes": nodes, "edges": [{"from": "first", "to": "second"}]}
    head = {"apiVersion": "astromesh/v1", "kind": "Graph", "metadata": {"name": "plan"}, "spec": spec}
    write(tmp_path, manifest(orchestration={"pattern": "graph", "graph": "plan"}))
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "plan.graph.yaml").write_text(yaml.safe_dump(head))
    async with Server(tmp_path) as server:
        run = await server.run()
        assert run["result"]["response"] == "rough plainly"
        made = importlib.import_module("fork_nodes").calls
        made.clear()
        fork = await server.fork(run["run_id"], await server.step(run["run_id"], "node", 0), edit)
    assert (fork["result"]["response"], made) == (answer, calls)


# -- effects -------------------------------------------------------------------------------------------------


async def test_a_call_with_an_effect_is_answered_from_the_recording_and_another_one_waits(
    tmp_path: Path,
) -> None:
    """The same name and arguments have the recorded result; other arguments need a person."""
    folder = write(tmp_path, manifest(tools=[SEND]))
    async with Server(folder, asks("a"), "sent", asks("a"), "sent again", asks("b"), "sent b") as server:
        run = await server.run()
        at = await server.step(run["run_id"], "model", 0)
        same = await server.fork(run["run_id"], at)
        assert (same["result"]["response"], len(server.tool.calls)) == ("sent again", 1)
        other = await server.fork(run["run_id"], at)
        assert (other["status"], other["waiting_for"]["arguments"]) == ("waiting", {"query": "b"})
        assert "fork" in other["waiting_for"]["question"]
        path = f"/v1/runs/{other['run_id']}/resume"
        await server.client.post(path, json={"decision": "approve", "arguments": {"query": "c"}})
        assert (await server.rests(other["run_id"]))["result"]["response"] == "sent b"
        assert server.tool.calls == [{"query": "a"}, {"query": "c"}]


async def test_a_denied_effect_of_a_fork_is_not_executed(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[SEND]))
    async with Server(folder, asks("a"), "sent", asks("b"), "not sent") as server:
        run = await server.run()
        fork = await server.fork(run["run_id"], await server.step(run["run_id"], "model", 0))
        await server.client.post(f"/v1/runs/{fork['run_id']}/resume", json={"decision": "deny"})
        assert (await server.rests(fork["run_id"]))["result"]["response"] == "not sent"
        assert len(server.tool.calls) == 1


async def test_a_tool_that_reads_is_called_in_a_fork(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    async with Server(folder, asks("a"), "done", "again") as server:
        run = await server.run()
        fork = await server.fork(run["run_id"], await server.step(run["run_id"], "tool"))
    assert fork["result"]["response"] == "again"
    assert server.tool.calls == [{"query": "a"}] * 2


# -- sessions ------------------------------------------------------------------------------------------------


async def turns(server: Server, session: str) -> list[str]:
    answer = await server.client.get(f"/v1/agents/helper/sessions/{session}")
    return [turn["content"] for turn in answer.json().get("turns", ())]


async def test_a_fork_writes_to_no_session_unless_it_is_asked_to(tmp_path: Path) -> None:
    """It sees the conversation as it was, whatever has been said since."""
    folder = write(tmp_path, manifest(memory=MEMORY))
    async with Server(folder, "one", "two", "three", "four", "five", "six") as server:
        await server.run("1")
        run = await server.run("2")
        await server.run("3")
        before = await turns(server, "s")
        await server.fork(run["run_id"], 1, {"query": "2b"})
        assert await turns(server, "s") == before
        assert [text for _, text in said(server.model.requests[3])[1:]] == ["1", "one", "2b"]
        new = await server.fork(run["run_id"], 1, {"query": "2c"}, session="new")
        assert new["session_id"] != "s"
        assert await turns(server, new["session_id"]) == ["1", "one", "2c", "five"]
        same = await server.fork(run["run_id"], 1, {"query": "2d"}, session="same")
        assert same["session_id"] == "s"
        assert await turns(server, "s") == [*before, "2d", "six"]


async def test_the_query_of_a_fork_passes_the_input_rules_before_it_is_stored(tmp_path: Path) -> None:
    rules = {"input": [{"type": "pii_detection", "action": "redact"}]}
    folder = write(tmp_path, manifest(guardrails=rules, memory=MEMORY))
    async with Server(folder, "one", "two") as server:
        run = await server.run("Who?")
        await server.fork(run["run_id"], 1, {"query": "Ask ann@example.com"})
    assert said(server.model.requests[1])[-1] == ("user", "Ask [EMAIL]")
    for file in (folder / "data").glob("astromesh.db*"):
        assert b"ann@example" not in file.read_bytes(), file.name


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"at": 99}, "no step 99"),
        ({"at": 1, "edit": {"output": "x"}}, "query, model, manifest can be edited there"),
        ({"at": 3, "edit": {"tool_result": "x"}}, "output, message, system"),
        ({"at": 3, "edit": {"output": "x", "system": "y"}}, "exactly one of"),
        ({"at": 3, "edit": {}}, "exactly one of"),
        ({"at": 3, "edit": {"output": {"said": "x"}}}, "`content` and `tool_calls`"),
        ({"at": 3, "edit": {"output": {"tool_calls": 5}}}, "`tool_calls` a list"),
        ({"at": 3, "edit": {"output": {"content": 5}}}, "`content` must be a text"),
        ({"at": 3, "edit": {"manifest": "old"}}, "current"),
        ({"at": 3, "session": "other"}, "session"),
        ({"at": 3, "edit": {"model": {"provider": "nobody"}}}, "edit.model: "),
        ({"at": 3, "edit": {"model": {}}}, "edit.model: "),
        ({"at": 3, "edit": {"model": {"provider": "scripted", "endpoint": "http://x"}}}, "endpoint"),
        ({"edit": {"output": "x"}}, "at"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_fork_that_cannot_be_made_says_why(tmp_path: Path, body: Any, what: str) -> None:
    async with Server(write(tmp_path, manifest()), "done") as server:
        run = await server.run()
        answer = await server.client.post(f"/v1/runs/{run['run_id']}/fork", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert what in answer.json()["detail"]


async def test_a_repeated_request_with_a_key_is_one_fork(tmp_path: Path) -> None:
    async with Server(write(tmp_path, manifest()), "done", "again") as server:
        run = await server.run()
        path, key = f"/v1/runs/{run['run_id']}/fork", {"idempotency-key": "k"}
        first, second = [(await server.client.post(path, json={"at": 3}, headers=key)).json() for _ in "ab"]
        await server.rests(first["run_id"])
        steps = await server.steps(first["run_id"])
    assert first == second
    assert len(server.model.requests) == 2 and len(steps) == 5


async def test_a_fork_of_a_fork_keeps_its_edits(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[LOOKUP]))
    async with Server(folder, asks("a"), "done", "second", "third") as server:
        run = await server.run()
        at = await server.step(run["run_id"], "model", 1)
        fork = await server.fork(run["run_id"], at, {"system": "Be brief."})
        again = await server.fork(fork["run_id"], at)
    assert again["result"]["response"] == "third"
    assert again["forked_from"]["run_id"] == fork["run_id"]
    assert [said(request)[0] for request in server.model.requests[2:]] == [("system", "Be brief.")] * 2


async def test_the_effects_of_a_nested_agent_do_not_happen_again(tmp_path: Path) -> None:
    below = {"name": "below", "type": "agent", "agent": "below"}
    folder = write(tmp_path, manifest(tools=[below]), manifest("below", tools=[SEND], memory=MEMORY))
    call = [ToolCall("c1", "below", '{"query": "Send."}')]
    script = (call, asks("a"), "sent", "done")
    async with Server(folder, *script, *script) as server:
        run = await server.run()
        inside = [s for s in await server.steps(run["run_id"]) if "/run:below" in s["path"]]
        first = next(s["step"] for s in inside if s["kind"] == "model")
        fork = await server.fork(run["run_id"], await server.step(run["run_id"], "model", 0))
        assert fork["result"]["response"] == "done"
        assert (len(server.tool.calls), len(server.model.requests)) == (1, 8)
        sessions = (await server.client.get("/v1/agents/below/sessions")).json()["sessions"]
        assert [(one["session_id"], one["turns"]) for one in sessions] == [("s/below", 2)]
    async with Server(folder, *script[1:]) as server:
        again = await server.fork(run["run_id"], first)
        assert again["result"]["response"] == "done"
        assert (len(server.tool.calls), len(server.model.requests)) == (0, 3)


async def test_a_fork_finds_in_memory_what_the_run_found_there(tmp_path: Path) -> None:
    """At the memory step too, and in nested runs: their sessions have grown since."""
    below = {"name": "below", "type": "agent", "agent": "below"}
    outer = manifest(tools=[below], memory=MEMORY)
    folder = write(tmp_path, outer, manifest("below", tools=[LOOKUP], memory=MEMORY))
    script = ([ToolCall("c1", "below", '{"query": "Who?"}')], "me", "done")
    async with Server(folder, *script, *["again"] * 40) as server:
        run = await server.run()
        await server.run("And later?")
        before, steps = [said(one) for one in server.model.requests[:3]], await server.steps(run["run_id"])
        places = [step["path"] for step in steps if step["kind"] == "memory"]
        assert len(places) == 2
        last = await server.step(run["run_id"], "model", -1)
        for step in (one for one in steps if one["step"] <= last):
            asked = len(server.model.requests)
            await server.fork(run["run_id"], step["step"])
            assert said(server.model.requests[asked]) in before, step


@pytest.mark.parametrize("rules", [[], [{"type": "pii_detection"}]], ids=["plain", "rules"])
async def test_a_fork_behind_a_nested_run_is_compared_and_replayed(tmp_path: Path, rules: list[Any]) -> None:
    below = {"name": "below", "type": "agent", "agent": "below"}
    inner = manifest("below", tools=[LOOKUP], guardrails={"output": rules})
    outer = manifest(tools=[below], guardrails={"output": rules})
    script = ([ToolCall("c1", "below", '{"query": "ask me@example.com"}')], "me@example.com", "done", "done")
    async with Server(write(tmp_path, outer, inner), *script) as server:
        run = await server.run()
        fork = await server.fork(run["run_id"], await server.step(run["run_id"], "model", -1))
        query = {"a": run["run_id"], "b": fork["run_id"]}
        compared = (await server.client.get("/v1/runs/compare", params=query)).json()
        replay = (await server.client.post(f"/v1/runs/{fork['run_id']}/replay")).json()
        kept = str(await server.runtime.durable.store.steps(fork["run_id"]))
    assert compared["divergence"] is None and all(one["b"] for one in compared["steps"])
    assert replay["divergence"] is None and replay["compared"] > 5
    assert ("me@example.com" in kept) is not bool(rules)


async def test_a_fork_has_seen_no_death_of_a_process(tmp_path: Path) -> None:
    """Else the fork of a run that has crashed three times would fail at its first hand-over."""
    async with Server(write(tmp_path, manifest()), "one", "two") as server:
        run_id = (await server.run())["run_id"]
        with closing(sqlite3.connect(next(tmp_path.rglob("astromesh.db")))) as database, database:
            database.execute("UPDATE runs SET deaths = 3")
        wanted = ForkRequest(await server.step(run_id, "model"))
        fork = await server.runtime.time_travel.fork(
            run_id, Viewer("default", None), wanted, CallerContext("root", scopes=frozenset({"admin"}))
        )
        await server.rests(fork.run_id)
    assert fork.deaths == 0


async def test_who_may_not_see_a_run_or_run_its_agent_cannot_fork_it(tmp_path: Path) -> None:
    """A fork that another principal of the tenant starts belongs to the owner of the run."""
    async with Server(write(tmp_path, manifest()), "one", "two") as server:
        run_id, travel = (await server.run())["run_id"], server.runtime.time_travel
        me, wanted = Viewer("default", "anonymous"), ForkRequest(3)
        for stranger in (Viewer("default", "somebody"), Viewer("elsewhere", None)):
            with pytest.raises(RunNotFound):
                await travel.fork(run_id, stranger, wanted, CallerContext(scopes=frozenset({"admin"})))
        with pytest.raises(Forbidden, match="agents:run:helper"):
            await travel.fork(run_id, me, wanted, CallerContext(scopes=frozenset({"agents:run:other"})))
        admin = CallerContext("root", scopes=frozenset({"admin"}))
        fork = await travel.fork(run_id, Viewer("default", None), wanted, admin)
        await server.rests(fork.run_id)
    assert (fork.tenant, fork.owner) == ("default", "anonymous")
    assert fork.caller["user_id"] != "root"
