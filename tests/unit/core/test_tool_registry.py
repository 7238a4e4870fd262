"""The registry: who sees which tool, what stands before a tool, and one result whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from astromesh.config.agent import ToolBlock
from astromesh.core.tools import AgentTools, ToolRegistry, declare_source, declare_tool, policy_of_block
from astromesh.errors import (
    AgentNotFoundError,
    BudgetExhausted,
    ConfigError,
    InvalidToolCall,
    ToolPermissionError,
    ToolRateLimitError,
)
from astromesh.testing import ManualClock, RecordingTool
from astromesh.tools.base import DeclaredSource, DeclaredTool, RateLimit, ToolContext, ToolPolicy
from astromesh.types import CallerContext, SessionKey, ToolCall, ToolSpec

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CONTEXT = ToolContext(run_id="run_1", call_id="c1", agent="bot", session=SessionKey("t", "bot", "s"))


def search(answer: object = "found", name: str = "search") -> RecordingTool:
    return RecordingTool(name, answer, parameters=QUERY)


def bound(
    *tools: RecordingTool, policy: ToolPolicy | None = None, clock: ManualClock | None = None
) -> AgentTools:
    registry = ToolRegistry(clock or ManualClock())
    return registry.bind("bot", [DeclaredTool(t.spec, t, policy or ToolPolicy()) for t in tools])


async def run(tools: AgentTools, arguments: str = '{"query": "x"}', name: str = "search", context=CONTEXT):
    return await tools.execute(ToolCall("c1", name, arguments), context)


async def test_a_good_call_reaches_the_tool_and_its_value_comes_back_as_text_and_value():
    """Arguments arrive parsed; text stays text, data becomes JSON."""
    tool = search({"n": 1})
    result = await run(bound(tool))
    assert (result.ok, result.call_id, result.name, result.content) == (True, "c1", "search", '{"n":1}')
    assert (result.value, tool.calls) == ({"n": 1}, [{"query": "x"}])
    assert tool.contexts == [CONTEXT]


# -- who may use what ----------------------------------------------------------------------------------------


async def test_tools_that_are_not_permitted_are_neither_shown_nor_run():
    """Permissions hold in the schemas of step 6 and again in step 9."""
    tool = search()
    tools = ToolRegistry().bind("bot", [tool, search(name="other")], permitted=["other"])
    assert [spec.name for spec in tools.specs()] == ["other"]
    result = await run(tools)
    assert (result.ok, result.error, tool.calls) == (False, "tool_not_permitted", [])


def test_an_empty_list_of_permissions_permits_nothing():
    """`tools: []` is not the same as no permissions block."""
    assert ToolRegistry().bind("bot", [search()], permitted=[]).specs() == ()
    assert len(ToolRegistry().bind("bot", [search()], permitted=None).specs()) == 1


def test_schemas_have_the_function_calling_form():
    """What document 001 shows for step 6."""
    registry = ToolRegistry()
    registry.bind("bot", [search()])
    assert registry.schemas("bot") == [
        {"type": "function", "function": {"name": "search", "description": "search", "parameters": QUERY}}
    ]


@pytest.mark.parametrize(
    ("tools", "permitted", "says"),
    [
        ([search(), search()], None, "two tools named 'search'"),
        ([search()], ["serach"], "permits the undeclared tool 'serach'"),
        ([RecordingTool("t", parameters={"type": "nonsense"})], None, "'t' are not a JSON Schema"),
        (
            [RecordingTool("t", parameters={"$ref": "http://127.0.0.1:9/s.json"})],
            None,
            "'t' are not a JSON Schema",
        ),
    ],
)
def test_faults_of_the_declaration_are_found_when_the_agent_is_bound(tools, permitted, says):
    """Doubled names, permissions without a tool, broken schemas; and no schema fetches anything."""
    with pytest.raises(ConfigError, match=says):
        ToolRegistry().bind("bot", tools, permitted)


def test_the_block_overrides_what_the_tool_says_of_itself():
    """Name, description, schema and effect come from YAML where it says them; the rest is the tool's."""
    block = ToolBlock(name="lookup", type="webhook", timeout_seconds=5.0, idempotency="key")
    tool = declare_tool(search(), block)
    assert tool.spec == ToolSpec("lookup", "search", QUERY, "external", repeatable=True)
    assert tool.policy == ToolPolicy(timeout_seconds=5.0, idempotency="key")
    assert declare_tool(search(), ToolBlock(name="a", type="agent")).policy.timeout_seconds is None
    own = ToolBlock(name="b", type="rag", parameters={"type": "object"}, description="D", effect="write")
    assert declare_tool(search(), own).spec == ToolSpec("b", "D", {"type": "object"}, "write")


def test_a_block_says_how_its_tool_may_be_used():
    """What it omits is the usual."""
    assert policy_of_block(ToolBlock(name="t", type="internal")) == ToolPolicy()
    keys = {
        "rate_limit": {"max_calls": 2, "window_seconds": 9.0},
        "max_result_tokens": 7,
        "max_calls_per_run": 3,
        "approval": {"when": "amount > 1"},
        "trusted": True,
    }
    always = policy_of_block(ToolBlock(name="t", type="internal", approval="required"))
    assert (always.approval, always.approve_if) == ("required", None)
    policy = policy_of_block(ToolBlock.model_validate({"name": "t", "type": "internal", **keys}))
    assert (policy.rate_limit, policy.max_result_tokens) == (RateLimit(2, 9.0), 7)
    assert (policy.max_calls_per_run, policy.approval, policy.trusted) == (3, "required", True)
    assert policy.approve_if is not None
    assert [policy.approve_if({"amount": amount}) for amount in (1, 2)] == [False, True]


# -- sources whose tools change ------------------------------------------------------------------------------


class Shelf:
    """A source whose tools a test changes."""

    for_callers_only = False

    def __init__(self, *tools, reason=""):
        self.offered, self.reason, self.prepared = tuple(tools), reason, 0

    def current(self):
        return self.offered

    async def prepare(self):
        self.prepared += 1

    def missing(self):
        return self.reason

    async def tools(self):
        return self.offered

    async def close(self): ...


def names(tools):
    return [spec.name for spec in tools.specs()]


async def test_the_tools_of_a_source_come_and_go():
    first, later = search(name="first"), search("late", name="later")
    shelf = Shelf(first)
    tools = ToolRegistry().bind("bot", [search(), DeclaredSource("shelf", shelf)])
    assert names(tools) == ["search", "first"]
    before = tools.specs()
    assert tools.specs() is before
    shelf.offered = (first, later)
    assert names(tools) == ["search", "first", "later"]
    assert (await run(tools, name="later")).content == "late"
    shelf.offered = (later,)
    result = await run(tools, name="first")
    assert (result.ok, "no tool 'first'" in result.content) == (False, True)
    shelf.offered = ()
    assert names(tools) == ["search"]


@pytest.mark.parametrize(
    ("permitted", "seen"),
    [
        (None, ["search", "a", "b"]),
        (["search", "b"], ["search", "b"]),
        (["shelf"], ["a", "b"]),
        ([], []),
        (["unknown"], []),  # it may come later
    ],
)
async def test_a_permission_names_a_tool_or_its_source(permitted, seen):
    a, b = search(name="a"), search(name="b")
    tools = ToolRegistry().bind("bot", [search(), DeclaredSource("shelf", Shelf(a, b))], permitted)
    assert names(tools) == seen
    assert (await run(tools, name="a")).ok is ("a" in seen)
    assert len(a.calls) == ("a" in seen)


async def test_a_tool_of_a_source_that_cannot_be_offered_is_left_out_with_a_line_in_the_log():
    broken = RecordingTool("broken", parameters={"type": "nonsense"})
    shelf = Shelf(search("theirs"), broken, search(name="fine"))
    with capture_logs() as logged:
        tools = ToolRegistry().bind("bot", [search("ours"), DeclaredSource("shelf", shelf)])
        assert names(tools) == ["search", "fine"]
        assert (await run(tools)).content == "ours"
    lines = [(line["event"], line["tool"], "name is taken" in line["reason"]) for line in logged]
    assert lines == [("tool_left_out", "search", True), ("tool_left_out", "broken", False)]


async def test_an_agent_knows_what_its_sources_miss():
    missing, complete = Shelf(reason="The server is down."), Shelf(search())
    tools = ToolRegistry().bind("bot", [DeclaredSource("far", missing), DeclaredSource("near", complete)])
    assert (tools.live, tools.missing_tools(), tools.callers_only_block()) == (
        True,
        ("The server is down.",),
        "",
    )
    await tools.prepare()
    assert (missing.prepared, complete.prepared) == (1, 1)
    complete.for_callers_only = True
    assert tools.callers_only_block() == "near"
    fixed = bound(search())
    assert (fixed.live, fixed.missing_tools(), fixed.callers_only_block()) == (False, (), "")


async def test_a_source_says_what_its_tools_do_unless_their_block_does():
    spec = ToolSpec("send", effect="external", trusted=True)
    tool = RecordingTool("send")
    tool.spec = spec
    for block, effect, repeatable, untrusted in (
        ({}, "external", False, False),
        ({"effect": "read", "idempotency": "key", "trusted": False}, "read", True, True),
    ):
        given = ToolBlock.model_validate({"name": "shelf", "type": "mcp", "server": "far", **block})
        tools = ToolRegistry().bind("bot", [declare_source(Shelf(tool), given)])
        [offered] = tools.specs()
        assert (offered.effect, offered.repeatable) == (effect, repeatable)
        assert (await run(tools, "{}", "send")).untrusted is untrusted


# -- document 001's form -------------------------------------------------------------------------------------


async def test_the_simplified_signature_of_the_document_works():
    """`execute(tool_name, arguments, agent_name)` answers the value and raises the named errors."""
    clock = ManualClock()
    registry = ToolRegistry(clock)
    tool = search("found")
    registry.bind(
        "bot",
        [DeclaredTool(tool.spec, tool, ToolPolicy(rate_limit=RateLimit(1, 60))), search(name="x")],
        ["search"],
    )
    assert await registry.execute("search", {"query": "a"}, "bot") == "found"
    with pytest.raises(ToolRateLimitError, match="Try again in 60 s"):
        await registry.execute("search", {"query": "a"}, "bot")
    with pytest.raises(ToolPermissionError):
        await registry.execute("x", {"query": "a"}, "bot")
    with pytest.raises(InvalidToolCall, match="Did you mean 'search'"):
        await registry.execute("serach", {"query": "a"}, "bot")
    with pytest.raises(AgentNotFoundError):
        await registry.execute("search", {"query": "a"}, "nobody")


# -- limits --------------------------------------------------------------------------------------------------


async def test_a_rate_limit_opens_again_when_its_window_has_passed():
    """The clock decides, and the tool is not called in between."""
    clock, tool = ManualClock(), search()
    tools = bound(tool, policy=ToolPolicy(rate_limit=RateLimit(2, 60.0)), clock=clock)
    assert [(await run(tools)).ok for _ in range(3)] == [True, True, False]
    clock.advance(60.1)
    assert (await run(tools)).ok
    assert len(tool.calls) == 3


async def test_every_caller_has_a_rate_limit_of_its_own():
    """Principals and tenants do not use up each other's share; sessions of one caller do share it."""
    tools = bound(search(), policy=ToolPolicy(rate_limit=RateLimit(1, 60.0)))
    ann = replace(CONTEXT, caller=CallerContext("ann"))
    other_session = replace(ann, session=SessionKey("t", "bot", "s2"))
    other_tenant = replace(ann, session=SessionKey("u", "bot", "s"))
    oks = [
        (await run(tools, context=c)).ok
        for c in (ann, other_session, replace(ann, caller=None), other_tenant)
    ]
    assert oks == [True, False, True, True]


async def test_a_call_beyond_its_time_is_cancelled_and_told():
    """The tool is stopped, the model learns that what it began may have happened."""
    cancelled = asyncio.Event()

    async def hang(query: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    result = await run(bound(search(hang), policy=ToolPolicy(timeout_seconds=0.01)))
    assert (result.ok, result.error) == (False, "tool_timeout")
    assert "may have happened" in result.content
    assert cancelled.is_set()


async def test_without_a_limit_of_its_own_a_call_lasts_as_long_as_the_run():
    """Agent tools have no timeout: the run's deadline cancels them, and that is no result."""
    task = asyncio.create_task(
        run(bound(search(lambda query: asyncio.Event().wait()), policy=ToolPolicy(timeout_seconds=None)))
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_long_results_are_cut_with_a_note():
    """Four characters count as a token; the whole value stays with the result."""
    result = await run(bound(search("x" * 1000), policy=ToolPolicy(max_result_tokens=10)))
    assert result.content == "x" * 40 + "\n[cut: the result has 1000 characters]"
    assert result.value == "x" * 1000


async def test_an_idempotent_tool_gets_the_same_key_for_the_same_call():
    """The key is made of run and call; other tools get none."""
    tool = search()
    await run(bound(tool, policy=ToolPolicy(idempotency="key")))
    await run(bound(tool))
    assert [context.idempotency_key for context in tool.contexts] == ["run_1/c1", ""]


async def test_further_layers_stand_between_the_checked_arguments_and_the_timeout():
    """Approval will be one: it sees sound arguments only, and its waiting is not the tool's time."""
    seen = []

    def ask(invoke, tool):
        async def asked(arguments, context):
            seen.append((tool.spec.name, arguments))
            await asyncio.sleep(0.05)
            return await invoke(arguments, context)

        return asked

    tool = search()
    tools = ToolRegistry(layers=[ask]).bind(
        "bot", [DeclaredTool(tool.spec, tool, ToolPolicy(timeout_seconds=0.03))]
    )
    assert not (await run(tools, "{}")).ok
    assert (await run(tools)).ok
    assert seen == [("search", {"query": "x"})]


# -- faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("searhc", "{}", "Did you mean 'search'?"),
        ("search", "{", "not valid JSON"),
        ("search", "[1]", "must be a JSON object"),
        ("search", '{"query": 7}', "query: 7 is not of type"),
        ("search", "{}", '"query" is a required property'),
        ("search", '{"query": "\\ud800"}', "not valid JSON"),
        ("search", "[" * 5000, "not valid JSON"),
        ("search", '{"query": "x", "id": 18446744073709551616}', "which would be rounded. Send it as text"),
    ],
)
async def test_what_the_model_did_wrong_comes_back_corrected(name, arguments, says):
    """Trap 24: one corrective result, which names the nearest tool or the place of the fault."""
    result = await run(bound(search()), arguments, name)
    assert (result.ok, result.error) == (False, "invalid_tool_call")
    assert says in result.content


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("no such row"), "ValueError: no such row"),
        (SystemExit(3), "SystemExit: 3"),
        (TimeoutError("socket"), "TimeoutError: socket"),
        (asyncio.CancelledError(), "cancelled itself"),
        (RuntimeError("GET https://bob:hunter22@db.example failed"), "https://bob:***@db.example"),
        (RuntimeError("401 for Bearer abcdef123456"), "Bearer ***"),
        (RuntimeError("url ?api_key=sesame1234&x=1"), "api_key=***&x=1"),
        (RuntimeError("x" * 5000), "xxx"),
    ],
)
async def test_whatever_a_tool_raises_is_a_result_without_stack_or_secrets(error, shown):
    """Not even SystemExit or a stray cancellation ends the run."""
    result = await run(bound(search(error)))
    assert (result.ok, result.error) == (False, "tool_failed")
    assert shown in result.content
    assert "Traceback" not in result.content
    assert len(result.content) < 700


async def test_a_limit_of_the_run_passes_through():
    """Budgets of the run are not the tool's failure."""
    with pytest.raises(BudgetExhausted):
        await run(bound(search(BudgetExhausted("over"))))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(arguments=st.text(), name=st.text(max_size=20) | st.just("search"))
async def test_any_text_as_a_call_gives_exactly_one_result(arguments, name):
    """Property: models may write anything."""
    result = await run(bound(search()), arguments, name)
    assert (result.call_id, result.name) == ("c1", name)
    assert result.ok == (result.error == "")


@settings(deadline=None)
@given(value=JSON | st.binary() | st.sets(st.integers()) | st.text(st.characters()))
async def test_any_value_as_an_answer_gives_text_that_can_be_sent(value):
    """Property: numbers beyond 64 bits, lone surrogates, bytes and sets all become UTF-8 text."""
    result = await run(bound(search(value)))
    assert result.ok
    result.content.encode("utf-8")
