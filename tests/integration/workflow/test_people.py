"""Stages that wait for a person: `human` nodes, and tools that need an approval, over restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from astromesh.api.auth import Auth
from astromesh.testing import ManualClock
from astromesh.types import CallerContext
from astromesh.workflow.project import check_folder
from tests.integration.agents_folder import client_of
from tests.integration.workflow.folders import ENDED, idle, runtime_with, until

PATIENCE = 60.0
RUNS = "/v1/workflows/desk/runs"

OPS = """
import pathlib

def double(input, context, tools):
    return input * 2

async def order(input, context, tools):
    first = await tools.call("look", item=input["item"])
    answer = await tools.call("pay", amount=input["amount"], log=input["log"])
    return {"ok": answer.ok, "value": answer.value, "content": answer.content, "price": first.value}

def look(item):
    return f"price of {item}"

def pay(amount, log):
    with open(log, "a") as file:
        file.write(f"{amount}\\n")
    return amount
"""
TOOLS = """tools:
  - {id: look, type: python, entrypoint: 'ops:look', effect: read}
  - id: pay
    type: python
    entrypoint: 'ops:pay'
    approval: APPROVAL
    schema_in: {type: object, properties: {amount: {type: number}, log: {type: string}}}
"""
ASK = "human: {instructions: Look at it., schema: {type: object, required: [risk]}, expires_after: 7d}"
SOON = "human: {instructions: Now., expires_after: 0.2, on_expiry: continue}"
LEGAL = ", assignees: ['runs:decide:legal']"
CHOOSE = "human: {instructions: Accept or reject?}"


def desk(config: Path, middle: str, approval: str = "required", extra: str = "", **files: str) -> Path:
    """A workflow `s → x → e`; with a decision `x` it leads to `e` or `no`.

    Args:
        middle: keys of the node x.
    """
    folder = config / "workflows" / "desk"
    folder.mkdir(parents=True)
    (folder / "ops.py").write_text(OPS)
    (folder / "tools.yaml").write_text(TOOLS.replace("APPROVAL", approval))
    decides = "role: decision" in middle
    nodes = [
        "{id: s, kind: deterministic, role: start, default: true, context: none}",
        f"{{id: x, kind: deterministic, context: none, {middle}}}",
        "{id: e, kind: deterministic, role: exit, context: none}",
        *(["{id: no, kind: deterministic, role: exit, context: none}"] if decides else []),
    ]
    edges = ["{from: s, to: x}", "{from: x, to: e, label: accept}" if decides else "{from: x, to: e}"]
    edges += ["{from: x, to: no, label: reject}"] if decides else []
    lines = [f"  - {one}" for one in (*nodes, "EDGES", *edges)]
    text = "\n".join(lines).replace("  - EDGES", "edges:")
    (folder / "workflow.yaml").write_text(f"version: 1\nworkflow: desk\nnodes:\n{text}\n{extra}")
    for stem, content in files.items():
        (folder / f"{stem}.yaml").write_text(content)
    return config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config"


@pytest.fixture(params=("sqlite", "postgres"))
def stored(request: pytest.FixtureRequest, config: Path) -> Path:
    """A configuration folder whose runtimes share one database."""
    config.mkdir()
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
        head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}
        (config / "runtime.yaml").write_text(yaml.safe_dump({**head, "spec": {"storage": {"url": url}}}))
    return config


async def accepted(client: httpx.AsyncClient, input: Any) -> str:
    task_id: str = (await client.post(RUNS, json={"input": input})).json()["task_id"]
    return task_id


async def asked(client: httpx.AsyncClient, count: int = 1) -> list[dict[str, Any]]:
    """The open questions, as soon as there are so many."""
    async with asyncio.timeout(PATIENCE):
        while len(found := (await client.get("/v1/approvals")).json()["approvals"]) != count:
            await asyncio.sleep(0.02)
    return list(found)


async def decided(client: httpx.AsyncClient, task_id: str, **decision: Any) -> httpx.Response:
    return await client.post(f"/v1/tasks/{task_id}/decide", json=decision)


# -- human nodes ---------------------------------------------------------------------------------------------


async def test_a_person_answers_a_stage_in_any_process(stored: Path) -> None:
    """The question is in the list of both processes; the answer comes to the one without the Task."""
    desk(stored, f"role: linear, {ASK}")
    one, two = (client_of(runtime_with(stored)) for _ in range(2))
    async with one as here, two as there:
        task_id = await accepted(here, {"text": "One page NDA"})
        (question,) = await asked(there)
        assert await asked(here) == [question]
        waiting = (await there.get(f"/v1/tasks/{task_id}")).json()
        wrong = await decided(there, task_id, decision="answer", answer={"danger": 5})
        unfit = await decided(there, task_id, decision="approve")
        right = await decided(there, task_id, decision="answer", answer={"risk": 5})
        ended = await until(there, task_id, *ENDED)
        again = await decided(there, task_id, decision="answer", answer={"risk": 6})
        events = (await there.get(f"/v1/tasks/{task_id}/events")).text
    assert (question["task_id"], question["workflow"], question["stage"]) == (task_id, "desk", "x")
    assert (question["kind"], question["question"], question["arguments"]) == (
        "human", "Look at it.", {"text": "One page NDA"},
    )  # fmt: skip
    assert question["expires_at"] - question["asked_at"] == pytest.approx(7 * 86_400)
    assert [one["id"] for one in waiting["waiting_for"]] == [question["id"]]
    assert waiting["stages"] == [{"task": "", "stage": "x", "state": "waiting"}]
    assert waiting["status"] == "running"
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input")
    assert unfit.status_code == 422 and "passes the input on" in unfit.json()["detail"]
    assert right.status_code == 200 and "risk" in wrong.json()["detail"]
    assert (ended["status"], ended["output"]) == ("success", {"risk": 5})
    assert (again.status_code, again.json()["code"]) == (409, "not_waiting")
    (decision,) = ended["decisions"]
    assert (decision["decision"]["decision"], decision["decision"]["by"]) == ("answer", "anonymous")
    assert events.count("event: stage.waiting") == events.count("event: stage.decided") == 1


@pytest.mark.parametrize(
    ("answer", "path", "output"),
    [
        ("accept", ["s", "x", "e"], 21),
        ("reject", ["s", "x", "no"], 21),
        ({"selected_edge": "reject", "output": "too dear"}, ["s", "x", "no"], "too dear"),
    ],
)
async def test_the_answer_to_a_decision_is_its_edge(
    config: Path, answer: Any, path: list[str], output: Any
) -> None:
    async with client_of(runtime_with(desk(config, f"role: decision, {CHOOSE}"))) as client:
        task_id = await accepted(client, 21)
        (question,) = await asked(client)
        wrong = [
            await decided(client, task_id, decision="answer", answer="perhaps"),
            await decided(client, task_id, decision="approve"),
        ]
        await decided(client, task_id, decision="answer", answer=answer, question=question["id"])
        ended = await until(client, task_id, *ENDED)
        replayed = (await client.post(f"/v1/tasks/{task_id}/replay")).json()
    assert question["edges"] == ["accept", "reject"]
    assert [one.status_code for one in wrong] == [422, 422]
    assert (ended["metadata"]["path"], ended["output"]) == (path, output)
    assert replayed["same"], replayed["divergence"]


async def test_an_approved_input_is_the_output_and_a_refusal_fails_the_stage(config: Path) -> None:
    async with client_of(runtime_with(desk(config, f"role: linear, {CHOOSE}"))) as client:
        ids = [await accepted(client, n) for n in (1, 2)]
        await asked(client, 2)
        for task_id, word in zip(ids, ("approve", "deny"), strict=True):
            await decided(client, task_id, decision=word)
        first, second = [await until(client, task_id, *ENDED) for task_id in ids]
    assert (first["status"], first["output"]) == ("success", 1)
    assert (second["status"], second["error"]["code"]) == ("failure", "denied")


@pytest.mark.parametrize(
    ("middle", "outcome"),
    [
        ("role: linear, human: {instructions: Now., expires_after: 0.2}", ("failure", "expired")),
        (f"role: linear, {SOON}", (7, ["e"])),
        (f"role: decision, default_edge: reject, {SOON}", (7, ["no"])),
    ],
)
async def test_a_question_that_nobody_answers_in_time(config: Path, middle: str, outcome: Any) -> None:
    async with client_of(runtime_with(desk(config, middle))) as client:
        ended = await until(client, await accepted(client, 7), *ENDED)
        assert (await client.get("/v1/approvals")).json()["approvals"] == []
    if ended["status"] == "failure":
        assert (ended["status"], ended["error"]["code"]) == outcome
    else:
        assert (ended["output"], ended["metadata"]["path"][-1:]) == outcome


async def test_a_task_without_a_row_cannot_wait(config: Path) -> None:
    async with client_of(runtime_with(desk(config, f"role: linear, {CHOOSE}"))) as client:
        answer = (await client.post("/v1/workflows/desk/run", json={"input": 1})).json()
    assert (answer["status"], answer["error"]["code"]) == ("failure", "not_durable")


async def test_more_tasks_wait_than_may_run_and_none_of_them_counts(config: Path) -> None:
    """Not among those that run, not in the queue, and not against the time of a Task."""
    limits = (
        "scheduler: {max_concurrency: 1, max_queue_size: 1, max_stage_concurrency: 1, task_timeout_s: 1}\n"
    )
    desk(config, f"role: linear, {CHOOSE}", scheduler=limits)
    runtime = runtime_with(config, clock=(clock := ManualClock()))
    async with client_of(runtime) as client:
        ids = []
        for n in range(4):
            ids.append(await accepted(client, n))
            await asked(client, n + 1)
        await idle(runtime)
        clock.advance(1.2)
        for task_id in ids:
            await decided(client, task_id, decision="approve")
        ended = [await until(client, task_id, *ENDED) for task_id in ids]
    assert [(one["status"], one["output"]) for one in ended] == [("success", n) for n in range(4)]


async def test_a_question_outlives_its_process(stored: Path) -> None:
    """The next one has it, with the time that it was asked at; a decision that came between is found."""
    desk(stored, f"role: linear, {ASK}")
    async with client_of(runtime_with(stored)) as client:
        ids = [await accepted(client, n) for n in range(2)]
        before = await asked(client, 2)
    async with client_of(runtime_with(stored)) as client:
        assert await asked(client, 2) == before
        for task_id in ids:
            await decided(client, task_id, decision="answer", answer={"risk": 1})
        ended = [await until(client, task_id, *ENDED) for task_id in ids]
    assert [one["output"] for one in ended] == [{"risk": 1}] * 2


# -- who may answer ------------------------------------------------------------------------------------------


class Callers:
    async def authenticate(self, token: str) -> CallerContext | None:
        usual = {"workflows:run", "workflows:read", "runs:read"}
        known = {
            "ann": CallerContext("ann", "acme", scopes=frozenset({*usual, "runs:decide"})),
            "lawyer": CallerContext("lea", "acme", scopes=frozenset({*usual, "runs:decide:legal"})),
            "other": CallerContext("ben", "acme", scopes=frozenset({*usual, "runs:decide"})),
            "foreign": CallerContext("eve", "else", scopes=frozenset({"admin"})),
        }
        return known.get(token)


def by(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {who}"}


@pytest.mark.parametrize(
    ("assignees", "may", "status"),
    [
        ("", {"ann"}, {"ann": 200, "lawyer": 404, "other": 404, "foreign": 404}),
        (LEGAL, {"lawyer"}, {"ann": 403, "lawyer": 200, "other": 404, "foreign": 404}),
    ],
    ids=["owner", "assignees"],
)  # fmt: skip
async def test_only_those_whom_a_question_is_for_see_and_answer_it(
    config: Path, assignees: str, may: set[str], status: dict[str, int]
) -> None:
    desk(config, f"role: linear, human: {{instructions: Look.{assignees}}}")
    async with client_of(runtime_with(config), Auth((Callers(),))) as client:
        answer = await client.post(RUNS, json={"input": 1}, headers=by("ann"))
        task_id: str = answer.json()["task_id"]
        seen: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            while not seen:
                for who in status:
                    found = (await client.get("/v1/approvals", headers=by(who))).json()["approvals"]
                    seen |= {who for one in found if one["task_id"] == task_id}
        url, body = f"/v1/tasks/{task_id}/decide", {"decision": "approve"}
        order = sorted(status, key=lambda who: status[who], reverse=True)
        answers = {who: await client.post(url, json=body, headers=by(who)) for who in order}
    assert seen == may
    assert {who: one.status_code for who, one in answers.items()} == status
    refused = [one.json()["detail"] for one in answers.values() if one.status_code == 403]
    assert all(detail.endswith("one of these scopes: runs:decide:legal.") for detail in refused)


# -- tools ---------------------------------------------------------------------------------------------------

ORDER = "role: linear, op: 'ops:order', tools: [look, pay], timeout_s: 0.5"


async def test_a_tool_that_needs_an_approval_waits_for_it(stored: Path, tmp_path: Path) -> None:
    """The stage's time limit stands meanwhile; the call is made once, with the arguments of the person."""
    log = tmp_path / "log"
    async with client_of(runtime_with(desk(stored, ORDER))) as client:
        task_id = await accepted(client, {"item": "tea", "amount": 5, "log": str(log)})
        (question,) = await asked(client)
        await asyncio.sleep(0.7)
        assert not log.exists()
        changed = {"amount": 3, "log": str(log)}
        await decided(client, task_id, decision="approve", arguments=changed)
        ended = await until(client, task_id, *ENDED)
        replayed = (await client.post(f"/v1/tasks/{task_id}/replay")).json()
    assert (question["kind"], question["name"], question["arguments"]["amount"]) == ("approval", "pay", 5)
    assert (ended["status"], ended["output"]["value"]) == ("success", 3), ended
    assert log.read_text() == "3\n"
    assert replayed["same"], replayed["divergence"]


async def test_a_refused_call_is_a_failed_tool(config: Path, tmp_path: Path) -> None:
    async with client_of(runtime_with(desk(config, ORDER))) as client:
        task_id = await accepted(client, {"item": "tea", "amount": 5, "log": str(tmp_path / "log")})
        await asked(client)
        await decided(client, task_id, decision="deny")
        ended = await until(client, task_id, *ENDED)
    assert not ended["output"]["ok"] and "denied" in ended["output"]["content"]
    assert not (tmp_path / "log").exists()


async def test_a_rule_selects_the_calls_that_a_person_approves(config: Path, tmp_path: Path) -> None:
    desk(config, ORDER, approval="{when: 'amount > 100'}")
    async with client_of(runtime_with(config)) as client:
        small = {"item": "tea", "amount": 5, "log": str(tmp_path / "log")}
        ended = await until(client, await accepted(client, small), *ENDED)
        await accepted(client, {**small, "amount": 500})
        (question,) = await asked(client)
    assert (ended["output"]["value"], question["arguments"]["amount"]) == (5, 500)


async def test_an_approval_outlives_its_process(stored: Path, tmp_path: Path) -> None:
    """It was given for this call; the stage begins again, and the call is made once."""
    log = tmp_path / "log"
    desk(stored, ORDER)
    async with client_of(runtime_with(stored)) as client:
        task_id = await accepted(client, {"item": "tea", "amount": 5, "log": str(log)})
        before = await asked(client)
    async with client_of(runtime_with(stored)) as client:
        assert await asked(client) == before
        await decided(client, task_id, decision="approve")
        ended = await until(client, task_id, *ENDED)
    assert ended["output"]["value"] == 5 and log.read_text() == "5\n"


async def test_several_questions_of_a_task_are_named(config: Path) -> None:
    config_of = desk(config, f"role: linear, {CHOOSE}")
    file = config / "workflows" / "desk" / "workflow.yaml"
    text = file.read_text()
    text = text.replace(
        "  - {id: e,", "  - {id: b, kind: deterministic, role: branch, context: none}\n"
        "  - {id: m, kind: deterministic, role: merge, context: none}\n  - {id: e,"
    ).replace("edges:\n", "edges:\n  - {from: b, to: x}\n  - {from: b, to: 'x#2'}\n  - {from: x, to: m}\n"
              "  - {from: 'x#2', to: m}\n  - {from: m, to: e}\n")  # fmt: skip
    file.write_text(text.replace("  - {from: s, to: x}\n  - {from: x, to: e}\n", "  - {from: s, to: b}\n"))
    async with client_of(runtime_with(config_of)) as client:
        task_id = await accepted(client, 1)
        questions = await asked(client, 2)
        unnamed = await decided(client, task_id, decision="approve")
        unknown = await decided(client, task_id, decision="approve", question="nothing")
        for n, question in enumerate(questions):
            await decided(client, task_id, decision="answer", answer=n, question=question["id"])
        ended = await until(client, task_id, *ENDED)
    assert (unnamed.status_code, unnamed.json()["code"]) == (409, "conflict")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "approval_not_found")
    assert sorted(ended["output"]) == [0, 1]


# -- manifests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("middle", "rule"),
    [
        (f"role: linear, op: 'ops:double', {CHOOSE}", "human_and_more"),
        (f"role: linear, tools: [look], {CHOOSE}", "human_and_more"),
        ("role: decision, human: {instructions: Go., on_expiry: continue}", "cannot_continue"),
    ],
)
def test_faults_of_human_nodes(config: Path, middle: str, rule: str) -> None:
    folder = desk(config, middle) / "workflows" / "desk"
    assert rule in [fault.rule for fault in check_folder(folder).faults]


def test_only_linear_and_decision_nodes_ask(config: Path) -> None:
    folder = desk(config, f"role: linear, {CHOOSE}") / "workflows" / "desk"
    file = folder / "workflow.yaml"
    file.write_text(file.read_text().replace("role: exit,", f"role: exit, {CHOOSE},"))
    assert "wrong_role" in [fault.rule for fault in check_folder(folder).faults]
    schema = json.loads((Path("config") / "schemas" / "workflow" / "workflow.schema.json").read_text())
    assert "human" in json.dumps(schema)
