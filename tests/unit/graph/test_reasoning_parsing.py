"""The reasoning controller: hidden reasoning is left out, and nothing else (behaviour 49)."""

from __future__ import annotations

import json

import pytest

from astromesh.graph.model_output import without_thinking
from astromesh.graph.reasoning.parsing import answer_in
from astromesh.testing import RecordingTool
from tests.unit.graph.reasoning_runs import ACCEPTED, LOOKUP, NEEDS_TOOL, STEP, reason

HARMONY = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>"

#: A model's text, and the answer in it.
HIDDEN = [
    ("<think>a</think>b", "b"),
    ("\n<think>\na\n</think>\n\nb", "b"),
    ("<Think>a</THINK> b", "b"),
    ('<thinking depth="2">a</thinking>b', "b"),
    ("<seed:think>a</seed:think>b", "b"),
    ("<think>a</think><think>c</think>b", "b"),
    ("<think>a<think>b</think>c</think>y", "y"),
    ("<think>Write <think> tags.</think>b", "b"),
    ("<think>a</think>\n\n    indented", "    indented"),
    ("<think>a</think>Close it with `</think>`.", "Close it with `</think>`."),
    ("<think>a</think>Use <think>this</think> tag.", "Use <think>this</think> tag."),
    ("a, begun in the prompt\n</think>\n\nb", "b"),
    ("a, begun in the prompt\n  </think>  \nb", "b"),
    ("a, begun in the prompt\n</thinking>\n```\nb\n```", "```\nb\n```"),
    ("[THINK]a[/THINK]b", "b"),
    ("◁think▷a◁/think▷b", "b"),
    ("<|START_THINKING|>a<|END_THINKING|>b", "b"),
    ("<|begin_of_thought|>a<|end_of_thought|>b", "b"),
    ("<|inner_prefix|>a<|inner_suffix|>b", "b"),
    ("<|channel>thought\na<channel|>b", "b"),
    (f"{HARMONY}b<|return|>", "b"),
    (f"<|start|>assistant{HARMONY}b", "b"),
    ("a<|end|><|start|>assistant<|channel|>final<|message|>b", "b"),
    ("<|channel|>final <|constrain|>json<|message|>b", "b"),
    ("analysisWe need a.assistantfinalb", "b"),
    ("```thinking\na\n```\nb", "b"),
    ("```think\na\n```\n\n```python\nprint(1)\n```", "```python\nprint(1)\n```"),
    ("Thought: a\nb", "b"),
    ("Thought: a\nThought: a again\n\nb", "b"),
    ("**Thought:** a\nb", "b"),
    ("Thought 1: a\nAction: c\nObservation: d\nThought 2: e\nFinal Answer: b", "b"),
    ("Thought: a\nover lines\n\n**Final Answer:** b", "b"),
    ('{"chain_of_thought": "a", "answer": "b"}', "b"),
    ('{"Thoughts": "a", "answer": "b 1.50", "confidence": 0.9}', "b 1.50"),
    ('\ufeff{"scratchpad": ["a"], "answer": "{\\"raw\\": 1.50}"}', '{"raw": 1.50}'),
    ("\ufeff<think>a</think>b", "b"),
    ("\u200b\n<think>a</think>b", "b"),
    ("[THINK] a [/THINK]b", "b"),
    ("<think >a</think >b", "b"),
    ("<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}<|call|>" + HARMONY + "b", "b"),
    ('<think>a</think>{"raw": {"x": 1}, "answer": "b"}', "b"),
]

#: Answers that stay as they are, to the letter.
KEPT = [
    '{"raw": "a", "value": 1.50}',
    '{"reasoning": "It is a sum.", "answer": "42"}',
    '{"thoughts": ["a"], "title": "b"}',
    '{"answer": {"scratchpad": "a", "text": ["b", {"raw": "c"}]}}',
    '{"answer": "b"}',
    '{"answer": "<think>a</think>b", "confidence": 0.90}',
    '{"thoughts": "a", "answer": 42}',
    '{"thoughts": "a", "answer": "b", "price": 1.50}',
    'Sure: {"thoughts": "a", "answer": "b"} Bye.',
    'Sure:\n```json\n{"thoughts": "a", "answer": "b"}\n```\nBye.',
    '```json\n{"price": 1.50, "raw": 1e3}\n```',
    '```json\n{"reasoning": "a"}\n```\n',
    "<think about it>\nParis is the capital.",
    "<|channel|> is a token of harmony.",
    "<|channel|>final is where harmony puts the answer.",
    "[THINK] about it",
    "[THINK] is a token of Magistral.\n\nIt opens thinking.",
    '```python\nprint({"scratchpad": 1})\n```',
    "b {'thoughts': 'a', 'x': None} c",
    'b {"x": 1} {"thoughts": "a',
    'b {"x": 1} "thoughts": "a"',
    "The price is 1.50 and 2.0.",
    '{"a":1.0,\n "b": 1.50, "c": 10000000000000000000000001}',
    "Models write <think>a</think> before the answer.",
    "Use the literal `<think>` tag; close it with `</think>`.",
    "`<think>` opens a block.",
    "The tag </think> ends the block.",
    "The block ends with </think>\nThe answer follows.",
    "Models end their thinking with </think>",
    "- opens: <think>\n- closes: </think>\n- then: the answer",
    '```json\n{"answer": "x", "raw": {"price": 1.50}}\n```',
    '```json\n{"scratchpad": ["a"], "answer": "{\\"raw\\": 1.50}"}\n```',
    '```\n{"thoughts": "a", "answer": "b"}\n```\n',
    "```html\n<think>a</think>\n```",
    "```\nreasoning\n</think>\n```",
    "Text, then <think> without an end",
    "See [analysis] and [reasoning](x.md).",
    "<analysis>a</analysis>b",
    "<reflection>a</reflection>b",
    "<reasoning>a</reasoning>",
    "<scratchpad>a</scratchpad>",
    "a <reasoned> b",
    "a <b>bold</b> text",
    "analysis of b",
    "analysis: the word assistant, final",
    "In harmony, `<|channel|>final<|message|>` opens the answer.",
    "```\na<|end|><|start|>assistant<|channel|>final<|message|>b\n```",
    "Thoughts: b",
    "Reasoning: a\nAnswer: b",
    "**Thinking:** a\n\n**Answer:** b",
    "The answer.\nThought: a",
    "Final Answer: b",
    "Start.\n```thinking\na\n```\nEnd.",
    "[think]a[/think] as BBCode",
    "  indented,\n\n\n  and   spaced \n",
]


@pytest.mark.parametrize(("text", "answer"), HIDDEN)
async def test_49_hidden_reasoning_is_no_part_of_the_answer(text: str, answer: str) -> None:
    done = await reason(draft_answer=text, revise_answer=text)
    assert done.final["answer"] == answer
    revised = await reason(
        critique_answer={**ACCEPTED, "clarity_issues": ["x"]}, draft_answer="c", revise_answer=text
    )
    assert revised.final["answer"] == answer


@pytest.mark.parametrize("text", KEPT)
async def test_49_the_text_of_an_answer_is_unchanged(text: str) -> None:
    done = await reason(draft_answer=text)
    assert done.final["answer"] == text
    revised = await reason(
        critique_answer={**ACCEPTED, "clarity_issues": ["x"]}, draft_answer="c", revise_answer=text
    )
    assert revised.final["answer"] == text


CUT = ("[THINK]a", "[THINK]\na", "<|channel|>", "<|channel|>analysis", "\ufeff<think>\na")
HALF = "<|channel|>analysis<|message|>a<|end|>"


@pytest.mark.parametrize("text", ["<think>a", "<think>a<think>b", HALF, "```thinking\na", "Thought: a", *CUT])
async def test_49_reasoning_that_does_not_end_is_hidden_as_a_whole(text: str) -> None:
    done = await reason(draft_answer=text)
    assert done.final["answer"].startswith("I could not finish this")


@pytest.mark.parametrize(
    "result",
    [
        '{"raw": "<think>a</think>", "price": 1.50}',
        "<think>a</think>b",
        "Thought: a\nb",
        "  two\n\n  lines",
        '```json\n{"reasoning": "a"}\n```',
    ],
)
async def test_49_the_text_of_a_tools_result_is_unchanged(result: str) -> None:
    tool = RecordingTool("lookup", result)
    done = await reason(
        tools=[tool], analyze_task=NEEDS_TOOL, select_reasoning_strategy={"strategy": "react_tool_loop"},
        propose_next_step=(LOOKUP, STEP),
    )  # fmt: skip
    assert done.final["observations"][0]["result"] == result
    assert result in done.request("draft_answer").messages[-1].content


async def test_49_the_arguments_of_a_tool_are_reported_as_they_were_sent() -> None:
    args = {"raw": True, "reasoning": "a", "query": "csv"}
    done = await reason(
        tools=[RecordingTool("lookup")], analyze_task=NEEDS_TOOL,
        select_reasoning_strategy={"strategy": "react_tool_loop"},
        propose_next_step=({**LOOKUP, "args": args}, STEP),
    )  # fmt: skip
    assert done.final["observations"][0]["args"] == args


def test_49_taking_it_out_is_linear_in_the_length_of_the_text() -> None:
    assert without_thinking("<think>" * 50_000) == ""
    assert without_thinking("<think></think>" * 50_000) == ""
    assert without_thinking("</think>" * 50_000) == "</think>" * 50_000
    assert without_thinking("a\n</think>\n" * 50_000) == "a\n</think>\n" * 49_999
    assert without_thinking("<think " * 50_000) == "<think " * 50_000
    assert without_thinking("[THINK] a" * 50_000) == "[THINK] a" * 50_000
    assert without_thinking("[THINK] a[/THINK]" * 50_000) == ""
    assert without_thinking("<think>" + "<think a" * 50_000) == ""
    assert without_thinking("<|channel|>" * 50_000) == ""
    assert without_thinking("Thought: \n" * 50_000) == ""
    assert without_thinking("analysis" * 50_000) == "analysis" * 50_000
    assert answer_in("{'thoughts': 1}" * 2_000) == "{'thoughts': 1}" * 2_000
    deep = '{"thoughts": "a", "value": ' + "[" * 900 + "1" + "]" * 900 + "}"
    assert answer_in(deep) == deep
    assert json.loads(deep)["value"]
