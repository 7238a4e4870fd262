"""`/mcp`: the runtime's agents as MCP tools, for who may run them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import orjson
import pytest
import yaml
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestFormParams, ElicitResult

from astromesh.api.app import create_app
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import CallerContext, CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.durable.test_durable_runs import asks, lookup, tool
from tests.integration.mcp_servers import mcp_yaml, serving
from tests.platform.model import MockModel
from tests.unit.access.tokens import AUDIENCE, ISSUER, SECRET, claims, signed


def token(scope: str, sub: str = "alice") -> str:
    return signed(claims(2e9, sub=sub, exp=3e9, iat=None, scope=scope))


@asynccontextmanager
async def session(url: str, bearer: str) -> AsyncIterator[Any]:
    headers = {"authorization": f"Bearer {bearer}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


def server(folder: Path, provider: ScriptedProvider) -> Any:
    auth = {"mode": "jwt", "jwt": {"issuer": ISSUER, "audience": AUDIENCE, "secret_env": "S"}}
    whole = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": {"auth": auth}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(whole))
    memory = {"conversational": {"backend": "in_memory"}}
    write(folder, manifest("helper", memory=memory), manifest("boss", memory=memory))
    return create_app(runtime_of(folder, provider, env={"S": SECRET}))


async def test_a_caller_sees_and_runs_the_agents_of_its_scopes_and_no_others(tmp_path: Path) -> None:
    async with serving(server(tmp_path, ScriptedProvider("fine", repeat=True))) as url:
        async with session(url, token("agents:run:helper")) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
            done = await client.call_tool("helper", {"query": "hi"})
            assert (done.is_error, done.content[0].text) == (False, "fine")
            for name in ("boss", "nobody"):
                refused = await client.call_tool(name, {"query": "hi"})
                assert refused.is_error
                assert "agents:run" in refused.content[0].text
        async with session(url, token("agents:run")) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["boss", "helper"]
            wrong = [
                {},
                {"query": ""},
                {"query": 5},
                {"query": "x", "more": 1},
                {"query": "x", "session_id": 5},
                {"query": "x" * 100_001},
                {"query": "x", "session_id": "s" * 257},
                {"query": "x", "session_id": "a\x00b"},
                {"query": "x", "context": {"a": 1}},
            ]
            for arguments in wrong:
                assert (await client.call_tool("helper", arguments)).is_error


async def test_without_a_token_or_scope_nothing_of_it_is_served(tmp_path: Path) -> None:
    async with serving(server(tmp_path, ScriptedProvider())) as url, httpx2.AsyncClient() as http:
        assert (await http.post(f"{url}/mcp")).status_code == 401
        weak = {"authorization": f"Bearer {token('agents:read')}"}
        assert (await http.post(f"{url}/mcp", headers=weak)).status_code == 403
        for method in ("GET", "DELETE"):
            assert (await http.request(method, f"{url}/mcp", headers=weak)).status_code == 405


async def test_a_session_goes_on_and_belongs_to_its_caller(tmp_path: Path) -> None:
    model = ScriptedProvider("fine", repeat=True)
    async with serving(server(tmp_path, model)) as url:
        async with session(url, token("agents:run")) as client:
            for _ in range(2):
                await client.call_tool("helper", {"query": "hi", "session_id": "s"})
            await client.call_tool("helper", {"query": "hi"})
        async with session(url, token("agents:run", "bob")) as client:
            other = await client.call_tool("helper", {"query": "hi", "session_id": "s"})
    assert [len(request.messages) for request in model.requests] == [2, 4, 2, 2]
    assert not other.is_error  # in a session of their own


async def test_one_runtime_uses_the_agents_of_another(tmp_path: Path) -> None:
    """Client and server of this project, over real HTTP, with the caller's token all the way."""
    near, far = tmp_path / "near", tmp_path / "far"
    far.mkdir()
    async with serving(server(far, ScriptedProvider("from afar", repeat=True))) as url:
        servers = {"far": {"transport": "http", "url": f"{url}/mcp", "forward_identity": True}}
        near.mkdir()

        def asks(request: Any) -> Any:
            last = request.messages[-1]
            if last.role == "tool":
                return last.content
            return [ToolCall("1", "far_helper", '{"query": "hi"}')]

        tools = [{"name": "far", "type": "mcp", "server": "far", "prefix": "far_"}]
        write(near, manifest("asker", tools=tools))
        mcp_yaml(near, **servers)
        runtime = runtime_of(near, ScriptedProvider(asks, repeat=True))
        async with runtime:
            caller = CallerContext("alice", bearer_token=token("agents:run:helper"))
            answer = await runtime.run("asker", "hi", "s", caller=caller)
            nobody = await runtime.run("asker", "hi", "s2")
    assert answer.response == "from afar"
    assert "There is no tool" in nobody.response


def test_who_uses_none_of_it_loads_none_of_it() -> None:
    """The server, the command and the tools of an agent come without the SDK and without cryptography."""
    script = (
        "import sys, astromesh.api.app, astromesh.tools.mcp.toolset, astromesh.tools.kinds.builtin\n"
        "print(sorted({'mcp', 'httpx2', 'jwt', 'cryptography'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# -- clients that leave, and progress ------------------------------------------------------------------------


class Stuck:
    """A model that says `begun` and does not answer."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: CompletionRequest) -> str:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ""


LEGACY, MODERN = "2025-11-25", "2026-07-28"


def call_of(version: str, **meta: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body of a call of `helper` in a version of the protocol."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
    if version == MODERN:
        headers |= {"mcp-method": "tools/call", "mcp-name": "helper"}
        meta |= {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    params = {"name": "helper", "arguments": {"query": "hi"}, "_meta": meta}
    return headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


@pytest.mark.parametrize("version", [LEGACY, MODERN])
@pytest.mark.parametrize("meta", [{}, {"progressToken": 7}], ids=["json", "stream"])
async def test_a_client_that_leaves_cancels_its_run(
    tmp_path: Path, version: str, meta: dict[str, Any]
) -> None:
    """Whatever the version of the protocol, and the form of the answer that the client waits for."""
    stuck = Stuck()
    runtime = runtime_of(write(tmp_path, manifest("helper")), ScriptedProvider(stuck))
    headers, body = call_of(version, **meta)
    async with (
        serving(create_app(runtime)) as url,
        httpx.AsyncClient(timeout=60) as http,
        asyncio.timeout(30),
    ):
        call = asyncio.create_task(http.post(f"{url}/mcp", headers=headers, json=body, timeout=30))
        await stuck.begun.wait()
        call.cancel()
        await stuck.cancelled.wait()
        while runtime.runner.active.count:
            await asyncio.sleep(0.01)
        runs = (await http.get(f"{url}/v1/runs")).json()["runs"]
    assert [run["status"] for run in runs] == ["cancelled"]


async def test_a_run_of_an_agent_that_continues_outlives_its_client(tmp_path: Path) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(request: CompletionRequest) -> str:
        begun.set()
        await gate.wait()
        return "done"

    folder = write(tmp_path, manifest("helper", on_disconnect="continue"))
    runtime = runtime_of(folder, ScriptedProvider(slow))
    headers, body = call_of(LEGACY)
    async with (
        serving(create_app(runtime)) as url,
        httpx.AsyncClient(timeout=60) as http,
        asyncio.timeout(30),
    ):
        call = asyncio.create_task(http.post(f"{url}/mcp", headers=headers, json=body, timeout=30))
        await begun.wait()
        call.cancel()
        await asyncio.wait({call})
        gate.set()
        while not (runs := (await http.get(f"{url}/v1/runs?status=completed")).json()["runs"]):
            await asyncio.sleep(0.01)
    assert runs[0]["result"]["response"] == "done"


async def test_a_call_that_asks_for_progress_hears_of_the_steps(tmp_path: Path) -> None:
    heard: list[tuple[float, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, message))

    tools = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
    provider = ScriptedProvider(ToolCall("c1", "lookup", '{"query": "x"}'), "Found it.")
    runtime = runtime_of(write(tmp_path, manifest("helper", tools=tools)), provider)
    async with serving(create_app(runtime)) as url, session(url, "none") as client:
        done = await client.call_tool("helper", {"query": "hi"}, progress_callback=progress)
    assert [block.text for block in done.content if block.type == "text"] == ["Found it."]
    assert heard == [(1, "Calls lookup."), (2, "Asks the model, step 2.")]


# -- over stdio ----------------------------------------------------------------------------------------------


def command_of(folder: Path) -> StdioServerParameters:
    words = ["-m", "astromesh", "mcp", "--config", str(folder), "--data", str(folder / "data")]
    return StdioServerParameters(command=sys.executable, args=words)


async def test_the_command_serves_the_agents_to_the_program_that_starts_it(tmp_path: Path) -> None:
    """With a question and an answer over its standard streams; what it logs does not disturb them."""
    agent = manifest("helper", model={"primary": {"provider": "embedded", "model": "any"}})
    folder = write(tmp_path, agent)
    async with Client(stdio_client(command_of(folder))) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
        done = await client.call_tool("helper", {"query": "What can you do?"})
    assert (done.is_error, bool(done.content)) == (False, True)


async def test_a_line_over_stdio_that_is_no_message_is_answered(tmp_path: Path) -> None:
    """Also a call whose text has half of a surrogate pair: its sender would wait for ever."""
    call = r'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"helper","arguments":"\ud800"}}'
    lines = {call: 7, '{"jsonrpc":"2.0","id":"a"}': "a", '{"jsonrpc":"2.0",': None, "[1]": None}
    agent = manifest("helper", model={"primary": {"provider": "embedded", "model": "any"}})
    command = command_of(write(tmp_path, agent))
    program = await asyncio.create_subprocess_exec(
        command.command, *command.args, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    answers, _ = await program.communicate("".join(f"{line}\n" for line in lines).encode())
    answered = [orjson.loads(answer) for answer in answers.splitlines()]
    assert [(one["id"], one["error"]["code"]) for one in answered] == [
        (request_id, -32700) for request_id in lines.values()
    ]


async def test_a_cancel_over_stdio_ends_the_run(tmp_path: Path, mock_llm: MockModel) -> None:
    """A client that gives a call up sends `notifications/cancelled`."""
    model = {"provider": "openai", "model": "mock+latency=60000", "endpoint": mock_llm.url, "api_key": "sk-x"}
    folder = write(tmp_path, manifest("helper", model={"primary": model}))
    async with Client(stdio_client(command_of(folder))) as client, asyncio.timeout(30):
        call = asyncio.create_task(client.call_tool("helper", {"query": "hi"}))
        while not mock_llm.stats()["open"]:
            await asyncio.sleep(0.02)
        call.cancel()
        while mock_llm.stats()["open"]:
            await asyncio.sleep(0.02)


async def test_an_agent_with_an_output_schema_answers_with_structured_content(tmp_path: Path) -> None:
    """Its tool says so. MCP describes objects alone."""
    app = server(tmp_path, ScriptedProvider('{"age": 7}', "[7]"))
    age = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}
    ages = {"type": "array", "items": {"type": "integer"}}
    write(tmp_path, manifest("helper", output_schema=age), manifest("boss", output_schema=ages))
    async with serving(app) as url, session(url, token("agents:run")) as client:
        offered = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        assert offered == {"helper": age, "boss": None}
        done = await client.call_tool("helper", {"query": "hi"})
        assert (done.structured_content, done.content[0].text) == ({"age": 7}, '{"age":7}')
        done = await client.call_tool("boss", {"query": "hi"})
        assert (done.structured_content, done.content[0].text) == (None, "[7]")


async def test_a_client_without_a_token_is_told_who_issues_them(tmp_path: Path) -> None:
    async with (
        serving(server(tmp_path, ScriptedProvider("fine"))) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        refused = await http.post("/mcp", json={})
        assert refused.status_code == 401
        where = refused.headers["www-authenticate"].removeprefix('Bearer resource_metadata="').rstrip('"')
        assert where == f"{url}/.well-known/oauth-protected-resource/mcp"
        narrow = await http.post("/mcp", json={}, headers={"authorization": f"Bearer {token('runs:read')}"})
        assert narrow.status_code == 403
        assert 'error="insufficient_scope", scope="agents:run"' in narrow.headers["www-authenticate"]
        told = (await http.get(where)).json()
        assert (told["resource"], told["authorization_servers"]) == (f"{url}/mcp", [ISSUER])
        assert (await http.get("/v1/agents")).headers["www-authenticate"] == "Bearer"


# -- what a run waits for ------------------------------------------------------------------------------------

CAREFUL = tool(effect="write", approval="required")
DECIDER = "agents:run runs:decide"


class Person:
    """The user of a client, who gives these answers."""

    def __init__(self, *answers: ElicitResult) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestFormParams) -> ElicitResult:
        self.asked.append(params.message)
        return self.answers.pop(0)


def says(action: Any, **content: Any) -> ElicitResult:
    return ElicitResult(action=action, content=content or None)


@asynccontextmanager
async def careful(folder: Path, *script: Any) -> AsyncIterator[tuple[str, Any]]:
    """A server whose agent needs approvals, and its tool."""
    server(folder, ScriptedProvider())  # writes runtime.yaml
    write(folder, manifest("helper", tools=[CAREFUL]))
    used = lookup()
    plugins = {"tools": {"lookup": plugin_of(used)}}
    runtime = runtime_of(folder, ScriptedProvider(*script), env={"S": SECRET}, plugins=plugins)
    async with serving(create_app(runtime)) as url:
        yield url, used
        await runtime.close(grace=0.0)


@asynccontextmanager
async def asking(url: str, bearer: str, person: Any) -> AsyncIterator[Any]:
    headers = {"authorization": f"Bearer {bearer}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(f"{url}/mcp", http_client=http), mode=MODERN, elicitation_callback=person
        ) as client,
    ):
        yield client


async def test_the_user_of_a_client_approves_what_a_run_waits_for(tmp_path: Path) -> None:
    """Twice in one run. Who declines denies, and who closes the question leaves the run waiting."""
    script = asks("a"), asks("b"), "Done.", asks("c"), asks("d"), asks("e")
    async with careful(tmp_path, *script) as (url, used):
        person = Person(says("accept", approved=True), says("decline"), says("cancel"))
        async with asking(url, token(DECIDER), person) as client:
            done = await client.call_tool("helper", {"query": "hi"})
            assert (done.is_error, done.content[0].text) == (False, "Done.")
            assert used.calls == [{"query": "a"}]
            assert person.asked == [f'May lookup run with {{"query":"{one}"}}?' for one in "ab"]
            left = await client.call_tool("helper", {"query": "hi"})
            assert left.is_error
            assert "still waits" in left.content[0].text
        for scope, user in ((DECIDER, None), ("agents:run", Person())):  # no forms, no right to decide
            async with asking(url, token(scope), user) as client:
                failed = await client.call_tool("helper", {"query": "hi"})
                assert failed.is_error
                assert "decision" in failed.content[0].text
        admin = {"authorization": f"Bearer {token('admin')}"}
        async with httpx.AsyncClient(base_url=url, headers=admin, timeout=60) as http:
            acts = (await http.get("/v1/audit")).json()["acts"]
        assert [(act["action"], act["detail"]) for act in acts if act["action"] == "run.decide"] == [
            ("run.decide", "deny"), ("run.decide", "approve"),
        ]  # fmt: skip


async def test_the_state_of_a_question_is_of_its_call_and_its_caller_alone(tmp_path: Path) -> None:
    async with careful(tmp_path, asks("a"), "Done.") as (url, used), httpx.AsyncClient(timeout=60) as http:

        async def call(bearer: str, arguments: Any, **more: Any) -> Any:
            headers, body = call_of(MODERN)
            headers["authorization"] = f"Bearer {bearer}"
            body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {
                "elicitation": {"form": {}}
            }
            body["params"] |= {"arguments": arguments, **more}
            return (await http.post(f"{url}/mcp", headers=headers, json=body, timeout=60)).json()

        hers, query = token(DECIDER), {"query": "hi"}
        asked = (await call(hers, query))["result"]
        assert asked["resultType"] == "input_required"
        (which,) = asked["inputRequests"]
        yes = {which: {"action": "accept", "content": {"approved": True}}}
        state = asked["requestState"]
        forged = state[:-4] + ("AAAA" if state[-4:] != "AAAA" else "BBBB")
        for wrong in (forged, "", "run-1"):
            assert (await call(hers, query, requestState=wrong, inputResponses=yes))["error"][
                "code"
            ] == -32602
        other = await call(hers, {"query": "else"}, requestState=state, inputResponses=yes)
        assert other["error"]["code"] == -32602
        for bearer in (token(DECIDER, "bob"), token("agents:run")):
            refused = await call(bearer, query, requestState=state, inputResponses=yes)
            assert refused["result"]["isError"]
        odd = {which: {"action": "accept", "content": {"approved": "yes"}}}
        assert (await call(hers, query, requestState=state, inputResponses=odd))["result"]["isError"]
        again = (await call(hers, query, requestState=state))["result"]
        assert list(again["inputRequests"]) == [which]
        assert used.calls == []
        done = (await call(hers, query, requestState=state, inputResponses=yes))["result"]
        assert (done["content"][0]["text"], used.calls) == ("Done.", [{"query": "a"}])
        assert (await call(hers, query, requestState=state, inputResponses=yes))["result"]["isError"]


_STDIO = """
import asyncio, sys
from pathlib import Path
from astromesh.api.routes.mcp import serve_stdio
from astromesh.testing import ScriptedProvider, plugin_of
from tests.integration.agents_folder import runtime_of
from tests.integration.durable.test_durable_runs import asks, lookup

async def main():
    plugins = {"tools": {"lookup": plugin_of(lookup())}}
    model = ScriptedProvider(asks("a"), "Done.")
    async with runtime_of(Path(sys.argv[1]), model, plugins=plugins) as runtime:
        await serve_stdio(runtime)

asyncio.run(main())
"""


async def test_over_stdio_the_server_asks_in_the_call(tmp_path: Path) -> None:
    """A client of the version before `input_required` is sent a request."""
    write(tmp_path, manifest("helper", tools=[CAREFUL]))
    command = StdioServerParameters(
        command=sys.executable, args=["-c", _STDIO, str(tmp_path)], cwd=Path.cwd()
    )
    person: Any = Person(says("accept", approved=True))
    async with Client(stdio_client(command), mode="legacy", elicitation_callback=person) as client:
        done: Any = await client.call_tool("helper", {"query": "hi"})
    assert (done.content[0].text, len(person.asked)) == ("Done.", 1)
