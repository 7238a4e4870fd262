"""A2A: an agent as a remote agent, asked with the client of `a2a-sdk` unchanged, and by a tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, get_message_text, new_text_message
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp
from standardwebhooks import Webhook

from astromesh.api.a2a import decision_of, text_of
from astromesh.testing import Reply, ScriptedProvider, plugin_of
from astromesh.types import CompletionRequest, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.integration.durable.test_callbacks import SECRET, Receiver, receiver
from tests.integration.durable.test_durable_runs import asks, lookup, tool

__all__ = ["receiver"]  # the fixture

MEMORY = {"conversational": {"backend": "sqlite"}}
CAREFUL = tool(effect="write", approval="required")
BINDINGS = ("JSONRPC", "HTTP+JSON")


class Peer(NamedTuple):
    client: Client
    url: str
    provider: ScriptedProvider
    http: httpx.AsyncClient

    async def ask(self, text: str, context: str = "", task: str = "") -> list[StreamResponse]:
        message = new_text_message(
            text, context_id=context or None, task_id=task or None, role=Role.ROLE_USER
        )
        return [one async for one in self.client.send_message(SendMessageRequest(message=message))]


@asynccontextmanager
async def peer(
    folder: Path,
    *script: Any,
    binding: str = "JSONRPC",
    streaming: bool = False,
    used: Any = None,
    env: dict[str, str] | None = None,
) -> AsyncIterator[Peer]:
    provider = ScriptedProvider(*script)
    plugins = {"tools": {"lookup": plugin_of(used or lookup())}}
    runtime = runtime_of(folder, provider, plugins=plugins, env=env)
    async with served(runtime) as at, httpx.AsyncClient(timeout=60) as http:
        url = f"http://{at}/v1/agents/helper/a2a"
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
        card = await A2ACardResolver(http, url).get_agent_card()
        yield Peer(ClientFactory(config).create(card), url, provider, http)
        await runtime.close(grace=0.0)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_is_a_task_with_the_answer_as_its_artifact(tmp_path: Path, binding: str) -> None:
    folder = write(tmp_path, manifest(memory=MEMORY))
    async with peer(folder, "Hello.", "Again.", "Once.", binding=binding) as remote:
        [answer] = await remote.ask("Hi")
        task = answer.task
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert get_artifact_text(task.artifacts[0]) == "Hello."
        assert get_message_text(task.history[0]) == "Hi"
        [more] = await remote.ask("More", context=task.context_id)
        assert more.task.context_id == task.context_id
        found = await remote.client.get_task(GetTaskRequest(id=task.id))
        assert found.SerializeToString(deterministic=True) == task.SerializeToString(deterministic=True)
        listed = await remote.client.list_tasks(ListTasksRequest(context_id=task.context_id))
        assert [one.id for one in listed.tasks] == [more.task.id, task.id]
        first = await remote.client.list_tasks(ListTasksRequest(page_size=1))
        token = first.next_page_token
        second = await remote.client.list_tasks(ListTasksRequest(page_size=1, page_token=token))
        assert [one.id for one in (*first.tasks, *second.tasks)] == [more.task.id, task.id]
        assert (token != more.task.id, second.next_page_token) == (True, "")
        assert [listed.total_size, first.total_size, second.total_size] == [2, 2, 2]
        none = await remote.client.list_tasks(ListTasksRequest(context_id="another"))
        assert none.total_size == 0
        again = new_text_message("Hi again", role=Role.ROLE_USER)
        again.message_id = "m-1"
        [once], [twice] = [
            [one async for one in remote.client.send_message(SendMessageRequest(message=again))]
            for _ in range(2)
        ]
        assert once.task.id == twice.task.id
        again.parts[0].text = "Other"
        with pytest.raises(InvalidParamsError, match="messageId: another message had it"):
            [_ async for _ in remote.client.send_message(SendMessageRequest(message=again))]
    roles = [m.role for m in remote.provider.requests[1].messages]
    assert roles == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_has_the_text_of_the_answer_and_the_states(tmp_path: Path, binding: str) -> None:
    folder = write(tmp_path, manifest(tools=[tool()]))
    script = Reply("I look.", tool_calls=asks("a")), Reply(chunks=("All ", "done."))
    async with peer(folder, *script, binding=binding, streaming=True) as remote:
        events = await remote.ask("Do it")
    kinds = [event.WhichOneof("payload") for event in events]
    assert (kinds[0], kinds[-1]) == ("task", "status_update")
    states = [e.status_update.status.state for e in events if e.HasField("status_update")]
    assert states == [TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_COMPLETED]
    texts = [get_artifact_text(e.artifact_update.artifact) for e in events if e.HasField("artifact_update")]
    assert "".join(texts) == "All done."


async def test_a_task_that_needs_an_approval_goes_on_with_its_next_message(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(tools=[CAREFUL], memory=MEMORY))
    async with peer(folder, asks("a")) as remote:
        [asked] = await remote.ask("Do it")
        assert asked.task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        data = asked.task.status.message.parts[1].data.struct_value
        assert data["arguments"]["query"] == "a"
    async with peer(folder, "Done.", used=(used := lookup())) as remote:
        with pytest.raises(InvalidParamsError, match="approve"):
            await remote.ask("Perhaps", task=asked.task.id)
        [done] = await remote.ask("Approve", task=asked.task.id)
        assert done.task.status.state == TaskState.TASK_STATE_COMPLETED
        assert get_artifact_text(done.task.artifacts[0]) == "Done."
        with pytest.raises(UnsupportedOperationError):
            await remote.ask("Approve", task=asked.task.id)
    assert used.calls == [{"query": "a"}]


async def test_a_task_that_another_one_asks_for_names_it(tmp_path: Path) -> None:
    """A nested run waits with the run above it, which has the question."""
    nested = [{"name": "ask", "type": "agent", "agent": "helper"}]
    folder = write(tmp_path, manifest(tools=[CAREFUL]), manifest("outer", tools=nested))
    async with peer(folder, [ToolCall("c", "ask", '{"query": "Do"}')], asks("a")) as remote:
        url = remote.url.replace("/helper/a2a", "/outer/run")
        outer = (await remote.http.post(url, json={"query": "Do it", "session_id": "s"})).json()
        assert outer["status"] == "waiting"
        [inner] = (await remote.client.list_tasks(ListTasksRequest())).tasks
        assert inner.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert outer["run_id"] in get_message_text(inner.status.message)
        with pytest.raises(UnsupportedOperationError, match=outer["run_id"]):
            await remote.ask("approve", task=inner.id)
        with pytest.raises(TaskNotCancelableError, match=outer["run_id"]):
            await remote.client.cancel_task(CancelTaskRequest(id=inner.id))
        run = f"{remote.url.partition('/v1/')[0]}/v1/runs/{inner.id}"
        refused = await remote.http.post(f"{run}/cancel")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert (await remote.http.get(run)).json()["status"] == "waiting"
        await remote.http.post(run.replace(inner.id, outer["run_id"]) + "/cancel")
        assert (await remote.http.get(run)).json()["status"] == "cancelled"


async def test_a_task_can_be_subscribed_to_again_and_cancelled(tmp_path: Path) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def waits(_: CompletionRequest) -> str:
        began.set()
        await go.wait()
        return "Done."

    async def hangs(_: CompletionRequest) -> str:
        await asyncio.Event().wait()
        return ""

    async with peer(write(tmp_path, manifest()), waits, hangs, streaming=True) as remote:
        first = asyncio.create_task(remote.ask("Wait"))
        await began.wait()
        [task] = (await remote.client.list_tasks(ListTasksRequest())).tasks
        again = remote.client.subscribe(SubscribeToTaskRequest(id=task.id))
        assert (await anext(again)).task.status.state == TaskState.TASK_STATE_WORKING
        go.set()
        later = [one async for one in again]
        assert later[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert [one.WhichOneof("payload") for one in (await first)[1:]] == [
            one.WhichOneof("payload") for one in later
        ]
        with pytest.raises(UnsupportedOperationError):
            await anext(remote.client.subscribe(SubscribeToTaskRequest(id=task.id)))
        with pytest.raises(TaskNotCancelableError):
            await remote.client.cancel_task(CancelTaskRequest(id=task.id))
        stream = remote.client.send_message(
            SendMessageRequest(message=new_text_message("Hang", role=Role.ROLE_USER))
        )
        running = (await anext(stream)).task
        ended = await remote.client.cancel_task(CancelTaskRequest(id=running.id))
        assert ended.status.state == TaskState.TASK_STATE_CANCELED
        assert [one async for one in stream][-1].status_update.status.state == TaskState.TASK_STATE_CANCELED


async def test_a_request_that_cannot_be_read_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with peer(write(tmp_path, manifest())) as remote:
        message = {"messageId": "m", "role": "a private word", "parts": [{"text": "x"}]}
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        for body in ({}, {**rpc, "method": "nothing"}, rpc):
            answer = await remote.http.post(remote.url, json=body, headers={"a2a-version": "1.0"})
            assert answer.json()["error"]["code"] in (-32600, -32601, -32602)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("a2a")] == []


@pytest.mark.parametrize("binding", BINDINGS)
async def test_what_cannot_be_is_an_error_of_the_protocol(tmp_path: Path, binding: str) -> None:
    async with peer(write(tmp_path, manifest()), binding=binding) as remote:
        with pytest.raises(TaskNotFoundError, match="no task 'run_none'"):
            await remote.client.get_task(GetTaskRequest(id="run_none"))
        for token in ("made-up", "run_none"):
            with pytest.raises(InvalidParamsError, match=f"pageToken: '{token}' is not a place"):
                await remote.client.list_tasks(ListTasksRequest(page_token=token))
        version = {"a2a-version": "1.0"}
        params = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"status": "working"}}
        for refused in (
            await remote.http.post(remote.url, json=params, headers=version),
            await remote.http.get(f"{remote.url}/tasks?status=working", headers=version),
        ):
            assert "status: use one of TASK_STATE_SUBMITTED, TASK_STATE_WORKING" in refused.text
        later = ListTasksRequest(status_timestamp_after=Timestamp(seconds=1))
        with pytest.raises(InvalidParamsError, match="statusTimestampAfter: this server does not filter"):
            await remote.client.list_tasks(later)
        params = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": None}
        refused = await remote.http.post(remote.url, json=params)
        assert (refused.status_code, "params: it must be a JSON object" in refused.text) == (400, True)
        for path in ("", "/message:send"):
            refused = await remote.http.post(f"{remote.url}{path}", content=b"null")
            assert (refused.status_code, "it must be a JSON object" in refused.text) == (400, True)
        with pytest.raises(InvalidParamsError):
            await remote.ask("  ")
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id="x", url="http://127.0.0.1/", id="c")
            )
    assert remote.provider.requests == []


@pytest.mark.parametrize("binding", BINDINGS)
async def test_push_notifications_tell_of_a_task_that_needs_input_and_ends(
    tmp_path: Path, receiver: Receiver, binding: str
) -> None:
    folder = write(tmp_path, manifest(tools=[CAREFUL]))
    settings = {"callbacks": {"secret_env": "CALLBACKS"}, "network": {"allow_hosts": ["127.0.0.1"]}}
    head = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": settings}
    (folder / "runtime.yaml").write_text(json.dumps(head))
    first = TaskPushNotificationConfig(url=receiver.url, token="t-1")
    first.authentication.CopyFrom(AuthenticationInfo(scheme="Bearer", credentials="of-the-receiver"))
    script = asks("a"), "It is done."
    async with peer(folder, *script, binding=binding, env={"CALLBACKS": SECRET}) as remote:
        client, message = remote.client, new_text_message("Go", role=Role.ROLE_USER)
        send = SendMessageRequest(message=message)
        send.configuration.task_push_notification_config.CopyFrom(first)
        [asked] = [one async for one in client.send_message(send)]
        task = asked.task.id
        (waits,) = await receiver.hears(1)
        assert waits["task"]["id"] == task
        assert waits["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        more = TaskPushNotificationConfig(task_id=task, id="mine", url=receiver.url + "?two")
        made = await client.create_task_push_notification_config(more)
        found = await client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task, id="mine")
        )
        assert found == made == more
        gone = TaskPushNotificationConfig(task_id=task, id="gone", url=receiver.url + "?three")
        await client.create_task_push_notification_config(gone)
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task, id="gone")
        )
        listed = await client.list_task_push_notification_configs(
            ListTaskPushNotificationConfigsRequest(task_id=task)
        )
        with pytest.raises(InvalidParamsError, match="pageToken: the list has one page"):
            await client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=task, page_token="made-up")
            )
        assert [(one.id, one.url, one.token) for one in listed.configs] == [
            (task, receiver.url, ""),
            ("mine", receiver.url + "?two", ""),
        ]
        with pytest.raises(InvalidParamsError):
            await client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task, id="bad", url="file:///etc/passwd")
            )
        await remote.ask("approve", task=task)
        _, *ended = await receiver.hears(3)
    assert [one["task"]["status"]["state"] for one in ended] == ["TASK_STATE_COMPLETED"] * 2
    assert ended[0]["task"]["artifacts"][0]["parts"] == [{"text": "It is done."}]
    headers, raw = receiver.heard[0]
    assert Webhook(SECRET).verify(raw, headers) == waits
    assert (headers["x-a2a-notification-token"], headers["authorization"]) == (
        "t-1",
        "Bearer of-the-receiver",
    )
    assert len(receiver.heard) == 3


async def test_a_tool_asks_a_remote_agent_and_answers_its_questions(tmp_path: Path) -> None:
    """Two servers: the remote agent has a call to approve, and the model of the caller approves it."""
    remote_folder = write(tmp_path / "remote", manifest(tools=[CAREFUL]))
    async with peer(remote_folder, asks("a"), "It is done.") as remote:

        def approves(request: CompletionRequest) -> list[ToolCall]:
            asked = json.loads(request.messages[-1].content)
            answer = {"message": "approve", "task_id": asked["task_id"]}
            return [ToolCall("c2", "partner", json.dumps(answer))]

        ask = [ToolCall("c1", "partner", '{"message": "Do it"}')]
        provider = ScriptedProvider(ask, approves, "All done.")
        folder = write(
            tmp_path / "own", manifest(tools=[{"name": "partner", "type": "a2a", "url": remote.url}])
        )
        async with runtime_of(folder, provider) as runtime:
            answer = await runtime.run("helper", "Go", "s")
    assert answer.response == "All done."
    results = [m.content for m in provider.requests[-1].messages if m.role == "tool"]
    assert "input_required" in results[0]
    assert results[1] == "It is done."


async def test_a_tool_follows_no_card_to_another_server(tmp_path: Path) -> None:
    """Its headers are secret, and this server may reach hosts that the remote one does not."""
    binding = {"url": "http://127.0.0.1:9/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = json.dumps({"name": "x", "description": "x", "version": "1", "supportedInterfaces": [binding]})

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(card)}\r\n\r\n"
        writer.write((head + card).encode())
        writer.close()

    ask = [ToolCall("c1", "partner", '{"message": "Do it"}')]
    provider = ScriptedProvider(ask, "Sorry.")
    async with await asyncio.start_server(answers, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tools = [{"name": "partner", "type": "a2a", "url": url}]
        async with runtime_of(write(tmp_path, manifest(tools=tools)), provider) as runtime:
            await runtime.run("helper", "Go", "s")
    assert "names another server" in provider.requests[1].messages[-1].content


def test_whole_numbers_of_data_are_integers_as_in_json() -> None:
    """Protobuf has doubles only; the arguments that a person edits must fit the schema of the tool."""
    edited = {"approved": True, "arguments": {"n": 3, "x": 2.5, "wide": 2**60, "list": [1]}}
    part = ParseDict({"data": edited}, Part())
    assert text_of([part]).count(".") == 2  # of 2.5, and of what no double holds exactly
    made = decision_of({"kind": "approval"}, [part])["arguments"]
    assert [type(one) for one in (made["n"], made["x"], made["list"][0])] == [int, float, int]
