"""PromptNode: the nine steps of document 000, tool loops, guards, schemas and caching."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from astromesh.graph import BaseNode, NodeFlag, NodeResult, PromptGraph, node
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.nodes import PromptNode, ToolNode
from astromesh.graph.nodes.guard import Guard, GuardVerdict
from astromesh.graph.nodes.system_prompt import Rules, Text
from astromesh.testing import RecordingTool, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolCall

SEARCH = RecordingTool(
    "search", "42 hits", description="Finds.\nMore.", parameters={
        "type": "object", "required": ["q"],
        "properties": {"q": {"type": "string"}, "n": {"type": "integer"}},
    },
)  # fmt: skip


def call(name: str = "search", arguments: str = '{"q": "x"}', id: str = "c1") -> ToolCall:
    return ToolCall(id, name, arguments)


async def run(
    prompt: PromptNode, *script: Any, nodes: Sequence[Any] = (), context: dict | None = None, **engine: Any
):
    """One graph that ends with `prompt`, asked "Why?"; what came out, and the model."""
    model = ScriptedProvider(*script)
    graph = PromptGraph(nodes=[*nodes, prompt]).sequential(*(n.name for n in nodes), prompt.name)
    result = await PromptGraphEngine(graph, model, **engine).ainvoke("Why?", context=context)
    return result, model


def system(request: CompletionRequest) -> str:
    assert [m.role for m in request.messages].count("system") <= 1
    return request.messages[0].content if request.messages[0].role == "system" else ""


# -- the nine steps ------------------------------------------------------------------------------------------


async def test_the_steps_run_in_the_documents_order():
    """1 preprocessor, 2-4 prompt, 5 model, 6 parse, 7 guards, 8 strategy, 9 postprocessor, then the write."""
    seen: list[str] = []

    def preprocess(state):
        seen.append("preprocessor")

    @dataclass
    class Spy:
        def wrap(self, prompt):
            seen.append("wrap")
            return prompt + " wrapped"

        def parse(self, output):
            seen.append("strategy parse")
            return output

    class View:
        def apply(self, prompt):
            seen.append("perspective")
            return prompt

    def guard(output):
        seen.append("guard")

    def postprocess(output):
        seen.append("postprocessor")
        return output

    def answer(request):
        seen.append("model")
        return "Because."

    prompt = PromptNode(
        "p", instructions="I", preprocessor=preprocess, strategy=Spy(), perspective=View(), guards=[guard],
        postprocessor=postprocess, output_key="why",
    )  # fmt: skip
    result, model = await run(prompt, answer)
    assert seen == [
        "preprocessor",
        "wrap",
        "perspective",
        "model",
        "guard",
        "strategy parse",
        "postprocessor",
    ]
    assert result.context["why"] == "Because."
    assert result.output == "Because."
    assert system(model.requests[0]) == "I wrapped"


async def test_the_preprocessor_sees_state_and_config_and_may_change_the_state():
    """Step 1, sync or async, with one argument or two."""

    async def prepare(state, config):
        state.context["topic"] = f"cats for {config.node.name}"

    _, model = await run(PromptNode("p", preprocessor=prepare, input_keys=["topic"]), "ok")
    assert system(model.requests[0]) == "## topic\ncats for p"


async def test_context_assembly_puts_everything_into_one_system_message():
    """Step 2: instructions, blocks, tools, inputs, inherited output, plan, reflections, static first."""

    @node("before")
    def before(state):
        state.plan.extend(["one", "two"])
        state.reflections.append("be brief")
        return "found it"

    prompt = PromptNode(
        "p", instructions="Answer.", blocks=[Rules(["no"]), lambda state: f"{len(state.messages)} messages"],
        tools=[SEARCH], input_keys=["data", "absent"], inherit_context_from="before",
    )  # fmt: skip
    _, model = await run(prompt, "ok", nodes=[before], context={"data": {"a": 1}})
    assert system(model.requests[0]) == (
        "Answer.\n\n## Rules\n1. no\n\n## Tools\n- search(q: string, n?: integer): Finds.\n\n"
        "1 messages\n\n## data\n{\"a\":1}\n\n## Result of before\nfound it\n\n## Plan\n1. one\n2. two\n\n"
        "## Reflections\n- be brief"
    )  # fmt: skip


async def test_observations_are_for_nodes_without_tools():
    """Document 000: nodes with tools see tool results in the conversation, the others observations."""

    @node("seen")
    def seen(state):
        state.observations.append("the sky is blue")

    _, without = await run(PromptNode("p", instructions="I"), "ok", nodes=[seen])
    _, with_tools = await run(PromptNode("p", instructions="I", tools=[SEARCH]), "ok", nodes=[seen])
    assert "## Observations\n- the sky is blue" in system(without.requests[0])
    assert "sky" not in system(with_tools.requests[0])


async def test_the_callers_system_message_is_kept_and_extended():
    """There is one system message: the caller's, then the node's."""
    model = ScriptedProvider("ok")
    engine = PromptGraphEngine(PromptGraph(nodes=[PromptNode("p", instructions="Node.")]), model)
    result = await engine.ainvoke([Message("system", "Caller."), Message("user", "Why?")])
    assert model.requests[0].messages == (Message("system", "Caller.\n\nNode."), Message("user", "Why?"))
    assert result.messages[0] == Message("system", "Caller.")


async def test_a_node_without_words_adds_nothing():
    """The pipeline's rendered prompt goes out as it is, tools are bound and not described twice."""
    model = ScriptedProvider("ok")
    engine = PromptGraphEngine(PromptGraph(nodes=[PromptNode("p", inject_tools=True)]), model, tools=[SEARCH])
    given = (Message("system", "Rendered."), Message("user", "Why?"))
    await engine.ainvoke(given)
    assert model.requests[0].messages == given
    assert model.requests[0].tools == (SEARCH.spec,)


async def test_strategy_and_perspective_shape_the_prompt_and_the_answer():
    """Steps 3 and 8 by name: the model is asked to think, the reader gets the answer."""
    prompt = PromptNode("p", instructions="I", strategy="chain_of_thought", perspective="critic")
    result, model = await run(prompt, "First… then…\nAnswer: 42")
    assert system(model.requests[0]).startswith("You are a critic.")
    assert "step by step" in system(model.requests[0])
    assert (result.output, result.messages[-1].content) == ("42", "42")


@pytest.mark.parametrize("keyword", ["strategy", "perspective"])
def test_an_unknown_strategy_or_perspective_is_refused(keyword):
    """When the node is made; the message lists the known ones."""
    with pytest.raises(ValueError, match="Known: "):
        PromptNode("p", **{keyword: "magic"})  # type: ignore[arg-type]


async def test_the_postprocessor_makes_the_output():
    """Step 9, with output, state and config; what it makes is written."""

    async def shout(output, state, config):
        return f"{output.upper()} {len(state.messages)}"

    result, _ = await run(PromptNode("p", postprocessor=shout, output_key="o"), "because")
    assert (result.output, result.context["o"], result.context["p_output"]) == ("BECAUSE 1",) * 3


# -- tools ---------------------------------------------------------------------------------------------------


async def test_a_tool_loop_ends_with_the_models_answer():
    """Step 6: the calls are carried out, the node is entered again, the answer is the model's own words."""
    result, model = await run(PromptNode("p", tools=[SEARCH]), call(), "There are 42.")
    assert result.output == "There are 42."
    assert result.report.nodes_visited == ["p", "p"]
    assert result.report.tool_calls == ["search"]
    assert [m.role for m in model.requests[1].messages] == ["user", "assistant", "tool"]
    assert model.requests[1].messages[2] == Message("tool", "42 hits", tool_call_id="c1", name="search")


async def test_several_calls_run_together_and_keep_their_order():
    """Each waits for the other, so that they end only if they run at the same time."""
    ready = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def meet(me: str, other: str):
        ready[me].set()
        await ready[other].wait()
        return me

    tools = [RecordingTool("a", lambda: meet("a", "b")), RecordingTool("b", lambda: meet("b", "a"))]
    calls = (call("b", "{}", "1"), call("a", "{}", "2"))
    result, model = await run(PromptNode("p", tools=tools), calls, "ok")
    assert [(m.tool_call_id, m.content) for m in model.requests[1].messages[2:]] == [("1", "b"), ("2", "a")]
    assert result.output == "ok"


async def test_wrong_calls_are_corrected_and_answered_once():
    """Trap 24: unknown tools and bad JSON go back to the model, one result each, the nearest named."""
    calls = (call("serch", "{}", "1"), call("search", "{q:", "2"), call("search", '{"q": "x"}', "3"))
    _, model = await run(PromptNode("p", tools=[SEARCH]), calls, "ok")
    results = [m for m in model.requests[1].messages if m.role == "tool"]
    assert [m.tool_call_id for m in results] == ["1", "2", "3"]
    assert "Did you mean 'search'" in results[0].content
    assert "JSON" in results[1].content
    assert results[2].content == "42 hits"


async def test_calls_without_ids_or_with_equal_ones_get_their_own():
    """Some models leave the ids out; every result still belongs to exactly one call."""
    calls = (call(id=""), call(id="x"), call(id="x"))
    _, model = await run(PromptNode("p", tools=[SEARCH]), calls, "ok")
    said, *results = model.requests[1].messages[1:]
    ids = [c.id for c in said.tool_calls]
    assert len(set(ids)) == 3
    assert "" not in ids
    assert [m.tool_call_id for m in results] == ids


async def test_tool_results_become_observations_of_later_nodes():
    """A node without tools that does not see the tool messages is told what they said."""
    first = PromptNode("p", tools=[SEARCH])
    last = PromptNode("q", instructions="Sum up.", flags={NodeFlag.NO_HISTORY})
    model = ScriptedProvider(call(), "found", "done")
    graph = PromptGraph(nodes=[first, last]).sequential("p", "q")
    await PromptGraphEngine(graph, model).ainvoke("Why?")
    assert "42 hits" in system(model.requests[2])
    plain = PromptNode("q", instructions="Sum up.")
    model = ScriptedProvider(call(), "found", "done")
    graph = PromptGraph(nodes=[first, plain]).sequential("p", "q")
    await PromptGraphEngine(graph, model).ainvoke("Why?")
    assert "42 hits" not in system(model.requests[2])
    assert any(m.content == "42 hits" for m in model.requests[2].messages)


async def test_without_a_tool_loop_a_tool_node_carries_the_calls_out():
    """`tool_loop=False`: edges decide; the tool node answers what is pending, the prompt is entered again."""
    graph = PromptGraph(
        nodes=[PromptNode("p", tools=[SEARCH], tool_loop=False), ToolNode("t", tools=[SEARCH])]
    )
    graph.on_tool_call("p", "t").always("t", "p")
    model = ScriptedProvider(call(), "There are 42.")
    result = await PromptGraphEngine(graph, model).ainvoke("Why?")
    assert result.report.nodes_visited == ["p", "t", "p"]
    assert (result.output, result.context["t_output"]) == ("There are 42.", "42 hits")
    assert [m.role for m in model.requests[1].messages] == ["user", "assistant", "tool"]


async def test_calls_that_nobody_carried_out_are_answered_for_the_next_model():
    """A dangling tool call would be refused by model services; the request answers it, the state stays."""
    graph = PromptGraph(nodes=[PromptNode("p", tools=[SEARCH], tool_loop=False), PromptNode("q")])
    graph.always("p", "q")
    model = ScriptedProvider(call(), "fine")
    result = await PromptGraphEngine(graph, model).ainvoke("Why?")
    assert model.requests[1].messages[-1].tool_call_id == "c1"
    assert [m.role for m in result.messages] == ["user", "assistant", "assistant"]


async def test_the_model_never_has_to_go_on_its_own_words():
    """After another node's answer the request ends with a user message, which nobody keeps."""
    graph = PromptGraph(nodes=[PromptNode("p"), PromptNode("q", instructions="Translate.")]).sequential(
        "p", "q"
    )
    model = ScriptedProvider("one", "two")
    result = await PromptGraphEngine(graph, model).ainvoke("Why?")
    assert model.requests[1].messages[-1].role == "user"
    assert [m.content for m in result.messages] == ["Why?", "one", "two"]


@pytest.mark.parametrize("said", ["", "Let me look that up."])
async def test_at_the_limit_the_answer_is_the_models_last_words(said):
    """Traps 11 and 22: N iterations are N model calls; the answer is never a tool result and never silent."""
    reply = CompletionResult(said, (call(),))
    result, model = await run(PromptNode("p", tools=[SEARCH]), *[reply] * 3, max_iterations=3)
    assert len(model.requests) == 3
    assert result.report.stop_reason == "max_iterations"
    assert result.output is None
    assert result.text == (said or "The work could not be finished within the limits that are set for it.")


async def test_what_is_static_is_made_once_per_invocation():
    """Document 000, caching: the prompt's head is made once, what depends on the state every time."""
    rendered: list[str] = []

    class Counted:
        def __init__(self, dynamic):
            self.dynamic = dynamic

        def render(self, state):
            rendered.append("dynamic" if self.dynamic else "static")
            return "x"

    blocks = [Counted(False), Counted(True)]
    await run(PromptNode("p", blocks=blocks, tools=[SEARCH]), call(), call(id="c2"), "ok")
    assert rendered.count("static") == 1
    assert rendered.count("dynamic") == 3


async def test_what_is_made_once_stands_in_the_runs_config_under_the_nodes_name():
    """Document 000: `config[_node_cache_NAME]` has `sys_msg` and `tools`; every entry finds the same ones."""
    seen = []

    def look(state, config):
        seen.append(config.get("_node_cache_p"))

    await run(PromptNode("p", instructions="Help.", tools=[SEARCH], preprocessor=look), call(), "ok")
    first, second = seen
    assert first is None
    assert second.sys_msg.content.startswith("Help.")
    assert [spec.name for spec in second.tools] == ["search"]


class Led(PromptNode):
    """A user's class that makes something of what was said."""

    async def execute(self, state, config):
        result = await super().execute(state, config)
        result.next_node = "b"
        return result


class Passes(BaseNode):
    """Gives a child's words out as its own, with a way of its own."""

    def children(self):
        return (PromptNode("child"),)

    async def execute(self, state, config):
        result = await config.run(PromptNode("child"), state)
        result.next_node = "b"
        return result


@pytest.mark.parametrize("cls", [Led, Passes])
async def test_what_others_make_of_words_alone_counts(cls):
    """An answer in words passes the loop unasked; one that somebody else has touched does not."""
    graph = PromptGraph(nodes=[cls("a"), PromptNode("b"), PromptNode("c")]).always("a", "c")
    result = await PromptGraphEngine(graph, ScriptedProvider("words", repeat=True)).ainvoke("Why?")
    assert [name for name in result.report.nodes_visited if "/" not in name] == ["a", "b"]


# -- output --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "output"),
    [
        ('{"a": 1}', {"a": 1}), ('```json\n{"a": 1}\n```', {"a": 1}),
        ('{"a": 1} as JSON', '{"a": 1} as JSON'), ("[1]", "[1]"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_one_json_object_is_data(said, output):
    """So that edges and transitions can look into it; any other text stays a text."""
    result, _ = await run(PromptNode("p"), said)
    assert result.output == output
    strict, _ = await run(PromptNode("p", routing="edges_only"), said)
    assert strict.output == said


class Verdict(BaseModel):
    ok: bool


async def test_a_structured_answer_is_asked_for_and_used_as_it_is():
    """The schema goes to the model; the output is the schema's own type."""
    result, model = await run(PromptNode("p", output_schema=Verdict), '{"ok": true}')
    assert model.requests[0].output_schema == Verdict.model_json_schema()
    assert result.output == Verdict(ok=True)
    assert result.messages[-1].content == result.text == '{"ok": true}'


async def test_an_answer_that_does_not_fit_is_repaired_once():
    """The model is told what is wrong; if that does not help, the node fails and nothing is let out."""
    result, model = await run(PromptNode("p", output_schema=Verdict), "yes", '{"ok": true}')
    assert result.output == Verdict(ok=True)
    assert "no JSON" in model.requests[1].messages[-1].content
    failed, model = await run(PromptNode("p", output_schema=Verdict), "yes", "no")
    assert failed.output is None
    assert "output_schema" in failed.report.error
    assert len(model.requests) == 2


async def test_with_tools_the_structured_call_is_the_last():
    """Trap 9: the tool loop first, without a schema; then the structured call."""
    prompt = PromptNode("p", tools=[SEARCH], output_schema=Verdict)
    result, model = await run(prompt, call(), "It is fine.", '{"ok": true}')
    assert [r.output_schema is not None for r in model.requests] == [False, False, True]
    assert model.requests[2].tool_choice == "none"
    assert result.output == Verdict(ok=True)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]


# -- guards --------------------------------------------------------------------------------------------------


def no_secret(output):
    return "secret" not in str(output)


async def test_guards_look_at_the_final_answer_alone():
    """Trap 8: not at the steps of a tool loop."""
    seen: list[Any] = []
    prompt = PromptNode("p", tools=[SEARCH], guards=[seen.append])
    await run(prompt, CompletionResult("secret thoughts", (call(),)), "fine")
    assert seen == ["fine"]


async def test_a_guard_that_blocks_lets_nothing_out():
    """Not as output, not in the context, not in the conversation, not as text."""
    result, _ = await run(PromptNode("p", guards=[no_secret], output_key="o"), "the secret is 1")
    assert (result.output, result.text) == (None, "")
    assert "secret is" not in str(result.context) + str(result.messages)
    assert result.report.guards == ["p: no_secret failed"]
    assert "no_secret" in result.report.error


async def test_a_guard_that_retries_tells_the_model_why():
    """Mode `retry`: feedback to the model, a better answer, no trace of the first in the conversation."""

    def short(output):
        return GuardVerdict(len(output) < 5, "At most 4 characters.")

    prompt = PromptNode("p", guards=[Guard(short, "retry")])
    result, model = await run(prompt, "much too long", "42")
    assert result.output == "42"
    assert "At most 4 characters." in model.requests[1].messages[-1].content
    assert [m.content for m in result.messages] == ["Why?", "42"]
    assert result.report.error == ""
    failed, model = await run(prompt, "too long", "still too long", "and again")
    assert failed.output is None
    assert len(model.requests) == 3


async def test_a_guard_that_warns_only_notes():
    """Mode `warn`: the answer goes out, the report says so."""
    result, _ = await run(PromptNode("p", guards=[Guard(no_secret, "warn")]), "a secret")
    assert result.output == "a secret"
    assert result.report.guards == ["p: no_secret failed"]
    assert result.report.error == ""


async def test_what_the_postprocessor_makes_is_guarded_too():
    """No later step can smuggle something past the guards."""
    prompt = PromptNode("p", guards=[no_secret], postprocessor=lambda output: f"{output} secret")
    result, _ = await run(prompt, "fine")
    assert result.output is None
    assert "no_secret" in result.report.error


# -- failures and roles --------------------------------------------------------------------------------------


async def test_processors_that_raise_fail_the_node():
    """With what they said; the run goes on as for any failed node."""

    def broken(output):
        raise ValueError("cannot")

    result, _ = await run(PromptNode("p", postprocessor=broken), "fine")
    assert "cannot" in result.report.error


@pytest.mark.parametrize(
    ("keywords", "voice"),
    [
        ({}, "assistant"),
        ({"instructions": "I"}, "assistant"),
        ({"role": "planner"}, "planner"),
        ({"guards": [no_secret]}, "p"),
        ({"strategy": "self_critique"}, "p"),
        ({"output_schema": Verdict}, "p"),
    ],
)
async def test_only_what_is_answered_as_it_was_said_is_streamed_as_the_answer(keywords, voice):
    """Words that a guard, a strategy or a schema may still change are no tokens of the run's own voice."""
    model = ScriptedProvider('{"ok": true}')
    engine = PromptGraphEngine(PromptGraph(nodes=[PromptNode("p", **keywords)]), model)
    events = [e async for e in engine.astream_events("Why?")]
    assert {e.data["role"] for e in events if e.type == "model.started"} == {voice}


async def test_a_node_is_reused_by_many_runs_at_once():
    """Traps 19 and 25: a node holds nothing of a run."""
    prompt = PromptNode("p", blocks=[Text("x")], tools=[SEARCH], input_keys=["n"])
    before = dict(vars(prompt))

    def echo(request):
        return system(request).rpartition("\n")[2]

    model = ScriptedProvider(echo, repeat=True)
    engine = PromptGraphEngine(PromptGraph(nodes=[prompt]), model)
    results = await asyncio.gather(*(engine.ainvoke("Why?", context={"n": str(i)}) for i in range(20)))
    assert [r.output for r in results] == [str(i) for i in range(20)]
    assert vars(prompt) == before


def test_a_step_of_a_tool_loop_is_marked():
    """The engine tells steps from answers by this alone."""
    assert NodeResult("p", tool_calls=(call(),), transition_reason="tool_calls_present").wants_tools
    assert not NodeResult("p", tool_calls=(call(),)).wants_tools


class Counted:
    """A type that counts how often its schema is made."""

    made = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        cls.made += 1
        return handler(str)


async def test_function_tools_of_a_node_are_compiled_once():
    """Reading a function takes half a millisecond: it belongs to the first run, not to each."""

    def look(word: Counted) -> str:
        return f"saw {word}"

    prompt = PromptNode("p", tools=[look])
    script: list[Any] = [call("look", '{"word": "x"}'), "done"]
    model = ScriptedProvider(*script * 4)
    engine = PromptGraphEngine(PromptGraph(nodes=[prompt]), model)
    await engine.ainvoke("Why?")
    first = Counted.made
    results = [await engine.ainvoke("Why?") for _ in range(3)]
    assert first
    assert Counted.made == first
    assert [r.report.tool_calls for r in results] == [["look"]] * 3
    assert "saw x" in [m.content for m in results[0].messages]
