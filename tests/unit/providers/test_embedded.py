"""The embedded provider: fitting tools, quoted passages, honest silence; it knows no names of ours."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.knowledge.ranking import stem, stems
from astromesh.knowledge.snippets import split_pieces
from astromesh.plugins import Deps
from astromesh.providers.embedded import Embedded, EmbeddedOptions, choose_tool, fill_arguments
from astromesh.text import NEAREST_FOUND, NOTHING_FOUND
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    Message,
    ToolCall,
    ToolSpec,
)

STEPS = """## Reset your password

To reset your password, go to Settings > Security. You will get a mail with a link.

1. Open Settings.
2. Choose Security.
3. Press Reset.

## Change your address

Under Settings > Profile you can change the address of your account.
"""
PASSAGES = [
    {"document": "account.md", "heading": "Reset your password", "score": 0.9, "text": STEPS},
    {"document": "billing.md", "heading": "Refunds", "score": 0.2,
     "text": "Invoices are sent monthly. Refunds are possible within 14 days after the purchase."},
]  # fmt: skip


def text_tool(
    name="search_knowledge_base", argument="query", description="Search the knowledge base"
) -> ToolSpec:
    schema = {"type": "object", "required": [argument], "properties": {argument: {"type": "string"}}}
    return ToolSpec(name, description, schema)


async def embedded() -> Embedded:
    return await Embedded.open(EmbeddedOptions(), Deps())


async def say(*messages: Message, tools: tuple[ToolSpec, ...] = (), **request) -> CompletionResult:
    return await (await embedded()).complete(CompletionRequest(messages, tools, **request))


def user(text: str) -> Message:
    return Message("user", text)


def after_call(question: str, result: object, name: str = "search") -> tuple[Message, ...]:
    content = result if isinstance(result, str) else orjson.dumps(result).decode()
    call = ToolCall("c1", name, "{}")
    return user(question), Message("assistant", "", (call,)), Message("tool", content, (), "c1", name)


def arguments_of(call: ToolCall | None) -> JsonObject | None:
    return None if call is None else orjson.loads(call.arguments)


# -- tools ---------------------------------------------------------------------------------------------------


async def test_a_search_tool_is_called_with_the_question_before_anything_is_said():
    result = await say(user("How do I reset my password?"), tools=(text_tool(),))
    assert result.finish_reason == "tool_calls"
    assert arguments_of(result.tool_calls[0]) == {"query": "How do I reset my password?"}


@pytest.mark.parametrize("argument", ["q", "question", "p1", "needle"])
async def test_names_do_not_matter_only_what_the_tool_says_of_itself(argument):
    tool = text_tool("zx9", argument, "Looks through the documents")
    result = await say(user("How do I reset my password?"), tools=(tool,))
    assert arguments_of(result.tool_calls[0]) == {argument: "How do I reset my password?"}


WEATHER = text_tool("get_weather", "city", "Weather forecast of a city")
NOW = ToolSpec("now", "The current date and time")
CONVERT = ToolSpec(
    "convert",
    "Converts an amount of money to another currency",
    {
        "type": "object",
        "required": ["amount", "currency"],
        "properties": {"amount": {"type": "number"}, "currency": {"type": "string", "enum": ["EUR", "CHF"]}},
    },
)
ORDER = text_tool("order_status", "order_id", "Status of an order")
TICKET = ToolSpec(
    "create_ticket",
    "Creates a support ticket",
    {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}},
    "external",
)


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What time is it?", "now", {}),
        ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
        ("What is the status of my order #A-1234?", "order_status", {"order_id": "A-1234"}),
        ("Convert 42 to CHF", "convert", {"amount": 42, "currency": "CHF"}),
        (
            "Please create a ticket: the printer is broken",
            "create_ticket",
            {"title": "the printer is broken"},
        ),
        ('Could you create a ticket "No paper"?', "create_ticket", {"title": "No paper"}),
        ("How do I reset my password?", "search_knowledge_base", {"query": "How do I reset my password?"}),
    ],
)
def test_the_tool_that_fits_is_chosen_and_its_arguments_are_read_off_the_question(question, name, arguments):
    call = choose_tool(question, (text_tool(), NOW, WEATHER, CONVERT, ORDER, TICKET))
    assert call is not None
    assert (call.name, arguments_of(call)) == (name, arguments)


@pytest.mark.parametrize(
    "question",
    [
        "How do I create a ticket?",
        "Don't create a ticket: no",
        "My printer is broken",
        "Create a ticket",
        "What is a ticket?",
    ],
)
def test_a_tool_with_an_effect_needs_a_clear_request_and_all_it_requires(question):
    assert choose_tool(question, (TICKET,)) is None


@pytest.mark.parametrize("question", ["What is the weather like?", "Convert it to CHF", "How is my order?"])
def test_a_tool_whose_required_arguments_are_not_in_the_question_is_not_called(question):
    assert choose_tool(question, (WEATHER, CONVERT, ORDER)) is None


def test_an_unrelated_tool_is_not_called_and_neither_is_one_for_a_greeting():
    assert choose_tool("How do I reset my password?", (NOW,)) is None
    assert choose_tool("Hello!", (text_tool(),)) is None


def test_tool_choice_none_forbids_and_a_name_demands():
    assert choose_tool("What time is it?", (NOW,), (), "none") is None
    call = choose_tool("Tell me about llamas", (NOW, text_tool()), (), "now")
    assert call is not None
    assert call.name == "now"


async def test_a_second_tool_is_asked_when_the_first_found_nothing():
    tools = (text_tool("search_faq"), text_tool("search_wiki"))
    asked = after_call("How do I reset my password?", [], "search_faq")
    result = await say(*asked, tools=tools)
    assert [call.name for call in result.tool_calls] == ["search_wiki"]


async def test_no_tool_is_called_twice_for_one_question():
    result = await say(*after_call("How do I reset my password?", []), tools=(text_tool("search"),))
    assert result.content == NOTHING_FOUND


# -- answers -------------------------------------------------------------------------------------------------


async def test_the_best_passage_is_quoted_with_its_steps_and_its_source():
    result = await say(*after_call("How do I reset my password?", {"passages": PASSAGES}))
    assert "To reset your password, go to Settings > Security." in result.content
    assert "1. Open Settings.\n2. Choose Security.\n3. Press Reset." in result.content
    assert result.content.endswith("Source: account.md")
    assert "Profile" not in result.content
    assert "Refunds" not in result.content


async def test_of_running_text_only_the_sentence_that_answers_is_quoted():
    result = await say(*after_call("Are refunds possible?", {"passages": PASSAGES}))
    assert result.content == "Refunds are possible within 14 days after the purchase.\n\nSource: billing.md"


@given(st.lists(st.from_regex(r"[a-z]{3,9}", fullmatch=True), min_size=3, max_size=3, unique=True))
def test_field_names_of_a_result_do_not_matter(names):
    text, source, number = names
    found = [{number: 3, source: "docs/account.md", text: "To reset the password press the red button."}]
    messages = after_call("How do I reset the password?", {"zz": found})
    answer = _answer(messages)
    assert answer == "To reset the password press the red button.\n\nSource: docs/account.md"


def _answer(messages: tuple[Message, ...]) -> str:
    text, call = Embedded(EmbeddedOptions())._decide(CompletionRequest(messages))
    assert call is None
    return text


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"order": "A-1", "status": "shipped"}, "- order: A-1\n- status: shipped"),
        ("2026-11-21T08:40:00", "2026-11-21T08:40:00"),
        (42.5, "42.5"),
        (["red", "green"], "red, green"),
        (
            "Shipped with the truck of today.\nSource: warehouse.txt",
            "Shipped with the truck of today.\n\nSource: warehouse.txt",
        ),
    ],
)
def test_what_a_tool_answers_in_short_is_passed_on_as_it_is(result, expected):
    assert _answer(after_call("Where is it?", result)) == expected


@pytest.mark.parametrize(
    "result", [[], {}, None, "", {"passages": []}, {"error": "no such index"}, "The tool 'search' failed: x"]
)
def test_nothing_found_is_said_plainly(result):
    assert _answer(after_call("How do I reset my password?", result)) == NOTHING_FOUND


def test_passages_about_something_else_are_not_sold_as_an_answer():
    assert _answer(after_call("Do you sell bicycles?", {"passages": PASSAGES})) == NOTHING_FOUND
    far = _answer(
        after_call("Are refunds paid for annual plans bought in Germany by invoice?", {"passages": PASSAGES})
    )
    assert far.startswith(NEAREST_FOUND)


def test_a_word_in_two_that_a_passage_happens_to_have_is_no_answer():
    """`rest` of a question misspelt twice stands in a text about prices; a heading that names it is one."""
    texts = ["The rest of the month is charged at once.", "Sign in with your password."]
    passages = {"passages": [{"text": text, "source": "a.md"} for text in texts]}
    assert _answer(after_call("how do i rest my pasword", passages)).startswith(NEAREST_FOUND)
    titled = {
        "passages": [{"text": "## Volcanoes\n\nMost of them stand where plates meet.", "source": "b.md"}]
    }
    assert "plates meet" in (said := _answer(after_call("Where are most volcanoes found?", titled)))
    assert not said.startswith(NEAREST_FOUND)


@pytest.mark.parametrize(
    ("score", "said"), [(0.03, NOTHING_FOUND), (0.4, f"{NEAREST_FOUND}Dinner"), (0.9, "Dinner")]
)
@pytest.mark.parametrize(
    ("name", "text"), [("a.docx", "# Meals\n\nDinner"), ("all the meals of a year/part one.docx", "Dinner")]
)
def test_a_passage_of_knowledge_may_be_short(score, said, name, text):
    """It is no record of values, and a name that is longer than the text is not the text."""
    record = {"document": name, "title": "Meals", "heading": "Meals", "start": 0, "end": 15, "score": score,
              "text": text}  # fmt: skip
    expected = said if score < 0.1 else f"{said}\n\nSource: {name}"
    assert _answer(after_call("Who won the cup?", {"passages": [record]})) == expected


async def test_the_system_prompt_is_context_but_its_instructions_are_none():
    items = "- The office opens at nine.\n- The canteen opens at twelve."
    system = f"You are a bot that opens offices. Be nice.\n\n{items}"
    result = await say(Message("system", system), user("When does the office open?"))
    assert result.content == "- The office opens at nine."
    told = await say(Message("system", "You are a bot that resets passwords."), user("Who resets passwords?"))
    assert told.content == NOTHING_FOUND


async def test_a_list_of_tools_in_the_system_prompt_is_no_answer():
    """Not as a supervisor lists its workers, and not as a swarm lists its agents."""
    about = "Knows billing: plans, prices, invoices and refunds."
    tools = (
        text_tool("billing", "task", f"Delegates a task to the agent billing. {about}"),
        text_tool("hand_over", "message", f"Hands the conversation over to billing. {about}"),
    )
    system = (
        f"## Tools\n- billing(task: string): {tools[0].description}\n\n## Other agents\n- billing: {about}"
    )
    prompt = (Message("system", system), Message("user", "Billing: which plans, prices and refunds?"))
    assert "Knows billing" in (await say(*prompt)).content
    assert (await say(*prompt, tools=tools, tool_choice="none")).content == NOTHING_FOUND


async def test_what_the_user_said_earlier_is_remembered():
    result = await say(
        user("My favourite colour is green."),
        Message("assistant", "Noted."),
        user("Which colour is my favourite?"),
    )
    assert result.content == "You said: “My favourite colour is green.”"


async def test_prompts_of_patterns_get_plain_text_and_no_json():
    prompt = "Answer as JSON with the keys verdict and reason.\n\n" + "\n\n".join(
        f"Candidate {i}: The moon is {i} times as far away as the sea is deep, some say." for i in range(9)
    )
    for schema in (None, {"type": "object"}):
        result = await say(user(prompt), output_schema=schema)
        assert result.content
        assert not result.content.lstrip().startswith(("{", "["))
        assert not result.tool_calls


async def test_findings_inside_a_long_prompt_are_material_to_quote():
    prompt = "Task: How do I reset my password?\n\nFindings of the workers:\n\n" + STEPS * 2
    assert "Press Reset" in (await say(user(prompt))).content


# -- the seam ------------------------------------------------------------------------------------------------


async def test_the_streamed_pieces_are_the_whole_answer():
    request = CompletionRequest(after_call("How do I reset my password?", {"passages": PASSAGES}))
    got = [piece async for piece in (await embedded()).stream(request)]
    deltas = [piece.content for piece in got[:-1] if isinstance(piece, Delta)]
    assert len(deltas) > 2
    assert isinstance(got[-1], CompletionResult)
    assert "".join(deltas) == got[-1].content


@given(st.text())
def test_pieces_lose_nothing(text):
    assert "".join(split_pieces(text)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
).map(json.dumps)


@given(st.text(max_size=200), st.text(max_size=300) | JSON)
def test_no_question_and_no_result_breaks_it(question, result):
    request = CompletionRequest(after_call(question, result), (text_tool(), NOW, CONVERT, TICKET))
    text, call = Embedded(EmbeddedOptions())._decide(request)
    assert bool(text) != bool(call)


async def test_usage_is_counted_and_free():
    result = await say(*after_call("Are refunds possible?", {"passages": PASSAGES}))
    assert result.usage.input_tokens > 50
    assert result.usage.output_tokens > 5
    assert result.usage.cost_usd == 0


def test_it_declares_that_it_is_no_language_model_and_gives_no_json():
    assert not Embedded.capabilities.json
    assert not Embedded.capabilities.language_model


# -- words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forms",
    [
        ("reset", "resets", "resetting"),
        ("change", "changed", "changing", "changes"),
        ("policy", "policies"),
        ("configure", "configuration", "configuring"),
        ("refund", "refunds", "refunded"),
        ("delete", "deletion"),
    ],
)
def test_forms_of_one_word_have_one_stem(forms):
    assert len({stem(form) for form in forms}) == 1


def test_stop_words_say_nothing_and_scripts_without_blanks_are_cut():
    assert stems("How do I reset my e-mail?") == ["reset", "email"]
    assert set(stems("パスワードを変更")) & set(stems("パスワードの変更方法"))


async def test_two_dates_of_a_question_become_two_arguments_in_their_order() -> None:
    date = {"type": "string", "format": "date"}
    parameters = {"type": "object", "required": ["start", "end"], "properties": {"start": date, "end": date}}
    question = "How many days from 2026-01-01 to 2026-03-01?"
    assert fill_arguments(parameters, question, whole=False) == {"start": "2026-01-01", "end": "2026-03-01"}
    assert fill_arguments(parameters, "How many days since 2026-01-01?", whole=False) is None
