"""`spec.output_schema`: the answer of a run is a value that fits, or an error that says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from astromesh.config.folder import load
from astromesh.plugins import Plugins
from astromesh.testing import RecordingSink, Reply, ScriptedProvider
from astromesh.types import JsonObject, ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, served, write

SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
ASK = {"query": "How old?", "session_id": "s"}


async def test_a_fitting_answer_becomes_plain_json(tmp_path: Path) -> None:
    provider = ScriptedProvider('Here you are:\n```json\n{"age": 7}\n```')
    async with client_of(runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert provider.requests[0].output_schema == SCHEMA


async def test_a_wrong_answer_is_repaired_once(tmp_path: Path) -> None:
    provider = ScriptedProvider('{"age": "seven"}', '{"age": 7}')
    async with client_of(runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    told = provider.requests[1].messages[-1].content
    assert "age" in told and "integer" in told


async def test_a_second_wrong_answer_is_an_error_that_says_what_was_wrong(tmp_path: Path) -> None:
    provider = ScriptedProvider("no json", '{"age": null}')
    async with client_of(runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (502, "invalid_output")
    assert "integer" in answer.json()["detail"]
    assert len(provider.requests) == 2


async def test_a_tool_loop_is_told_the_schema_from_its_first_call_on(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), '{"age": 7}')
    spec: dict[str, Any] = {"output_schema": SCHEMA, "tools": TOOLS}
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [SCHEMA, SCHEMA]
    assert answer.json()["metadata"]["tools_called"] == ["lookup"]


async def test_the_repair_has_the_tool_calls_and_their_results_and_calls_none(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "It is seven.", '{"age": 7}')
    spec: dict[str, Any] = {"output_schema": SCHEMA, "tools": TOOLS}
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    first, second, repaired = provider.requests
    assert second.messages == repaired.messages[: len(second.messages)]
    assert [m.role for m in repaired.messages[len(first.messages) :]] == [
        "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert (repaired.tools, repaired.tool_choice, repaired.output_schema) == (first.tools, "none", SCHEMA)


async def test_a_stage_on_the_way_answers_freely_and_only_the_last_one_by_the_schema(tmp_path: Path) -> None:
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "Seven, it seems.", '{"age": 7}')
    stages = [{"name": "look", "prompt": "Look it up."}, {"name": "tell", "prompt": "Tell."}]
    spec: dict[str, Any] = {
        "output_schema": SCHEMA,
        "tools": TOOLS,
        "orchestration": {"pattern": "pipeline", "stages": stages},
    }
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [None, None, SCHEMA]


async def test_an_answer_of_roles_is_asked_for_by_the_schema_before_it_is_repaired(tmp_path: Path) -> None:
    """Two branches with roles are told no schema: who joins them is, and may be mended once."""
    provider = ScriptedProvider("Seven.", "Eight.", '{"age": "seven"}', '{"age": 7}')
    model = {"provider": "scripted", "model": "test-model"}
    spec: dict[str, Any] = {
        "output_schema": SCHEMA,
        "model": {"primary": model, "roles": {"a": {"primary": model}, "b": {"primary": model}}},
        "orchestration": {"pattern": "parallel_fan_out", "branches": [{"role": "a"}, {"role": "b"}]},
    }
    async with client_of(runtime_of(write(tmp_path, manifest(**spec)), provider)) as client:
        answer = await client.post("/v1/agents/helper/run", json=ASK)
    assert json.loads(answer.json()["response"]) == {"age": 7}
    assert [r.output_schema for r in provider.requests] == [None, None, SCHEMA, SCHEMA]
    asked, repaired = provider.requests[2:]
    assert "Seven." in asked.messages[-2].content
    assert "Eight." in asked.messages[-2].content
    assert asked.messages == repaired.messages[: len(asked.messages)]


# -- under the output rules ----------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "phone": {"type": ["string", "integer"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
    },
}
PII = {"type": "pii_detection", "action": "redact"}


def words(action: str, **more: Any) -> JsonObject:
    return {"type": "content_filter", "forbidden_keywords": ["secret"], "action": action, **more}


async def under_rules(tmp_path: Path, value: Any, *rules: JsonObject, schema: JsonObject = PERSON) -> Any:
    """What the caller gets where the model's answer is this value."""
    guardrails = {"output": list(rules)}
    folder = write(tmp_path, manifest(output_schema=schema, guardrails=guardrails))
    async with client_of(runtime_of(folder, ScriptedProvider(json.dumps(value)))) as client:
        return await client.post("/v1/agents/helper/run", json=ASK)


async def test_output_rules_work_inside_the_texts_of_a_value(tmp_path: Path) -> None:
    """What is around them stays JSON, whatever the rule replaces."""
    value = {"name": 'The "secret"\nof ann@example.com', "tags": ["a", "secret"]}
    answer = (await under_rules(tmp_path, value, PII, words("redact"))).json()
    assert json.loads(answer["response"]) == answer["output"]
    assert "secret" not in answer["response"] and "ann@" not in answer["response"]
    assert answer["output"]["name"].startswith('The "')
    assert answer["output"]["tags"][0] == "a"
    acted = [(g["type"], g["action"], g["count"]) for g in answer["metadata"]["guardrails"]]
    assert sorted(acted) == [("content_filter", "redact", 2), ("pii_detection", "redact", 1)]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"name": "Ann", "phone": 4111111111111111}, "hides a number"),
        ({"name": "Ann", "secret": 1}, "hides a key"),
        ({"name": "Ann", "tags": ["secret ones"]}, "does not fit its schema"),
    ],
)
async def test_what_rules_cannot_hide_inside_texts_is_an_error(tmp_path: Path, value: Any, why: str) -> None:
    failed = await under_rules(tmp_path, value, PII, words("redact"))
    assert (failed.status_code, failed.json()["code"]) == (502, "invalid_output")
    assert why in failed.json()["detail"]
    assert "4111111111111111" not in failed.text and "secret" not in failed.text


async def test_a_value_that_a_rule_blocks_is_an_error_with_its_message(tmp_path: Path) -> None:
    rule = words("block", safe_response="I cannot say that.")
    failed = await under_rules(tmp_path, {"name": "my secret"}, rule)
    assert (failed.status_code, failed.json()["code"]) == (422, "guardrail_blocked")
    assert (failed.json()["guardrail"], failed.json()["detail"]) == ("content_filter", "I cannot say that.")


@pytest.mark.parametrize("value", [{"name": "A long name of somebody"}, True])
async def test_an_answer_beyond_its_cost_limit_is_an_error_and_no_piece_of_json(tmp_path, value) -> None:
    limit = {"type": "cost_limit", "max_tokens_per_turn": 1, "action": "block"}
    failed = await under_rules(tmp_path, value, limit, schema={})
    assert (failed.status_code, failed.json()["code"]) == (422, "guardrail_blocked")


def test_a_rule_that_cuts_answers_is_refused_beside_a_schema(tmp_path: Path) -> None:
    for number, rule in enumerate(({"action": "truncate"}, {}, {"action": "block"})):
        limit = {"type": "cost_limit", "max_tokens_per_turn": 100, **rule}
        folder = write(
            tmp_path / str(number),
            manifest(
                output_schema=SCHEMA,
                guardrails={"output": [limit]},
                model={"primary": {"provider": "embedded"}},
            ),
        )
        faults = [str(fault) for fault in load(folder, env={}, resolver=Plugins()).every_fault()]
        assert len(faults) == (number < 2)
        assert all("truncate does not work with output_schema" in fault for fault in faults)


# -- refusals and empty answers ------------------------------------------------------------------------------

REFUSAL = Reply("I can't help with that.", finish_reason="content_filter")
MEMORY = {"conversational": {"backend": "sqlite"}}


@pytest.mark.parametrize("repaired", [False, True])
async def test_a_refusal_under_a_schema_is_422_and_not_paid_twice(tmp_path: Path, repaired: bool) -> None:
    provider = ScriptedProvider(*(["no json"] if repaired else []), REFUSAL)
    folder = write(tmp_path, manifest(output_schema=SCHEMA, memory=MEMORY))
    async with client_of(runtime_of(folder, provider)) as client:
        for headers in ({"idempotency-key": "k"}, {"idempotency-key": "k"}):
            failed = await client.post("/v1/agents/helper/run", json=ASK, headers=headers)
            assert (failed.status_code, failed.json()["code"]) == (422, "refused")
            assert failed.json()["finish_reason"] == "content_filter"
        history = await client.get("/v1/agents/helper/sessions/s")
    assert len(provider.requests) == 1 + repaired
    assert history.status_code == 404


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_without_a_schema_is_the_answer(tmp_path: Path, streamed: bool) -> None:
    folder = write(tmp_path, manifest())
    async with runtime_of(folder, ScriptedProvider(REFUSAL)) as runtime:
        answer = await runtime.run("helper", "How?", "s", sinks=[RecordingSink()] if streamed else [])
    assert (answer.response, answer.metadata["stop_reason"]) == (REFUSAL.content, "refused")
    assert answer.metadata["finish_reason"] == "content_filter"


@pytest.mark.parametrize("reply", ["", "  \n", Reply("", finish_reason="length")])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("schema", [None, SCHEMA])
async def test_an_empty_answer_is_an_error_and_stores_nothing(
    tmp_path: Path, reply: Any, accept: str, schema: Any
) -> None:
    folder = write(tmp_path, manifest(memory=MEMORY, **({"output_schema": schema} if schema else {})))
    async with client_of(runtime_of(folder, ScriptedProvider(reply))) as client:
        failed = await client.post("/v1/agents/helper/run", json=ASK, headers={"accept": accept})
        history = await client.get("/v1/agents/helper/sessions/s")
    if accept == "application/json":
        assert (failed.status_code, failed.json()["code"]) == (502, "empty_answer")
    else:
        last = failed.text.strip().split("\n\n")[-1]
        assert "event: run.failed" in last and '"empty_answer"' in last
    assert history.status_code == 404


# -- the value itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"age": 7}, [1, "a"], None, "text", 0])
async def test_the_value_is_in_the_answer_in_its_event_and_in_its_row(tmp_path: Path, value: Any) -> None:
    folder = write(tmp_path, manifest(output_schema={}))
    runtime = runtime_of(folder, ScriptedProvider(json.dumps(value), repeat=True))
    async with client_of(runtime) as client:
        answer = (await client.post("/v1/agents/helper/run", json=ASK)).json()
        row = (await client.get(f"/v1/runs/{answer['run_id']}")).json()
        streamed = await client.post(
            "/v1/agents/helper/run", json=ASK, headers={"accept": "text/event-stream"}
        )
        accepted = (await client.post("/v1/agents/helper/runs", json=ASK)).json()
        events = (await client.get(f"/v1/runs/{accepted['run_id']}/events")).text
        durable = (await client.get(f"/v1/runs/{accepted['run_id']}")).json()
    assert json.loads(answer["response"]) == value
    for found in (answer, row["result"], durable["result"], last_data(streamed.text), last_data(events)):
        assert "output" in found and found["output"] == value


def last_data(text: str) -> Any:
    fields = dict(line.split(": ", 1) for line in text.strip().split("\n\n")[-1].splitlines())
    assert fields["event"] == "run.completed"
    return json.loads(fields["data"])


async def test_an_answer_without_a_schema_has_no_value(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider('{"age": 7}'))) as client:
        assert "output" not in (await client.post("/v1/agents/helper/run", json=ASK)).json()


async def test_a_socket_gets_the_value_with_its_last_frame(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest(output_schema=SCHEMA)), ScriptedProvider('{"age": 7}'))
    async with served(runtime) as url, connect(f"ws://{url}/v1/ws/agent/helper", open_timeout=60) as socket:
        await socket.send(json.dumps(ASK))
        frame: JsonObject = {}
        while not frame.get("done"):
            frame = json.loads(await socket.recv())
    assert (frame["type"], frame["output"]) == ("done", {"age": 7})


async def test_a_budget_that_ends_a_run_before_its_value_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(output_schema=SCHEMA, budgets={"per_run": {"tokens": 5}}))
    async with client_of(runtime_of(folder, ScriptedProvider())) as client:
        failed = await client.post("/v1/agents/helper/run", json=ASK)
    assert (failed.status_code, failed.json()["code"]) == (429, "budget_exhausted")
    assert "per_run.tokens" in failed.json()["detail"]
