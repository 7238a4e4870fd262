"""`Agent`: runs, results, failures, sessions, tools and lifetimes, through the public face alone."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from astromesh import Agent, AgentRuntime, CallerContext, Event, File, Image, ModelRetry, ToolContext, tool
from astromesh.agents.parameters import AttachmentLike
from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    BudgetExhausted,
    ConfigError,
    GuardrailBlocked,
    InvalidInput,
    InvalidOutput,
    IterationsExhausted,
    ProviderTimeout,
    ProviderUnauthorized,
    UnknownPlugin,
)
from astromesh.events import ModelDelta, RunCompleted, ToolFinished, ToolStarted, typed
from astromesh.guardrails.base import CheckContext, RuleStream, Verdict
from astromesh.plugins import Plugins
from astromesh.testing import ScriptedProvider, record
from astromesh.types import CompletionRequest, Message, ToolCall
from tests.integration.knowledge.rag_files import pdf


class City(BaseModel):
    name: str
    country: str


@dataclass
class Place:
    name: str
    country: str


class Spot(TypedDict):
    name: str
    country: str


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PARIS = '{"name": "Paris", "country": "France"}'


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


# -- results -------------------------------------------------------------------------------------------------


async def test_a_run_has_text_messages_and_usage() -> None:
    model = ScriptedProvider(ToolCall("1", "weather", '{"city": "Paris"}'), "Sunny.")
    agent = Agent(model, system="Answer in one word.", tools=[weather])
    result = await agent.run("Weather in Paris?")
    assert (result.ok, result.output, result.text, result.stop_reason) == (
        True,
        "Sunny.",
        "Sunny.",
        "completed",
    )
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.messages[2].content == "sunny in Paris"
    assert result.usage.total_tokens > 0
    assert result.run_id and result.trace_id and result.metadata["tools_called"] == ["weather"]
    assert model.requests[0].messages[0] == Message("system", "Answer in one word.")


@pytest.mark.parametrize(
    ("output_type", "expected"),
    [
        (City, City(name="Paris", country="France")),
        (Place, Place("Paris", "France")),
        (Spot, {"name": "Paris", "country": "France"}),
        (SCHEMA, {"name": "Paris", "country": "France"}),
        (str, PARIS),
    ],
)
async def test_the_output_has_the_type_of_the_agent(output_type, expected) -> None:
    result = await Agent(ScriptedProvider(PARIS), output_type=output_type).run("Where?")
    assert result.output == expected
    assert type(result.output) is type(expected)


async def test_an_answer_that_does_not_fit_is_repaired_once_by_the_rules_of_the_type() -> None:
    """Validators of a pydantic model count, not only its JSON Schema."""

    class Even(BaseModel):
        number: int

        def model_post_init(self, _: object) -> None:
            if self.number % 2:
                raise ValueError("the number must be even")

    model = ScriptedProvider('{"number": 3}', '{"number": 4}')
    assert (await Agent(model, output_type=Even).run("?")).output == Even(number=4)
    assert "must be even" in model.requests[1].messages[-1].content
    with pytest.raises(InvalidOutput, match="must be even"):
        await Agent(ScriptedProvider('{"number": 3}', repeat=True), output_type=Even).run("?")


# -- failures ------------------------------------------------------------------------------------------------


async def test_a_failed_run_raises_with_the_error_of_the_provider_as_its_cause() -> None:
    timeout = ProviderTimeout("It took too long.", provider="scripted/test-model")
    with pytest.raises(AllProvidersFailed, match="It took too long") as raised:
        await Agent(ScriptedProvider(timeout)).run("Hi")
    assert raised.value.__cause__ is timeout
    assert raised.value.run_id.startswith("run_")


async def test_the_error_says_what_to_do() -> None:
    wrong_key = ProviderUnauthorized("The key is wrong.", provider="openai/gpt-4o-mini")
    with pytest.raises(AllProvidersFailed, match=r"Check the API key of the model"):
        await Agent(ScriptedProvider(wrong_key)).run("Hi")


async def test_on_error_return_gives_a_result_that_has_the_error() -> None:
    """On the agent or on the call; its output raises, so that nobody takes None for an answer."""
    failing = ScriptedProvider(ProviderTimeout("slow"), repeat=True)
    returning = Agent(failing, on_error="return")
    for result in (await returning.run("Hi"), await Agent(failing).run("Hi", on_error="return")):
        assert (result.ok, result.text, result.stop_reason) == (False, "", "failed")
        assert isinstance(result.error, AllProvidersFailed)
        with pytest.raises(AllProvidersFailed):
            _ = result.output
        with pytest.raises(AllProvidersFailed):
            result.raise_for_error()
    with pytest.raises(AllProvidersFailed):
        await Agent(failing, on_error="return").run("Hi", on_error="raise")


async def test_a_run_that_a_limit_stopped_is_a_failed_run() -> None:
    model = ScriptedProvider(ToolCall("1", "weather", '{"city": "x"}'), repeat=True)
    with pytest.raises(IterationsExhausted, match="max_iterations"):
        await Agent(model, tools=[weather], max_iterations=2).run("Hi")
    with pytest.raises(BudgetExhausted, match="budget"):
        await Agent(model, tools=[weather], budgets={"tokens": 1}).run("Hi")


async def test_what_the_program_itself_raises_is_the_cause() -> None:
    def broken(ctx: ToolContext) -> str:
        raise LookupError("no prompt today")

    with pytest.raises(AstromeshError, match="LookupError: no prompt today") as raised:
        await Agent(ScriptedProvider("x"), system=broken).run("Hi")
    assert isinstance(raised.value.__cause__, LookupError)


def test_a_model_without_its_provider_is_named_as_it_is_written() -> None:
    with pytest.raises(UnknownPlugin, match=r"Write 'openai:gpt-4o'"):
        Agent("gpt-4o")
    with pytest.raises(UnknownPlugin, match=r"Write 'anthropic:claude-sonnet-4-5'"):
        Agent("claude-sonnet-4-5")
    with pytest.raises(UnknownPlugin, match=r"Did you mean .openai"):
        Agent("openia:gpt-4o")


async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        await Agent("openai:gpt-4o-mini").run("Hi")


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"memory": "sqlite3:x"}, "names no store"),
        ({"budgets": {"cost": 1}}, "spec.budgets.per_run.cost"),
        ({"guardrails": ["pii"]}, "unknown guardrail `pii`"),
        ({"guardrails": {"inputs": []}}, "input and output"),
        ({"system": "{{ broken"}, "spec.prompts.system"),
        ({"name": "two words"}, "metadata.name"),
        ({"tools": [weather, weather]}, "weather"),
        ({"output_type": object()}, "output_type"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"on_error": "ignore"}, "neither 'raise' nor 'return'"),
    ],
)
def test_wrong_arguments_are_named_when_the_agent_is_made(wrong, key) -> None:
    with pytest.raises(ConfigError, match=key):
        Agent(ScriptedProvider(), **wrong)


@pytest.mark.parametrize(
    "store",
    ["memory", "sqlite:runs.db", "sqlite:///tmp/runs.db", "postgres://host/db", "postgresql://host/db"],
)
def test_a_store_is_named_when_the_agent_is_made_and_opened_later(store: str) -> None:
    Agent(ScriptedProvider(), store=store)


async def test_wrong_arguments_of_a_run_are_named() -> None:
    agent = Agent(ScriptedProvider("Hi"))
    with pytest.raises(InvalidInput, match="must be a text, not None"):
        await agent.run(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="neither 'raise' nor 'return'"):
        await agent.run("Hi", on_error="ignore")  # type: ignore[arg-type]


async def test_a_misspelled_argument_is_named() -> None:
    """Type checkers find it, too; a program without one must not lose its memory silently."""
    with pytest.raises(TypeError, match="Agent has no argument `memroy`"):
        Agent(ScriptedProvider(), memroy="memory")  # type: ignore[call-overload]
    agent = Agent(ScriptedProvider("Hi"))
    with pytest.raises(TypeError, match="Did you mean `session_id`"):
        await agent.run("Hi", sesion_id="ada")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sesion_id"):
        async for _ in agent.stream("Hi", sesion_id="ada"):  # type: ignore[call-arg]
            pass


# -- guardrails, budgets, prompts: the pipeline of YAML agents -----------------------------------------------


async def test_guardrails_check_queries_and_answers() -> None:
    model = ScriptedProvider("Write to eve@example.org.")
    agent = Agent(model, guardrails=[{"type": "pii_detection", "action": "redact"}])
    result = await agent.run("I am ada@example.org.")
    assert "ada@example.org" not in model.requests[0].messages[-1].content
    assert "eve@example.org" not in result.text
    assert "eve@example.org" not in str(result.messages)


async def test_a_function_is_a_guardrail() -> None:
    def no_shouting(text: str) -> str | bool | None:
        if "!!" in text:
            return False
        return text.lower() if text.isupper() else None

    agent = Agent(ScriptedProvider("HELLO"), guardrails=[no_shouting])
    assert (await agent.run("Hi")).text == "hello"
    with pytest.raises(GuardrailBlocked, match="no_shouting"):
        await agent.run("Hi!!")


class Upper:
    """A rule of a program's own class, which can stream."""

    type = "upper"
    needs_whole_text = False
    action: Any = "redact"
    count = 1
    done = False

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        return Verdict("redact", text.upper())

    def stream(self, context: CheckContext) -> RuleStream:
        return self

    def feed(self, text: str) -> str:
        return text.upper()

    def finish(self) -> str:
        return ""


class Whole(Upper):
    needs_whole_text = True


@pytest.mark.parametrize(
    ("rule", "pieces"), [(Upper(), ["ONE ", "TWO"]), (Whole(), ["ONE TWO"]), (str.upper, ["ONE TWO"])]
)
async def test_a_rule_that_needs_the_whole_text_holds_the_stream_back(rule: Any, pieces: list[str]) -> None:
    agent = Agent(ScriptedProvider("one two", "one two"), guardrails={"output": [rule]})
    assert [text async for text in agent.stream("q").text()] == pieces


async def test_the_prompt_is_a_template_or_a_function_of_the_run() -> None:
    model = ScriptedProvider("a", repeat=True)
    agent = Agent(model, system="{{ tone }}: {{ language | default('French') }}.", variables={"tone": "Kind"})
    await agent.run("Hi")
    await agent.run("Hi", context={"language": "Greek"})

    async def greet(ctx: ToolContext[dict[str, str]]) -> str:
        return f"You talk to {ctx.deps['name']} ({ctx.caller and ctx.caller.user_id})."

    await Agent(model, system=greet).run("Hi", deps={"name": "Ada"}, caller=CallerContext(user_id="ada"))
    await Agent(model, system="For {{ metadata.team }}.").run("Hi", metadata={"team": "sales"})
    prompts = [request.messages[0].content for request in model.requests]
    assert prompts == ["Kind: French.", "Kind: Greek.", "You talk to Ada (ada).", "For sales."]


# -- tools ---------------------------------------------------------------------------------------------------


async def test_tools_find_the_dependencies_of_the_run() -> None:
    """Those of the call, else those of the agent; an agent that is called has those of the one above."""

    @tool
    async def balance(ctx: ToolContext[dict[str, int]], account: str) -> int:
        """The balance of an account."""
        return ctx.deps[account]

    call = ToolCall("1", "balance", '{"account": "ada"}')
    model = ScriptedProvider(call, "one", call, "two")
    agent = Agent(model, tools=[balance], deps={"ada": 1})
    first, second = await agent.run("?"), await agent.run("?", deps={"ada": 2})
    assert [first.messages[2].content, second.messages[2].content] == ["1", "2"]
    assert "ctx" not in model.requests[0].tools[0].parameters["properties"]

    inner = Agent(ScriptedProvider(call, "three"), name="bank", tools=[balance])
    outer = Agent(ScriptedProvider(ToolCall("1", "bank", '{"query": "?"}'), "done"), tools=[inner.as_tool()])
    result = await outer.run("?", deps={"ada": 3})
    assert "three" in result.messages[2].content


async def test_a_tool_asks_the_model_to_correct_itself() -> None:
    @tool(name="book", description="Books a table.")
    def book_table(guests: int) -> str:
        if guests > 8:
            raise ModelRetry("At most 8 guests fit at a table. Book two tables.")
        return "booked"

    model = ScriptedProvider(
        ToolCall("1", "book", '{"guests": 12}'), ToolCall("2", "book", '{"guests": 6}'), "Done."
    )
    result = await Agent(model, tools=[book_table]).run("A table for 12")
    assert [m.content for m in result.messages if m.role == "tool"] == [
        "At most 8 guests fit at a table. Book two tables.",
        "booked",
    ]
    assert book_table(guests=2) == "booked"  # it is still the function


def test_a_tool_is_described_by_its_docstring() -> None:
    @tool
    def find(query: str, limit: int = 5) -> list[str]:
        """Finds notes.

        Args:
            query: what to look for
            limit: how many to find
        """
        return [query] * limit

    assert (find.spec.name, find.spec.description) == ("find", "Finds notes.")
    assert find.spec.parameters["properties"]["query"]["description"] == "what to look for"
    assert find.spec.parameters["required"] == ["query"]
    assert (find("a", limit=1), find.__name__, str(find.__doc__)[:5]) == (["a"], "find", "Finds")


async def test_an_agent_as_a_tool_spends_the_budget_of_the_run_above() -> None:
    inner = Agent(ScriptedProvider("42"), name="expert", description="Knows all.")
    outer_model = ScriptedProvider(ToolCall("1", "ask", '{"query": "What?"}'), "It is 42.")
    outer = Agent(outer_model, tools=[inner.as_tool("ask")])
    result = await outer.run("?")
    assert result.output == "It is 42."
    assert outer_model.requests[0].tools[0].description == "Knows all."
    alone = await inner.run("What?", on_error="return")
    assert result.usage.output_tokens >= 3
    assert not alone.ok  # its script has one line


# -- conversations -------------------------------------------------------------------------------------------


async def test_a_session_remembers_and_a_run_without_one_stores_nothing() -> None:
    model = ScriptedProvider("Ada, hello.", "You are Ada.", "Who?", repeat=True)
    agent = Agent(model, memory="memory")
    chat = agent.session("ada")
    await chat.run("I am Ada.")
    assert (await chat.run("Who am I?")).text == "You are Ada."
    assert [m.content for m in model.requests[1].messages] == ["I am Ada.", "Ada, hello.", "Who am I?"]
    await agent.run("Who am I?")
    assert [m.content for m in model.requests[2].messages] == ["Who am I?"]
    await agent.run("And?", session_id="bob")
    assert [m.content for m in model.requests[3].messages] == ["And?"]


async def test_history_by_hand_replaces_the_session() -> None:
    model = ScriptedProvider(ToolCall("1", "weather", '{"city": "Rome"}'), "Sunny.", "Rome.")
    agent = Agent(model, tools=[weather])
    first = await agent.run("Weather in Rome?")
    second = await agent.run("Where?", history=first.messages)
    assert second.text == "Rome."
    assert model.requests[2].messages[:-1] == tuple(first.messages)
    assert list(second.messages) == [
        *first.messages,
        Message("user", "Where?"),
        Message("assistant", "Rome."),
    ]


async def test_a_session_without_memory_says_what_to_pass() -> None:
    with pytest.raises(InvalidInput, match=r"memory='memory'.*history=result\.messages"):
        await Agent(ScriptedProvider("x")).run("Hi", session_id="ada")


def test_sessions_outlive_event_loops_and_files_outlive_agents(tmp_path: Path) -> None:
    model = ScriptedProvider("one", "two", "three", "four")
    agent = Agent(model, memory="memory")
    agent.run_sync("1", session_id="s")
    agent.run_sync("2", session_id="s")
    assert len(model.requests[1].messages) == 3
    file = f"sqlite:{tmp_path / 'chat.db'}"
    Agent(model, memory=file).run_sync("3", session_id="s")
    Agent(model, memory=file).run_sync("4", session_id="s")
    assert [m.content for m in model.requests[3].messages] == ["3", "three", "4"]


async def test_images_and_files_go_with_the_message(tmp_path: Path) -> None:
    picture, notes = tmp_path / "a.png", tmp_path / "notes.csv"
    picture.write_bytes(b"\x89PNG")
    notes.write_text("a,b\n1,2\n")
    model = ScriptedProvider("ok", capabilities=None)
    agent = Agent(model)
    given: list[AttachmentLike] = [
        picture,
        notes,
        "data:image/jpeg;base64,/9j/",
        File("c.md", b"# C"),
        Image(data="R0lGODlh", media_type="image/gif"),
    ]
    await agent.run("Look", attachments=given)
    message = model.requests[0].messages[-1]
    assert [one.media_type for one in message.attachments] == ["image/png", "image/jpeg", "image/gif"]
    assert message.content == 'Look\n\nFile "notes.csv":\n```\na,b\n1,2\n\n```\n\nFile "c.md":\n```\n# C\n```'
    with pytest.raises(InvalidInput, match="not an image, audio, text or a PDF file"):
        await agent.run("Look", attachments=[File("d.bin", b"\xff")])
    with pytest.raises(InvalidInput, match=r"d\.pdf.*not a readable PDF"):
        await agent.run("Look", attachments=[File("d.pdf", b"%PDF\xff")])
    with pytest.raises(InvalidInput, match="cannot be read"):
        await agent.run("Look", attachments=[tmp_path / "none.txt"])


async def test_the_text_of_a_pdf_goes_with_the_message(tmp_path: Path) -> None:
    (tmp_path / "tea.pdf").write_bytes(pdf("Green tea", "Black tea"))
    model = ScriptedProvider("Two.")
    await Agent(model).run("How many?", attachments=[tmp_path / "tea.pdf"])
    (message,) = model.requests[0].messages
    assert message.content.startswith('How many?\n\nFile "tea.pdf":\n```\n')
    assert [line for line in message.content.splitlines() if "Page" in line or "tea" in line][1:] == [
        "## Page 1", "Green tea", "## Page 2", "Black tea",
    ]  # fmt: skip


# -- streams -------------------------------------------------------------------------------------------------


async def test_a_stream_has_events_text_and_a_result() -> None:
    agent = Agent(ScriptedProvider("one two", "three four"))
    stream = agent.stream("Hi")
    types = [event.type async for event in stream]
    assert (types[0], types[-1]) == ("run.started", "run.completed")
    assert stream.result.text == "one two"
    async with agent.stream("Hi") as stream:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.result
        assert [text async for text in stream.text()] == ["three ", "four"]
    assert stream.result.output == "three four"


async def test_the_events_of_a_stream_are_classes() -> None:
    """With the fields of their payload; those that an event lacks have a default."""
    model = ScriptedProvider(ToolCall("1", "weather", '{"city": "Paris"}'), "Sunny.")
    lines = []
    async for event in Agent(model, tools=[weather]).stream("Hi"):
        assert type(event) is not Event, event.type
        match event:
            case ToolStarted(name=name, arguments={"city": city}):
                lines.append(f"{name} {city}")
            case ToolFinished(ok=True, error="", data={"duration_ms": float()}):
                lines.append("finished")
            case ModelDelta(content=text, role="assistant"):
                lines.append(text)
            case RunCompleted(response=text, type="run.completed"):
                lines.append(text)
    assert lines == ["weather Paris", "finished", "Sunny.", "Sunny."]
    later = Event("r", 1, 0.0, "of.later", {})
    assert typed(later) is later
    with pytest.raises(AttributeError, match="RunCompleted has no field 'output'"):
        _ = typed(Event("r", 1, 0.0, "run.completed", {})).output  # type: ignore[attr-defined]


async def test_leaving_a_stream_cancels_its_run() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request: CompletionRequest) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    agent = Agent(slow)
    async with agent.stream("Hi") as stream:
        async for _ in stream:
            if begun.is_set():
                break
            await asyncio.sleep(0)
    assert cancelled.is_set()


async def test_a_stream_raises_what_its_run_raises() -> None:
    agent = Agent(ScriptedProvider(ProviderTimeout("slow"), repeat=True))
    stream = agent.stream("Hi")
    with pytest.raises(AllProvidersFailed):
        async for _ in stream.text():
            pass
    with pytest.raises(AllProvidersFailed):
        _ = stream.result
    stream = agent.stream("Hi", on_error="return")
    assert [event.type async for event in stream][-1] == "run.failed"
    assert not stream.result.ok


# -- lifetimes -----------------------------------------------------------------------------------------------


def test_several_event_loops_one_after_another_have_answers() -> None:
    agent = Agent(ScriptedProvider("a", "b", "c"))
    assert [asyncio.run(agent.run("Hi")).text for _ in range(3)] == ["a", "b", "c"]


async def test_run_sync_in_a_running_loop_says_what_to_write() -> None:
    with pytest.raises(RuntimeError, match=r"Await `agent\.run"):
        Agent(ScriptedProvider("x")).run_sync("Hi")


def test_it_works_as_context_manager_and_without() -> None:
    model = ScriptedProvider("a", "b", "c", "d")
    with Agent(model) as agent:
        assert [agent.run_sync("Hi").text, agent.run_sync("Hi").text] == ["a", "b"]
    assert agent.run_sync("Hi").text == "c"

    async def entered() -> str:
        async with agent:
            return (await agent.run("Hi")).text

    assert asyncio.run(entered()) == "d"


async def test_agents_that_are_dropped_are_closed() -> None:
    """pytest makes an unclosed session an error."""
    gc.freeze()  # what there was before is not looked at
    for _ in range(3):
        await Agent(ScriptedProvider("a")).run("Hi")
        gc.collect()


QUIET = """
import asyncio
from astromesh import Agent, tool

@tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b

async def model(request):
    return "fine"

agent = Agent(model, tools=[add], memory="memory")
assert agent.run_sync("Hi", session_id="s").text == "fine"
for _ in range(2):
    assert asyncio.run(agent.run("Hi")).text == "fine"
stays = asyncio.new_event_loop()
stays.run_until_complete(agent.run("Hi"))
stays.run_until_complete(agent.close())
stays.close()
failing = Agent("openai:gpt-4o-mini", on_error="return")
print(failing.run_sync("Hi").ok)
"""


def test_stores_are_closed_in_order_at_the_end_of_each_loop(tmp_path: Path) -> None:
    """asyncio closes async generators at once; those of stores that hold others would fail and print it."""
    program = """
import asyncio
from astromesh import Agent

async def model(request):
    return "Hi"

async def chats(*agents):
    for agent in agents:
        await agent.run("Hi", session_id="s")

for place in range(4):
    asyncio.run(chats(*(Agent(model, memory=f"sqlite:{number}.db") for number in range(3))))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_nothing_is_printed_and_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    """No log line, no "Unclosed client session", no folder for data."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", QUIET],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    # asyncio itself names what a busy machine makes slow
    told = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.stdout, told) == ("False\n", [])
    assert list(tmp_path.iterdir()) == []


# -- in tests of users ---------------------------------------------------------------------------------------


async def test_a_model_is_replaced_in_a_context() -> None:
    agent = Agent("openai:gpt-4o-mini", tools=[weather], memory="memory")
    with agent.override(model=ScriptedProvider("one", "two")):
        assert (await agent.run("Hi", session_id="s")).text == "one"
        assert (await asyncio.create_task(agent.run("Hi", session_id="s"))).text == "two"
        with agent.override(model=ScriptedProvider("three"), tools=[]):
            assert (await agent.run("Hi")).text == "three"
    with pytest.raises(ConfigError):
        await agent.run("Hi")


async def test_dependencies_are_replaced_in_a_context() -> None:
    @tool
    def who(ctx: ToolContext[str]) -> str:
        """Who."""
        return ctx.deps

    agent = Agent(ScriptedProvider(ToolCall("1", "who"), "x", ToolCall("1", "who"), "x"), tools=[who])
    with agent.override(deps="test"):
        assert (await agent.run("?", deps="live")).messages[2].content == "test"
    assert (await agent.run("?", deps="live")).messages[2].content == "live"


async def test_plugins_may_be_given() -> None:
    agent = Agent(ScriptedProvider("x"), plugins=Plugins())
    assert (await agent.run("Hi")).text == "x"


ASKS_EXPERT = ToolCall("1", "expert", '{"query": "?"}')


def boss_and_expert(*script: Any, expert: Any = "openai:gpt-4o-mini") -> tuple[Agent, Agent]:
    made = Agent(expert, name="expert")
    return Agent(ScriptedProvider(*script), name="boss", tools=[made.as_tool()]), made


async def test_an_overridden_agent_is_so_as_a_tool_of_another_one() -> None:
    """Inside the context alone, also when the other one is open, and in a runtime that is opened there."""
    boss, expert = boss_and_expert(*[ASKS_EXPERT, "done"] * 3, expert=ScriptedProvider("real", repeat=True))

    async def told() -> str:
        return (await boss.run("q")).messages[2].content

    assert "real" in await told()
    with expert.override(model=ScriptedProvider("scripted")):
        assert "scripted" in await told()
    assert "real" in await told()
    with expert.override(model=ScriptedProvider("served")):
        async with AgentRuntime(agents=[expert]) as runtime:
            assert (await runtime.run("expert", "q", "s")).response == "served"


async def test_both_agents_of_a_program_are_overridden_in_any_order() -> None:
    boss, expert = boss_and_expert()
    for outer, inner in ((boss, expert), (expert, boss)):
        models = {id(boss): ScriptedProvider(ASKS_EXPERT, "done"), id(expert): ScriptedProvider("known")}
        with outer.override(model=models[id(outer)]), inner.override(model=models[id(inner)]):
            assert "known" in (await boss.run("q")).messages[2].content


async def test_a_recording_has_the_calls_of_agents_that_are_tools(tmp_path: Path) -> None:
    file = tmp_path / "both.json"
    boss, _ = boss_and_expert(ASKS_EXPERT, "done", expert=ScriptedProvider("once"))
    for _ in range(2):  # the models answer once
        with record(boss, file):
            assert "once" in (await boss.run("q")).messages[2].content


async def test_a_stream_keeps_the_model_of_the_context_that_made_it() -> None:
    agent = Agent("openai:gpt-4o-mini")
    with agent.override(model=ScriptedProvider("scripted")):
        stream = agent.stream("q")
    assert "".join([text async for text in stream.text()]) == "scripted"
