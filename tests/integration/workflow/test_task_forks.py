"""Steps, forks and comparisons of Tasks: what is before a step is read from the records."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from astromesh.access.scopes import Viewer
from astromesh.durable.fork import Edit
from astromesh.errors import TaskNotFound
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from astromesh.workflow.history import Recording
from tests.integration.agents_folder import LaterClock, client_of, store_in
from tests.integration.workflow.folders import ENDED, runtime_with, sample, small, until
from tests.integration.workflow.test_sample_project import CONTRACT, lawyer

RUN, RUNS = "/v1/workflows/shop/run", "/v1/workflows/shop/runs"
OPS = """
import pathlib
LOG = pathlib.Path(__file__).parent / "log"

def note(what):
    with LOG.open("a") as file:
        file.write(what + "\\n")

def check(input, context, tools):
    note("check")
    return {"plan": input, "amount": 3}

async def order(input, context, tools):
    note("order")
    seen = await tools.call("look", item="tea")
    paid = await tools.call("pay", amount=input["amount"])
    return {"paid": paid.value if paid.ok else paid.content, "seen": seen.value}

def look(item):
    note("look")
    return f"price of {item}"

def pay(amount):
    note("pay")
    return amount
"""
TOOLS = """tools:
  - {id: look, type: python, entrypoint: 'ops:look', effect: read,
     schema_in: {type: object, properties: {item: {type: string}}}}
  - {id: pay, type: python, entrypoint: 'ops:pay', effect: external,
     schema_in: {type: object, properties: {amount: {type: number}}}}
"""
AGENTS = "agents: [{id: planner, model: m, system_prompt: Plan., tools: [look]}]\n"
PROVIDERS = "providers: [{id: m, adapter: scripted, model: small}]\n"
WORKFLOW = """version: 1
workflow: shop
nodes:
  - {id: s, kind: deterministic, role: start, default: true, context: none}
  - {id: plan, kind: agent, agent: planner, role: linear, context: none, tools: [look]}
  - {id: check, kind: deterministic, role: linear, context: none, op: 'ops:check'}
  - {id: order, kind: deterministic, role: linear, context: none, op: 'ops:order', tools: [look, pay]}
  - {id: e, kind: deterministic, role: exit, context: none}
edges:
  - {from: s, to: plan}
  - {from: plan, to: check}
  - {from: check, to: order}
  - {from: order, to: e}
"""


class Planner:
    """A model that looks something up, then answers. It counts its calls."""

    def __init__(self) -> None:
        self.requests: list[CompletionRequest] = []

    def __call__(self, request: CompletionRequest) -> Any:
        self.requests.append(request)
        results = [one.content for one in request.messages if one.role == "tool"]
        return f"plan: {results[0]}" if results else ToolCall("c1", "look", '{"item": "tea"}')


class Shop:
    """A configuration folder with the workflow, and what its code has done."""

    def __init__(self, config: Path) -> None:
        self.config, self.folder = config, config / "workflows" / "shop"
        self.folder.mkdir(parents=True)
        files = {"ops.py": OPS, "tools.yaml": TOOLS, "agents.yaml": AGENTS, "providers.yaml": PROVIDERS}
        for name, text in {**files, "workflow.yaml": WORKFLOW}.items():
            (self.folder / name).write_text(text)
        self.model = Planner()

    def runtime(self) -> Any:
        return runtime_with(self.config, self.model)

    def done(self) -> list[str]:
        """What was executed since the last look: operations, tools, model calls."""
        file = self.folder / "log"
        found = file.read_text().split() if file.exists() else []
        file.write_text("")
        calls, self.model.requests = len(self.model.requests), []
        return [*found, *["model"] * calls]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "config")


async def started(client: httpx.AsyncClient, route: str) -> str:
    task_id: str = (await client.post(route, json={"input": "tea"})).json()["task_id"]
    await until(client, task_id, *ENDED)
    return task_id


async def forked(client: httpx.AsyncClient, task_id: str, at: int, **edit: Any) -> dict[str, Any]:
    body = {"at": at, **({"edit": edit} if edit else {})}
    answer = await client.post(f"/v1/tasks/{task_id}/fork", json=body)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = await until(client, answer.json()["task_id"], *ENDED)
    return found


async def steps_of(client: httpx.AsyncClient, task_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"/v1/tasks/{task_id}/steps")).json()["steps"]
    return found


STEPS = [
    ("stage", "s"), ("model", "m"), ("tool", "look"), ("model", "m"), ("stage", "plan"), ("stage", "check"),
    ("tool", "look"), ("tool", "pay"), ("stage", "order"), ("stage", "e"),
]  # fmt: skip


@pytest.mark.parametrize("route", [RUN, RUNS])
async def test_steps_are_the_calls_of_the_stages_and_the_stages(shop: Shop, route: str) -> None:
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, route)
        steps = await steps_of(client, task_id)
        model = (await client.get(f"/v1/tasks/{task_id}/steps/4")).json()
        tool = (await client.get(f"/v1/tasks/{task_id}/steps/3")).json()
        stage = (await client.get(f"/v1/tasks/{task_id}/steps/9")).json()
        none = await client.get(f"/v1/tasks/{task_id}/steps/11")
    assert [(one["kind"], one["path"].rpartition(":")[2].rpartition("@")[2]) for one in steps] == STEPS
    assert [one["step"] for one in steps] == list(range(1, 11))
    assert [one["role"] for one in model["input"]["messages"]] == ["system", "user", "assistant", "tool"]
    assert model["output"]["content"] == "plan: price of tea" and model["usage"]["input_tokens"] >= 0
    assert (json.loads(tool["input"]["arguments"]), tool["output"]["value"]) == (
        {"item": "tea"},
        "price of tea",
    )
    assert stage["input"]["input"]["amount"] == 3
    assert stage["output"] == {"status": "success", "output": {"paid": 3, "seen": "price of tea"}}
    assert steps[0]["editable"] == ["query", "output", "model", "manifest"]
    assert all(one["started_at"] > 0 and one["duration_ms"] >= 0 for one in steps)
    assert (none.status_code, none.json()["code"]) == (404, "task_not_found")


#: what an unedited fork executes at each step: only what is behind it, and `pay` never again
BEHIND = ["model", "look", "model", "check", "order", "look"]


@pytest.mark.parametrize(("route", "database"), [(RUN, "sqlite"), (RUNS, "sqlite"), (RUNS, "postgres")])
async def test_a_fork_executes_nothing_before_its_step(
    shop: Shop, route: str, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgres":
        store_in(shop.config, request.getfixturevalue("postgres_database"))
    expected = {
        1: BEHIND, 2: BEHIND, 3: BEHIND[1:], 4: BEHIND[2:], 5: BEHIND[3:], 6: BEHIND[3:], 7: BEHIND[4:],
        8: ["order"], 9: ["order"], 10: [],
    }  # fmt: skip
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, route)
        origin = (await client.get(f"/v1/tasks/{task_id}")).json()
        before = await steps_of(client, task_id)
        shop.done()
        for at, done in expected.items():
            fork = await forked(client, task_id, at)
            assert sorted(shop.done()) == sorted(done), at
            assert (fork["status"], fork["output"]) == (origin["status"], origin["output"]), at
            assert fork["forked_from"] == {"task_id": task_id, "step": at, "edit": None}
            steps = await steps_of(client, fork["task_id"])
            assert [one["path"] for one in steps] == [one["path"] for one in before]
            replay = (await client.post(f"/v1/tasks/{fork['task_id']}/replay")).json()
            assert replay["same"], replay
            shop.done()  # a replay executes operations
            again = await forked(client, fork["task_id"], at)  # of a fork
            assert sorted(shop.done()) == sorted(done) and again["output"] == origin["output"], at


async def test_an_operation_of_a_fork_has_the_ids_the_time_and_the_random_numbers_of_the_task(
    shop: Shop,
) -> None:
    """Where its input is the same, also in a fork of the fork and in their replays; else it has new ones."""
    made = "[context.task_id, context.idempotency_key, context.random.random(), context.now]"
    ops = OPS.replace('"amount": 3}', f'"amount": 3, "by": {made}}}')
    ops = ops.replace('return {"paid"', f'return {{**input, "after": {made}, "paid"')
    (shop.folder / "ops.py").write_text(ops)
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUNS)
        origin = (await client.get(f"/v1/tasks/{task_id}")).json()["output"]
        fork = await forked(client, task_id, 6)
        again = await forked(client, fork["task_id"], 5)
        replays = [
            (await client.post(f"/v1/tasks/{one['task_id']}/replay")).json()["same"] for one in (fork, again)
        ]
        late = await forked(client, task_id, 9)
        other = await forked(client, task_id, 5, output="another plan")
        asked = await forked(client, task_id, 1, query="coffee")  # which leads to the same plan
        replays.append((await client.post(f"/v1/tasks/{other['task_id']}/replay")).json()["same"])
    assert fork["output"] == again["output"] == late["output"] == asked["output"] == origin
    assert replays == [True, True, True]
    for place in ("by", "after"):
        assert not set(origin[place]) & set(other["output"][place])
        assert other["output"][place][0] == other["task_id"]
    assert origin["by"][0] == task_id


async def test_edits_of_a_task(shop: Shop) -> None:
    (shop.folder / "ops.py").write_text(OPS.replace("effect: external", "effect: read"))
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUN)
        shop.done()
        plan = await forked(client, task_id, 5, output="another plan")
        assert shop.done() == ["check", "order", "look"]
        answer = await forked(client, task_id, 4, output="said otherwise")
        assert shop.done() == ["check", "order", "look"]
        seen = await forked(client, task_id, 7, tool_result="9 euros")
        assert shop.done() == ["order"]
        looked = await forked(client, task_id, 3, tool_result="sold out")
        assert sorted(shop.done()) == ["check", "look", "model", "order"]
        calls = {"tool_calls": [{"name": "look", "arguments": {"item": "milk"}}]}
        milk = await forked(client, task_id, 2, output=calls)
        await forked(client, task_id, 1, query="coffee")
        asked = shop.model.requests[-1].messages[1].content
        contents = {
            name: (await client.get(f"/v1/tasks/{fork['task_id']}/steps/5")).json()["output"]["output"]
            for name, fork in {"plan": plan, "answer": answer, "looked": looked, "milk": milk}.items()
        }
        replays = [
            (await client.post(f"/v1/tasks/{fork['task_id']}/replay")).json()
            for fork in (plan, answer, seen, looked, milk)
        ]
        wrong = await client.post(f"/v1/tasks/{task_id}/fork", json={"at": 5, "edit": {"tool_result": 1}})
        two = await client.post(
            f"/v1/tasks/{task_id}/fork", json={"at": 5, "edit": {"output": 1, "model": "x"}}
        )
        none = await client.post(f"/v1/tasks/{task_id}/fork", json={"at": 11})
    assert contents == {
        "plan": "another plan", "answer": "said otherwise", "looked": "plan: sold out",
        "milk": "plan: price of milk",
    }  # fmt: skip
    assert seen["output"] == {"paid": 3, "seen": "9 euros"} and asked == "coffee"
    assert [one["divergence"] for one in replays] == [None] * 5
    assert (wrong.status_code, two.status_code, none.status_code) == (422, 422, 404)
    assert "output, model, manifest can be edited" in wrong.json()["detail"]


async def test_edits_of_what_an_agent_is_asked(shop: Shop) -> None:
    """They hold from the step on, in a replay and in forks of the fork, too."""
    rhyme, brief = {"system": "Answer in rhyme."}, {"message": "Be brief."}
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUN)
        asked: list[list[list[str]]] = []
        for at, edit in ((4, rhyme), (2, rhyme), (4, brief), (2, brief)):
            shop.done()
            fork = (await forked(client, task_id, at, **edit))["task_id"]
            seen = [[one.content for one in request.messages] for request in shop.model.requests]
            replay = (await client.post(f"/v1/tasks/{fork}/replay")).json()
            assert replay["same"], replay
            shop.done()
            await forked(client, fork, 4)
            again = [[one.content for one in request.messages] for request in shop.model.requests]
            assert again == seen[-1:], (at, edit)
            asked.append(seen)
        wrong = await client.post(f"/v1/tasks/{task_id}/fork", json={"at": 4, "edit": {"message": 3}})
    first, second = ["Plan.", "tea"], ["Plan.", "tea", "", "price of tea"]
    assert asked == [
        [["Answer in rhyme.", *second[1:]]],
        [["Answer in rhyme.", "tea"], ["Answer in rhyme.", *second[1:]]],
        [[*second, "Be brief."]],
        [[*first, "Be brief."], [*first, "Be brief.", *second[2:]]],
    ]
    assert wrong.status_code == 422


async def test_values_are_put_into_the_output_of_a_stage(shop: Shop) -> None:
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUN)
        shop.done()
        fork = await forked(client, task_id, 6, state={"plan": "none"})
        assert shop.done() == ["order", "look"]
        stage = (await client.get(f"/v1/tasks/{fork['task_id']}/steps/9")).json()
        replay = (await client.post(f"/v1/tasks/{fork['task_id']}/replay")).json()
        wrong = [
            await client.post(f"/v1/tasks/{task_id}/fork", json={"at": at, "edit": {"state": state}})
            for at, state in ((6, "none"), (5, {"plan": "none"}))  # step 5 has a text
        ]
    assert stage["input"]["input"] == {"plan": "none", "amount": 3} and replay["same"]
    assert [one.status_code for one in wrong] == [422, 422]


async def test_a_new_call_with_an_effect_waits_for_a_person(shop: Shop) -> None:
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUN)
        shop.done()
        body = {"at": 6, "edit": {"output": {"amount": 5}}}
        fork = (await client.post(f"/v1/tasks/{task_id}/fork", json=body)).json()["task_id"]
        while not (task := (await client.get(f"/v1/tasks/{fork}")).json())["waiting_for"]:
            pass
        assert shop.done() == ["order", "look"]
        question = task["waiting_for"][0]
        assert (question["kind"], question["name"], question["arguments"]) == (
            "approval",
            "pay",
            {"amount": 5},
        )
        await client.post(f"/v1/tasks/{fork}/decide", json={"decision": "approve"})
        ended = await until(client, fork, *ENDED)
    assert ended["output"]["paid"] == 5 and shop.done() == ["order", "look", "pay"][2:]


async def test_another_model_and_the_present_manifests(shop: Shop) -> None:
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUN)
        fork = await forked(client, task_id, 2, model="openai_compat:large")
        manifest = (await client.get(f"/v1/tasks/{fork['task_id']}/manifest")).json()
    (shop.folder / "workflow.yaml").write_text(
        WORKFLOW.replace(
            "kind: deterministic, role: linear, context: none, op: 'ops:order'",
            "timeout_s: 9, kind: deterministic, role: linear, context: none, op: 'ops:order'",
        )
    )
    async with client_of(shop.runtime()) as client:
        shop.done()
        same = await forked(client, task_id, 9)
        current = await forked(client, task_id, 9, manifest="current")
        texts = [
            (await client.get(f"/v1/tasks/{one['task_id']}/manifest")).json()["files"]["workflow.yaml"]
            for one in (same, current)
        ]
    (shop.folder / "workflow.yaml").write_text(WORKFLOW.replace("check", "verify"))
    (shop.folder / "ops.py").write_text(OPS.replace("check", "verify"))
    async with client_of(shop.runtime()) as client:
        body = {"at": 9, "edit": {"manifest": "current"}}
        other = await client.post(f"/v1/tasks/{task_id}/fork", json=body)
    assert '"adapter":"openai_compat","model":"large"' in manifest["files"]["providers.yaml"]
    assert ["timeout_s" in text for text in texts] == [False, True]
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


async def test_signed_thoughts_of_a_model_are_shown_by_no_route_of_a_task(shop: Shop) -> None:
    """They are in the record and go back to their provider; a case is reproduced without them."""
    thoughts = '["scripted/small","SECRET"]'

    def model(request: CompletionRequest) -> Any:
        sent = [call.kept for one in request.messages for call in one.tool_calls]
        return (
            f"plan {sent == [thoughts]}" if sent else ToolCall("c1", "look", '{"item": "tea"}', kept=thoughts)
        )

    runtime = runtime_with(shop.config, model)
    async with client_of(runtime) as client:
        task_id = await started(client, RUNS)
        paths = [f"/v1/tasks/{task_id}{one}" for one in ("", "/events", "/trace", "/artifacts", "/steps/2")]
        shown = [(await client.get(path)).text for path in paths]
        case = (await client.post(f"/v1/runs/{task_id}/case", json={})).json()
        recording = Recording.from_json(case["recording"])
        again = await runtime.workflows.replays.replay_recording("shop", recording)
        stored = str(await (await runtime.workflows.store()).records(task_id))
    assert [text for text in (*shown, str(case)) if "SECRET" in text] == []
    assert "SECRET" in stored and "plan True" in shown[0] + shown[2]
    assert again["same"], again


async def test_tasks_are_compared_step_by_step(shop: Shop) -> None:
    async with client_of(shop.runtime()) as client:
        task_id = await started(client, RUN)
        same = (await forked(client, task_id, 6))["task_id"]
        other = (await forked(client, task_id, 4, output="said otherwise"))["task_id"]
        query = {"a": task_id, "b": same, "c": other}
        found = (await client.get("/v1/tasks/compare", params=query)).json()
    assert [one["equal"] for one in found["steps"]] == [True] * 3 + [False] * 3 + [True, True, False, True]
    assert found["divergence"]["kind"] == "model" and list(found["divergence"]["diff"]) == ["c"]
    assert [one["model_calls"] for one in found["runs"].values()] == [2, 2, 2]
    assert found["runs"]["c"]["output"] == {"paid": 3, "seen": "price of tea"}


async def test_a_task_with_clones_and_merges_is_forked_at_every_step(tmp_path: Path) -> None:
    calls: list[CompletionRequest] = []

    def counted(request: CompletionRequest) -> Any:
        calls.append(request)
        return lawyer(request)

    async with client_of(runtime_with(sample(tmp_path / "config"), counted)) as client:
        body = {"input": {"text": CONTRACT}}
        task = (await client.post("/v1/workflows/contract_review/run", json=body)).json()
        steps = await steps_of(client, task["task_id"])
        models = [one["step"] for one in steps if one["kind"] == "model"]
        for step in steps[:: max(len(steps) // 12, 1)]:
            calls.clear()
            fork = await forked(client, task["task_id"], step["step"])
            assert (fork["status"], fork["output"]) == (task["status"], task["output"]), step
            assert len(calls) == sum(one >= step["step"] for one in models), step


async def test_tasks_of_others_are_not_found(shop: Shop) -> None:
    runtime = shop.runtime()
    async with client_of(runtime) as client:
        task_id = await started(client, RUN)
        tasks, other = runtime.workflows, Viewer("default", "somebody")
        for viewer in (other, Viewer("another", None)):
            for work in (
                tasks.fork(task_id, viewer, 2, Edit("output", "x"), CallerContext()),
                tasks.tasks.listed_steps(task_id, viewer),
                tasks.tasks.step_content(task_id, 2, viewer),
                tasks.tasks.compare([task_id, task_id], viewer),
            ):
                with pytest.raises(TaskNotFound):
                    await work


HELPER = """apiVersion: astromesh/v1
kind: Agent
metadata: {name: helper}
spec:
  identity: {description: Looks things up.}
  model: {primary: {provider: scripted, model: small}}
  prompts: {system: Help.}
  tools: [{name: look, type: internal, function: 'tests.integration.sample_tools:price', effect: read}]
"""
#: the steps of a Task whose stage `plan` is a run of that agent
RUN_STEPS = [
    "stage", "rule", "prompt", "model", "tool", "node", "model", "node", "rule", "node", "stage", "stage",
]  # fmt: skip


@pytest.fixture
def helped(shop: Shop) -> Shop:
    """The workflow with an agent of the runtime in place of the planner, and without what follows."""
    (shop.config / "agents").mkdir()
    (shop.config / "agents" / "helper.agent.yaml").write_text(HELPER)
    for name in ("agents.yaml", "tools.yaml", "providers.yaml"):
        (shop.folder / name).unlink()
    (shop.folder / "workflow.yaml").write_text(
        """version: 1
workflow: shop
nodes:
  - {id: s, kind: deterministic, role: start, default: true, context: none}
  - {id: plan, kind: agent, agent: helper, role: linear, context: none}
  - {id: e, kind: deterministic, role: exit, context: none}
edges: [{from: s, to: plan}, {from: plan, to: e}]
"""
    )
    return shop


@pytest.mark.parametrize("route", [RUN, RUNS])
async def test_the_run_of_a_runtime_agent_is_forked_at_each_of_its_steps(helped: Shop, route: str) -> None:
    async with client_of(helped.runtime()) as client:
        task_id = await started(client, route)
        steps = await steps_of(client, task_id)
        assert [step["kind"] for step in steps] == RUN_STEPS
        output = (await client.get(f"/v1/tasks/{task_id}")).json()["output"]
        for step in steps:
            helped.done()
            fork = await forked(client, task_id, step["step"])
            behind = [one["kind"] for one in steps if one["step"] >= step["step"]]
            assert (fork["output"], helped.done()) == (output, ["model"] * behind.count("model"))
            again = await steps_of(client, fork["task_id"])
            assert [one["kind"] for one in again] == RUN_STEPS
            query = {"a": task_id, "b": fork["task_id"]}
            compared = (await client.get("/v1/tasks/compare", params=query)).json()
            assert compared["divergence"] is None
        content = (await client.get(f"/v1/tasks/{task_id}/steps/7")).json()
    assert [one["role"] for one in content["input"]["messages"]] == ["system", "user", "assistant", "tool"]
    editable = {step["step"]: step["editable"] for step in steps}
    assert editable[2] == ["model", "manifest"]
    assert editable[4] == ["output", "message", "system", "model", "manifest"]


@pytest.mark.parametrize(
    ("at", "edit", "answer", "calls"),
    [
        (4, {"output": "Said so."}, "Said so.", 0),
        (5, {"tool_result": "12 EUR"}, "plan: 12 EUR", 1),
        (7, {"output": "Edited."}, "Edited.", 0),
        (8, {"output": "Of the node."}, "Of the node.", 0),
        (10, {"output": "Of the agent."}, "Of the agent.", 0),
    ],
)
async def test_edits_in_the_run_of_a_runtime_agent(
    helped: Shop, at: int, edit: dict[str, Any], answer: str, calls: int
) -> None:
    async with client_of(helped.runtime()) as client:
        task_id = await started(client, RUNS)
        helped.done()
        fork = await forked(client, task_id, at, **edit)
        assert (fork["output"], helped.done()) == (answer, ["model"] * calls)
        last = (await steps_of(client, fork["task_id"]))[-1]["step"]
        again = await forked(client, fork["task_id"], last)  # a fork of the fork keeps the edit
    assert again["output"] == answer


async def test_a_replay_makes_the_run_of_a_runtime_agent_again(helped: Shop) -> None:
    """With the time that it had, as a fork does; a difference is named with both values."""
    agent, clock = helped.config / "agents" / "helper.agent.yaml", LaterClock()
    agent.write_text(HELPER.replace("system: Help.", 'system: "Help on {{ current_date }}."'))
    async with client_of(runtime_with(helped.config, helped.model, clock=clock)) as client:
        tasks = [await started(client, route) for route in (RUN, RUNS)]
        clock.later = 3 * 86_400.0
        tasks += [(await forked(client, task_id, 7))["task_id"] for task_id in tasks]
        prompts = {request.messages[0].content for request in helped.model.requests}
        helped.done()
        replays = [(await client.post(f"/v1/tasks/{task_id}/replay")).json() for task_id in tasks]
        assert [replay["divergence"] for replay in replays] == [None] * 4
    agent.write_text(HELPER.replace("system: Help.", "system: Do."))
    async with client_of(helped.runtime()) as client:
        found = (await client.post(f"/v1/tasks/{tasks[0]}/replay")).json()["divergence"]
    assert len(prompts) == 1 and helped.done() == []
    assert (found["stage"], found["what"], found["present"]) == ("plan", "run", '"Do."')
    assert "messages[0].content" in found["place"] and found["recorded"].startswith('"Help on ')


async def test_what_a_runtime_agent_is_asked_is_edited(helped: Shop) -> None:
    async with client_of(helped.runtime()) as client:
        task_id = await started(client, RUNS)
        helped.model.requests.clear()
        await forked(client, task_id, 3, system="Be brief.")
        assert [one.messages[0].content for one in helped.model.requests] == ["Be brief.", "Be brief."]
        helped.model.requests.clear()
        await forked(client, task_id, 7, message="In euros, please.")
        (request,) = helped.model.requests
        assert request.messages[-1].content == "In euros, please."
        helped.model.requests.clear()
        other = await forked(client, task_id, 3, model="embedded:tiny")
        assert (other["status"], helped.model.requests) == ("success", [])
        wrong = await client.post(f"/v1/tasks/{task_id}/fork", json={"at": 4, "edit": {"query": "x"}})
    assert (wrong.status_code, "output, message, system" in wrong.json()["detail"]) == (422, True)


@pytest.mark.parametrize("route", [RUN, RUNS])
async def test_what_the_rules_of_a_runtime_agent_hide_is_in_no_step_of_its_task(
    helped: Shop, route: str
) -> None:
    """Neither shown nor stored."""
    agent = helped.config / "agents" / "helper.agent.yaml"
    rules = "  guardrails: {output: [{type: pii_detection, action: redact}]}\n"
    agent.write_text(HELPER + rules)

    def model(request: CompletionRequest) -> Any:
        if request.messages[-1].role == "tool":
            return "Ask ann@example.com"
        return ToolCall("c1", "look", json.dumps({"item": "ann@example.com " * 400}))

    runtime = runtime_with(helped.config, model)
    async with client_of(runtime) as client:
        task_id = await started(client, route)
        numbers = [step["step"] for step in await steps_of(client, task_id)]
        steps = [(await client.get(f"/v1/tasks/{task_id}/steps/{n}")).text for n in numbers]
        compared = (await client.get("/v1/tasks/compare", params={"a": task_id, "b": task_id})).text
        stored = str(await (await runtime.workflows.store()).records(task_id))
        with closing(sqlite3.connect(helped.config.parent / "data" / "astromesh.db")) as database:
            rows = database.execute("SELECT content FROM task_payloads").fetchall()
        stored += "".join(zlib.decompress(content).decode() for (content,) in rows)
        [run] = (await client.get("/v1/runs?agent=helper")).json()["runs"]
        nested = await client.get(f"/v1/runs/{run['run_id']}/steps")
    assert any("price of [EMAIL]" in step for step in steps)
    assert "ann@" not in "".join([*steps, compared, stored])
    assert (nested.status_code, nested.json()["code"]) == (409, "not_recorded")
    assert task_id in nested.json()["detail"]


async def test_what_the_rules_of_a_runtime_agent_hide_leaves_a_question_when_its_task_ends(
    helped: Shop,
) -> None:
    """Whoever decides sees it, and nobody else."""
    rules = "  guardrails: {output: [{type: pii_detection, action: redact}]}\n"
    asking = HELPER.replace("effect: read", "effect: write, approval: required")
    (helped.config / "agents" / "helper.agent.yaml").write_text(asking + rules)
    address = "ann@example.com " * 400

    def model(request: CompletionRequest) -> Any:
        if request.messages[-1].role == "tool":
            return request.messages[-1].content
        return ToolCall("c1", "look", json.dumps({"item": address}))

    runtime = runtime_with(helped.config, model)
    async with client_of(runtime) as client:
        task_id = (await client.post(RUNS, json={"input": "tea"})).json()["task_id"]
        async with asyncio.timeout(60):
            while not (open_ones := (await client.get("/v1/approvals")).json()["approvals"]):
                await asyncio.sleep(0.01)
        decision = {"decision": "approve", "note": "as ann@example.com wants"}
        await client.post(f"/v1/tasks/{task_id}/decide", json=decision)
        task = await until(client, task_id, *ENDED)
        store = await runtime.workflows.store()
        [wait] = await store.waits(task_id)
        stored = f"{wait} {await store.records(task_id)}"
        with closing(sqlite3.connect(helped.config.parent / "data" / "astromesh.db")) as database:
            rows = database.execute("SELECT content FROM task_payloads").fetchall()
        stored += "".join(zlib.decompress(content).decode() for (content,) in rows)
    assert open_ones[0]["arguments"] == {"item": address}
    assert "price of [EMAIL]" in task["output"] and "ann@" not in f"{task} {stored}"
    assert wait.question["arguments"]["item"].startswith("[EMAIL]")
    assert wait.answer is not None and wait.answer["note"] == "as [EMAIL] wants"


@pytest.mark.parametrize("isolation", ["", ", isolation: process"])
async def test_a_replay_finds_the_ids_the_time_and_the_random_numbers_of_its_task(
    tmp_path: Path, isolation: str
) -> None:
    folder = small(tmp_path / "config", op="named") / "workflows" / "small" / "workflow.yaml"
    folder.write_text(folder.read_text().replace("op: 'ops:named'", f"op: 'ops:named'{isolation}"))
    async with client_of(runtime_with(tmp_path / "config")) as client:
        for route in ("run", "runs"):
            task_id = await started(client, f"/v1/workflows/small/{route}")
            replay = (await client.post(f"/v1/tasks/{task_id}/replay")).json()
            assert (replay["same"], replay["output"][0]) == (True, task_id), replay["divergence"]
            first, second = replay["output"][3]
            assert first != second
            fork = await forked(client, task_id, 3)  # behind the stage
            assert fork["output"] == replay["output"]
            again = (await client.post(f"/v1/tasks/{fork['task_id']}/replay")).json()
            assert again["same"], again["divergence"]
