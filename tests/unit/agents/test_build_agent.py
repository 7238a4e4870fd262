"""`build_agent` and `ainvoke`: the contract of document 000."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

import astromesh
from astromesh import Agent, CallerContext, build_agent
from astromesh.errors import ConfigError, InvalidGraph, ProviderTimeout, UnknownPlugin
from astromesh.graph import PromptGraph
from astromesh.graph.nodes import PromptNode, ThinkNode
from astromesh.plugins import Plugins
from astromesh.testing import RecordingTool, ScriptedProvider, plugin_of
from astromesh.tools.mcp.toolset import ToolDefinition, ToolDefinitions
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolCall, get_current_caller


class ScriptedOptions(BaseModel):
    model: str
    temperature: float = 0.0


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_a_provider_and_functions_make_an_agent():
    """The usual case: a model, Python functions as tools, the react graph."""
    model = ScriptedProvider(ToolCall("1", "add", '{"a": 2, "b": 3}'), "It is 5.")
    agent = build_agent(model, tools=[add])
    result = await agent.ainvoke("What is 2 + 3?")
    assert (result.output, result.report.tool_calls) == ("It is 5.", ["add"])
    assert model.requests[0].tools[0].description == "Adds two numbers."


@pytest.mark.parametrize(
    "given",
    [
        "Hi",
        [Message("user", "Hi")],
        [{"role": "user", "content": "Hi"}],
        {"messages": [Message("user", "Hi")]},
    ],
)
async def test_the_input_may_be_a_text_messages_or_a_mapping(given):
    """All mean the same."""
    model = ScriptedProvider("Hello.")
    assert (await build_agent(model).ainvoke(given)).output == "Hello."
    assert model.requests[0].messages == (Message("user", "Hi"),)


@pytest.mark.parametrize("nothing", [[], {"messages": []}])
async def test_an_empty_conversation_is_accepted(nothing):
    model = ScriptedProvider("Hello.")
    assert (await build_agent(model).ainvoke(nothing)).output == "Hello."
    assert [message.content for message in model.requests[0].messages] == [""]


async def test_an_async_function_is_a_model():
    """It gets the request and answers a text or a whole result; anything else is an error of the run."""

    async def text(request: CompletionRequest) -> str:
        return request.messages[-1].content.upper()

    async def whole(request: CompletionRequest) -> CompletionResult:
        return CompletionResult("whole")

    async def wrong(request: CompletionRequest) -> str:
        return 3  # type: ignore[return-value]

    assert (await build_agent(text).ainvoke("hi")).output == "HI"
    assert (await build_agent(whole).ainvoke("hi")).output == "whole"
    assert "neither a text nor" in (await build_agent(wrong).ainvoke("hi")).report.error
    events = [e async for e in build_agent(text).astream_events("hi")]
    assert [e.data["content"] for e in events if e.type == "model.delta"] == ["HI"]


@pytest.mark.parametrize(
    "named", ["scripted:m1", {"provider": "scripted", "model": "m1", "temperature": 0.3}]
)
async def test_a_name_or_a_block_opens_a_provider_by_its_plugin(named):
    """By the first call, once, with the block's options; closing the agent closes it."""
    provider = ScriptedProvider("one", "two")
    plugin = plugin_of(provider, ScriptedOptions)
    agent = build_agent(named, plugins=Plugins({"providers": {"scripted": plugin}}))
    assert plugin.opened == []
    assert [(await agent.ainvoke("a")).output, (await agent.ainvoke("b")).output] == ["one", "two"]
    assert [(o.model, o.temperature) for o in plugin.opened] in ([("m1", 0.0)], [("m1", 0.3)])
    await agent.close()
    assert provider.closed


async def test_an_agent_can_be_awaited_and_entered():
    """Both open its connections before the first call."""
    async with build_agent(ScriptedProvider("a")) as agent:
        assert isinstance(agent, Agent)
    assert isinstance(await build_agent(ScriptedProvider("a")), Agent)


def test_what_is_not_installed_is_said_when_the_agent_is_built():
    """An unknown provider, and MCP servers without support for them."""
    with pytest.raises(UnknownPlugin, match="nobody"):
        build_agent("nobody:gpt", plugins=Plugins())
    with pytest.raises(ConfigError, match="is not a model"):
        build_agent(3)  # type: ignore[call-overload]
    block = {"provider": "openai", "model": "m", "endpiont": "http://localhost"}
    with pytest.raises(ConfigError, match="endpiont"):
        build_agent(block)


async def test_servers_bring_their_tools_through_the_plugin():
    """Each block goes to the plugin with the server's name; its tools stand beside the given ones."""

    class Server:
        """The interface that `type: mcp` uses, with one tool."""

        name, over_http, forwards_identity, closed = "cal", True, False, False
        listed = ToolDefinitions((ToolDefinition("remote", "", {"type": "object", "properties": {}}),))

        def definitions(self, forwards):
            return self.listed

        def fault(self, forwards):
            return ""

        def for_callers_only(self, forwards):
            return False

        async def prepare(self, forwards): ...

        async def wait_first_attempt(self): ...

        async def ping(self): ...

        async def call(self, tool, arguments, context, forwards):
            return "far"

        async def close(self):
            Server.closed = True

    plugin = plugin_of(Server())
    plugins = Plugins({"tool_sources": {"mcp": plugin}})
    model = ScriptedProvider([ToolCall("1", "remote"), ToolCall("2", "add", '{"a": 1, "b": 1}')], "ok")
    servers = {"cal": {"transport": "http", "url": "http://127.0.0.1:1/mcp"}}
    async with build_agent(model, servers=servers, tools=[add], plugins=plugins) as agent:
        result = await agent.ainvoke("go")
    assert result.report.tool_calls == ["remote", "add"]
    assert plugin.opened[0].model_dump()["name"] == "cal"
    assert Server.closed


async def test_patterns_by_name_as_graph_and_as_pool():
    """`react` is the default; a graph is used as it is; a pool becomes an autonomous agent."""
    assert getattr(build_agent(ScriptedProvider()).graph, "name", "") == "react"
    deliberate = build_agent(ScriptedProvider(), pattern="deliberate").graph
    assert deliberate is not None and deliberate.name == "deliberate"
    graph = PromptGraph("mine", nodes=[PromptNode("p")])
    assert build_agent(ScriptedProvider(), pattern=graph).graph is graph
    pool = [ThinkNode("think"), PromptNode("answer", is_terminal=True)]
    model = ScriptedProvider('{"next_node": "answer"}', "42.")
    assert (await build_agent(model, node_pool=pool).ainvoke("Why?")).output == "42."
    with pytest.raises(ConfigError, match="not both"):
        build_agent(model, pattern=graph, node_pool=pool)
    with pytest.raises(ConfigError, match="unknown pattern `magic`"):
        build_agent(model, pattern="magic")
    with pytest.raises(InvalidGraph, match="no nodes"):
        build_agent(model, pattern=PromptGraph("empty"))


async def test_the_messages_of_ainvoke_have_the_answer_as_the_output_rules_release_it():
    """A program shows the last message, and passes the messages on to the next run."""

    def polite(text: str) -> str | bool:
        return text.replace("damn", "[X]") if "hell" not in text else False

    model = ScriptedProvider([ToolCall("1", "add", '{"a": 1, "b": 1}')], "It is a damn 2.", "Go to hell.")
    agent = build_agent(model, tools=[add], guardrails={"output": [polite]})
    redacted = await agent.ainvoke("1 + 1?")
    refused = await agent.ainvoke([*redacted.messages, Message("user", "And now?")])
    assert [m.role for m in redacted.messages] == ["user", "assistant", "tool", "assistant"]
    assert redacted.messages[-1].content == redacted.output == "It is a [X] 2."
    assert refused.messages[-1].content == refused.text
    assert "hell" not in refused.text


async def test_ainvoke_raises_nothing_for_a_failed_run():
    """Failures of the model and wrong input are in the report."""
    result = await build_agent(ScriptedProvider(ProviderTimeout("slow"))).ainvoke("hi")
    assert (result.output, "slow" in result.report.error) == (None, True)
    result = await build_agent(ScriptedProvider("x")).ainvoke([{"role": "x"}])
    assert (result.output, result.report.stop_reason) == (None, "critical_error")


async def test_the_caller_reaches_the_tools_and_is_reset():
    """Document 000, identity flow: a context variable around the run, and the tool's context."""
    seen = []

    async def who() -> str:
        caller = get_current_caller()
        assert caller is not None
        seen.append(caller.user_id)
        return caller.user_id

    tool = RecordingTool("look", "x")
    model = ScriptedProvider([ToolCall("1", "who"), ToolCall("2", "look")], "ok")
    caller = CallerContext(user_id="ada", bearer_token="t0ken")
    await build_agent(model, tools=[who, tool]).ainvoke("hi", caller=caller)
    assert seen == ["ada"]
    assert tool.contexts[0].caller == caller
    assert get_current_caller() is None
    assert "t0ken" not in repr(caller)


def test_the_packages_face_is_lazy_and_complete():
    """What stands in `__all__` is there; what does not is an AttributeError."""
    for name in astromesh.__all__:
        assert getattr(astromesh, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = astromesh.nothing


def test_a_server_block_with_a_fault_is_reported_when_the_agent_is_built():
    """With the key and what is wrong there."""
    with pytest.raises(ConfigError, match=r"servers\.cal\.transport: required key is missing"):
        build_agent(ScriptedProvider("x"), servers={"cal": {"command": "x"}})
