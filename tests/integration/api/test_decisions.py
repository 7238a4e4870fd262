"""Who may run an agent may not decide for its runs, whichever door the decision comes through."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.api.test_mcp_publish import DECIDER, MODERN, call_of, server, token
from tests.integration.durable.test_durable_runs import asks, lookup, tool
from tests.integration.mcp_servers import until
from tests.unit.access.tokens import SECRET

CAREFUL = tool(effect="write", approval="required")
RUNNER = "agents:run"
AGENT = "/v1/agents/helper"


def bearer(scope: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(scope)}"}


class Door:
    """Starts a run that waits for an approval, then approves with a scope."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.before: Any = None
        self.status = 0

    async def post(self, path: str, body: Any, scope: str, **headers: str) -> Any:
        answer = await self.http.post(path, json=body, headers={**bearer(scope), **headers})
        streams = answer.headers["content-type"].startswith("text/event-stream")
        self.status = answer.status_code
        return [orjson.loads(x[6:]) for x in answer.text.split("\n") if x[:6] == "data: "] if streams else (
            answer.json()
        )  # fmt: skip


class Rest(Door):
    async def start(self) -> None:
        self.before = await self.post(f"{AGENT}/runs", {"query": "Hi", "session_id": "s"}, RUNNER)

    async def approve(self, scope: str) -> None:
        path = f"/v1/runs/{self.before['run_id']}/resume"
        await self.post(path, {"decision": "approve"}, scope)


class Agui(Door):
    async def start(self) -> None:
        body = {"threadId": "t", "runId": "r1", "messages": [{"id": "m", "role": "user", "content": "Hi"}]}
        self.before = (await self.post(f"{AGENT}/agui", body, RUNNER))[-1]

    async def approve(self, scope: str) -> None:
        (one,) = self.before["outcome"]["interrupts"]
        resume = [{"interruptId": one["id"], "status": "resolved", "payload": {"approved": True}}]
        body = {"threadId": "t", "runId": f"r-{scope}", "messages": [], "resume": resume}
        await self.post(f"{AGENT}/agui", body, scope)


class A2A(Door):
    """HTTP+JSON."""

    async def send(self, scope: str, text: str, **more: str) -> Any:
        message = {"messageId": text + scope, "role": "ROLE_USER", "parts": [{"text": text}], **more}
        return await self.call({"message": message}, scope)

    async def call(self, params: Any, scope: str) -> Any:
        return await self.post(f"{AGENT}/a2a/message:send", params, scope, **{"a2a-version": "1.0"})

    async def start(self) -> None:
        self.before = (await self.send(RUNNER, "Hi"))["task"]

    async def approve(self, scope: str) -> None:
        await self.send(scope, "approve", taskId=self.before["id"])


class JsonRpc(A2A):
    async def call(self, params: Any, scope: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        return (await self.post(f"{AGENT}/a2a", body, scope, **{"a2a-version": "1.0"})).get("result")


class Mcp(Door):
    """The question goes to who may decide, and its answer may come with another token of theirs."""

    async def call(self, scope: str, **more: Any) -> Any:
        headers, body = call_of(MODERN)
        asks_users: Any = {"elicitation": {"form": {}}}
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = asks_users
        body["params"] |= more
        return (await self.post("/mcp", body, scope, **headers))["result"]

    async def start(self) -> None:
        self.before = await self.call(DECIDER)

    async def approve(self, scope: str) -> None:
        (which,) = self.before["inputRequests"]
        yes = {which: {"action": "accept", "content": {"approved": True}}}
        await self.call(scope, requestState=self.before["requestState"], inputResponses=yes)


async def statuses(http: httpx.AsyncClient) -> list[str]:
    runs = (await http.get("/v1/runs", headers=bearer("runs:read"))).json()["runs"]
    return [run["status"] for run in runs]


@pytest.mark.parametrize("kind", [Rest, Agui, A2A, JsonRpc, Mcp])
async def test_a_decision_needs_its_scope_at_every_door(tmp_path: Path, kind: type[Any]) -> None:
    """Without it nothing is decided; with it the tool runs, and the audit log has the decision."""
    server(tmp_path, ScriptedProvider())  # writes runtime.yaml
    folder, used = write(tmp_path, manifest(tools=[CAREFUL])), lookup()
    plugins = {"tools": {"lookup": plugin_of(used)}}
    runtime = runtime_of(folder, ScriptedProvider(asks("a"), "Done."), env={"S": SECRET}, plugins=plugins)
    async with client_of(runtime) as http:
        door = kind(http)

        await door.start()
        while await statuses(http) != ["waiting"]:
            await asyncio.sleep(0.05)
        await door.approve(RUNNER)
        assert (await statuses(http), used.calls) == (["waiting"], [])
        assert door.status == (200 if kind is Mcp else 403)  # an answer of tools/call
        await door.approve(DECIDER)
        await until(lambda: used.calls)
        acts = (await http.get("/v1/audit", headers=bearer("admin"))).json()["acts"]
        await runtime.close(grace=0.0)
    assert used.calls == [{"query": "a"}]
    done = [(act["action"], act["detail"]) for act in acts if act["outcome"] == "done"]
    assert done == [("run.decide", "approve")]


async def test_a_client_answers_its_own_tools_without_the_right_to_decide(tmp_path: Path) -> None:
    server(tmp_path, ScriptedProvider())  # writes runtime.yaml
    call = [ToolCall("c1", "weather", "{}")]
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider(call, "Sunny."), env={"S": SECRET})
    async with client_of(runtime) as http:
        body = {"query": "Hi", "session_id": "s", "client_tools": [{"name": "weather"}]}
        asked = (await http.post(f"{AGENT}/run", json=body, headers=bearer(RUNNER))).json()
        resume = f"/v1/runs/{asked['run_id']}/resume"
        result = {"id": asked["waiting_for"]["id"], "answer": "22"}
        for other in (token(RUNNER, "bob"), token("agents:run:another"), token("runs:read")):
            refused = await http.post(resume, json=result, headers={"authorization": f"Bearer {other}"})
            assert (refused.status_code, "runs:decide" in refused.text) == (403, True)
        assert (await http.post(resume, json=result, headers=bearer(RUNNER))).status_code == 200
        while await statuses(http) != ["completed"]:
            await asyncio.sleep(0.05)
        refused = await http.post(resume, json=result, headers=bearer(RUNNER))
        assert refused.status_code == 403
