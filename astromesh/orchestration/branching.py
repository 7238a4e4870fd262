"""parallel_fan_out: branches at once, and what becomes of their answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

from astromesh.errors import IterationsExhausted
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.config import Child, NodeConfig
from astromesh.graph.extract import extract_values
from astromesh.graph.flags import NodeFlag
from astromesh.graph.function import FunctionNode
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.briefing import Briefed, ToolLoop
from astromesh.orchestration.graph_pattern import NOTES
from astromesh.types import JsonObject, Message

Merge = Literal["concat", "vote", "judge"]
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\W*(?:answer|number|nr|no)?\W*(\d{1,3})\W*", re.IGNORECASE)


class Branch(NamedTuple):
    """Who answers. `role` names the model, empty for the main one; `prompt` is what it is told besides."""

    name: str
    role: str = ""
    prompt: str = ""


class BranchAnswer(NamedTuple):
    branch: str
    text: str


@dataclass(slots=True)
class FanOutNotes:
    """What the branches said. `failed`: branch and error; `chosen`: whose answer was taken."""

    answers: list[BranchAnswer] = field(default_factory=list)
    failed: list[BranchAnswer] = field(default_factory=list)
    chosen: str = ""

    def metadata(self) -> JsonObject:
        found: JsonObject = {"branches": [{"name": a.branch, "ok": True} for a in self.answers]}
        found["branches"] += [{"name": a.branch, "ok": False, "error": a.text} for a in self.failed]
        return {**found, "chosen": self.chosen} if self.chosen else found


def fan_out_graph(branches: Sequence[Branch], merge: Merge, max_iterations: int) -> PromptGraph:
    """The branches at once, then the merge.

    Args:
        branches: with different names.
        merge: how many answers become one.
        max_iterations: model calls of one branch.
    """
    workers = [_worker(branch, max_iterations) for branch in branches]
    graph = PromptGraph("parallel_fan_out")
    graph.add_node(Branches("branches", workers))
    graph.add_node(FunctionNode("merge", _concat if merge == "concat" else _vote, is_terminal=True))
    graph.set_entry("branches")
    if merge == "judge":
        graph.add_node(judge())
        graph.on_output("branches", "judge", "several", True)
        graph.on_output("judge", "merge", "undecided", True).on_error("judge", "merge")
    return graph.always("branches", "merge")


def _worker(branch: Branch, max_iterations: int) -> Briefed:
    act = ToolLoop(
        "act",
        role="worker",
        max_rounds=max_iterations,
        instructions=branch.prompt,
        model_override=branch.role or None,
    )
    return Briefed(branch.name, act, collected=True, flags={NodeFlag.PARALLEL_SAFE})


class Branches(BaseNode):
    """Runs the branches at once and notes their answers; fails with a branch's own error where all failed."""

    own = ("nodes",)
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.CRITICAL})

    def __init__(self, name: str, nodes: Iterable[BaseNode], **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.nodes = tuple(nodes)

    def children(self) -> Iterable[BaseNode]:
        return self.nodes

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        results = await config.together([Child(n) for n in self.nodes], state, on_error="collect")
        notes: FanOutNotes = config[NOTES]
        for node, result in zip(self.nodes, results, strict=True):
            if result.error:
                notes.failed.append(BranchAnswer(node.name, result.error))
            else:
                notes.answers.append(BranchAnswer(node.name, str(result.output)))
        _drop_blank(notes)
        if not notes.answers:
            raise _worst(results)
        return NodeResult(self.name, {"several": len(notes.answers) > 1}, is_answer=False)


def _drop_blank(notes: FanOutNotes) -> None:
    """A branch that said nothing has failed where another one said something: silence wins no vote."""
    blank = [answer for answer in notes.answers if not answer.text.strip()]
    if len(blank) == len(notes.answers):
        return
    notes.answers = [answer for answer in notes.answers if answer not in blank]
    notes.failed += [BranchAnswer(answer.branch, "The answer was empty.") for answer in blank]


def _worst(results: Sequence[NodeResult]) -> BaseException:
    """Why nobody answered: a limit where one was reached, else the first failure."""
    causes = [result.exception for result in results if result.exception is not None]
    limits = [cause for cause in causes if isinstance(cause, IterationsExhausted)]
    return (limits or causes)[0]


# -- merging -----------------------------------------------------------------------------------------------


def _concat(state: GraphState, config: NodeConfig) -> str:
    """All answers, each under its branch's name."""
    notes: FanOutNotes = config[NOTES]
    return concatenated(notes.answers)


def _vote(state: GraphState, config: NodeConfig) -> str:
    """The answer that most of the branches agree on."""
    notes: FanOutNotes = config[NOTES]
    return _take(notes, voted([answer.text for answer in notes.answers]))


def _take(notes: FanOutNotes, index: int) -> str:
    notes.chosen = notes.answers[index].branch
    return notes.answers[index].text


def concatenated(answers: Sequence[BranchAnswer]) -> str:
    """Answers one after another; the same answer once, with the names of all who gave it."""
    names: dict[str, list[str]] = {}
    for answer in answers:
        names.setdefault(answer.text.strip(), []).append(answer.branch)
    if len(names) == 1:
        return next(iter(names))
    return "\n\n".join(f"## {', '.join(who)}\n\n{text}" for text, who in names.items())


def voted(texts: Sequence[str]) -> int:
    """The index of the answer that has the majority.

    Answers that differ in case, space or punctuation only are one; where no answer has more votes than every
    other one, that counts which shares most words with all others. Ties go to the first.
    """
    words = [tuple(_WORD.findall(text.casefold())) for text in texts]
    votes = Counter(words)
    (first, most), *others = votes.most_common(2)
    if not others or others[0][1] < most:
        return words.index(first)
    agreement = [0.0] * len(texts)
    for one, other in combinations(range(len(texts)), 2):
        shared = _overlap(set(words[one]), set(words[other]))
        agreement[one] += shared
        agreement[other] += shared
    leading = [i for i, said in enumerate(words) if votes[said] == most]
    return max(leading, key=lambda i: agreement[i])


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


# -- the judge ---------------------------------------------------------------------------------------------

_JUDGE = (
    "You are given a question and several answers to it. Decide which answer is best: correct first, then "
    'complete, then clear. Answer with one JSON object: {"best": NUMBER, "reason": "WHY"}.'
)


class Judge(Briefed):
    """Picks the best answer. Output: its text, or `{"undecided": true}` where the judge named none."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        notes: FanOutNotes = config[NOTES]
        if result.error:
            return result
        place = verdict(str(result.raw_output or ""), len(notes.answers))
        if place is None:
            return NodeResult(self.name, {"undecided": True}, is_answer=False)
        return NodeResult(self.name, _take(notes, place))


def judge() -> Judge:
    """The judge's node; it is shown the question and the answers, nothing else."""
    prompt = PromptNode(
        "decide",
        role="judge",
        instructions=_JUDGE,
        model_override="judge",
        tool_loop=False,
        routing="edges_only",
    )
    return Judge("judge", prompt, _candidates)


def _candidates(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: FanOutNotes = config[NOTES]
    parts = [f"Question: {state.question}"]
    parts += [f"## Answer {number}\n{answer.text}" for number, answer in enumerate(notes.answers, 1)]
    return (Message("user", "\n\n".join(parts)),)


def verdict(text: str, count: int) -> int | None:
    """The index of the answer that a judge named, or None.

    Args:
        text: the judge's words: the JSON object asked for, or nothing but a number.
        count: of answers.
    """
    for value in extract_values(text):
        if isinstance(value, dict) and (place := _place(value.get("best"), count)) is not None:
            return place
    alone = _NUMBER.fullmatch(text.strip())
    return _place(alone[1], count) if alone else None


def _place(value: Any, count: int) -> int | None:
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    number = int(text) if text.isdecimal() else 0
    return number - 1 if 1 <= number <= count else None
