"""parallel_fan_out: several branches answer concurrently. Their answers are joined, voted on, or judged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

from pydantic import Field

from astromesh.errors import IterationsExhausted
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import extract_values
from astromesh.graph.node_config import Child, NodeConfig
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.orchestration.patterns import (
    NAME_PATTERN,
    NOTES,
    GraphPattern,
    IsolatedNode,
    PatternOptions,
    ToolLoop,
)
from astromesh.plugins import Deps
from astromesh.types import JsonObject, Message

Merge = Literal["concat", "vote", "judge"]
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\W*(?:answer|number|nr|no)?\W*(\d{1,3})\W*", re.IGNORECASE)


class Branch(PatternOptions):
    """A branch with a role or a model of its own. Without either it has the main model of the agent."""

    name: str = Field("", pattern=rf"^$|{NAME_PATTERN}", description="The default is the role or model.")
    role: str = Field("", description="A role of spec.model.roles.")
    model: str | dict[str, Any] = Field(
        "", description="Instead of a role: a model block, or PROVIDER/MODEL."
    )
    prompt: str = Field("", description="Instructions of this branch, after the system prompt.")


class BranchAnswer(NamedTuple):
    """The answer of a branch, or the error of one that failed."""

    branch: str
    text: str


@dataclass(slots=True)
class FanOutNotes:
    """The answers of the branches, the failed branches, and the branch whose answer was chosen."""

    answers: list[BranchAnswer] = field(default_factory=list)
    failed: list[BranchAnswer] = field(default_factory=list)
    chosen: str = ""

    def metadata(self) -> JsonObject:
        report: JsonObject = {"branches": [{"name": a.branch, "ok": True} for a in self.answers]}
        report["branches"] += [{"name": a.branch, "ok": False, "error": a.text} for a in self.failed]
        return {**report, "chosen": self.chosen} if self.chosen else report


def fan_out_graph(branches: Sequence[Branch], merge: Merge, max_iterations: int) -> PromptGraph:
    """Returns the graph that runs the branches concurrently and merges their answers.

    Args:
        branches: Branches with different names.
        merge: How many answers become one.
        max_iterations: The model calls of one branch.
    """
    workers = [_branch_node(branch, max_iterations) for branch in branches]
    graph = PromptGraph("parallel_fan_out")
    graph.add_node(Branches("branches", workers))
    join = _concat if merge == "concat" else _vote
    graph.add_node(FunctionNode("merge", join, inline=True, is_terminal=True))
    graph.set_entry("branches")
    if merge == "judge":
        graph.add_node(judge_node())
        graph.on_output("branches", "judge", "several", True)
        graph.on_output("judge", "merge", "undecided", True).on_error("judge", "merge")
    return graph.always("branches", "merge")


def _branch_node(branch: Branch, max_iterations: int) -> IsolatedNode:
    act = ToolLoop(
        "act",
        role="worker",
        max_rounds=max_iterations,
        instructions=branch.prompt,
        model_override=branch.role or None,
    )
    return IsolatedNode(branch.name, act, collected=True, flags={NodeFlag.PARALLEL_SAFE})


class Branches(BaseNode):
    """Runs the branches concurrently and records their answers. If all fail, it fails with one error."""

    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.CRITICAL})

    def __init__(self, name: str, nodes: Iterable[BaseNode], **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.nodes = tuple(nodes)

    def children(self) -> Iterable[BaseNode]:
        return self.nodes

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        children = [Child(n) for n in self.nodes]
        results = await config.together(children, state, on_error="collect", max_concurrency=len(children))
        notes: FanOutNotes = config[NOTES]
        for node, result in zip(self.nodes, results, strict=True):
            if result.error:
                notes.failed.append(BranchAnswer(node.name, result.error))
            else:
                notes.answers.append(BranchAnswer(node.name, str(result.output)))
        _drop_blank(notes)
        if not notes.answers:
            raise _main_failure(results)
        return NodeResult(self.name, {"several": len(notes.answers) > 1}, is_answer=False)


def _drop_blank(notes: FanOutNotes) -> None:
    """Counts empty answers as failures if another branch has an answer, so that they win no vote."""
    blank = [answer for answer in notes.answers if not answer.text.strip()]
    if len(blank) == len(notes.answers):
        return
    notes.answers = [answer for answer in notes.answers if answer not in blank]
    notes.failed += [BranchAnswer(answer.branch, "The answer was empty.") for answer in blank]


def _main_failure(results: Sequence[NodeResult]) -> BaseException:
    """Returns the cause if no branch answered: an exhausted limit, else the first failure."""
    causes = [result.exception for result in results if result.exception is not None]
    limits = [cause for cause in causes if isinstance(cause, IterationsExhausted)]
    return (limits or causes)[0]


# -- merging -----------------------------------------------------------------------------------------------
def _concat(state: GraphState, config: NodeConfig) -> str:
    """Returns all answers, each under the name of its branch."""
    notes: FanOutNotes = config[NOTES]
    return concatenate(notes.answers)


def _vote(state: GraphState, config: NodeConfig) -> str:
    """Returns the answer on which most branches agree."""
    notes: FanOutNotes = config[NOTES]
    return _choose(notes, vote([answer.text for answer in notes.answers]))


def _choose(notes: FanOutNotes, index: int) -> str:
    notes.chosen = notes.answers[index].branch
    return notes.answers[index].text


def concatenate(answers: Sequence[BranchAnswer]) -> str:
    """Returns the answers one after another. Equal answers come once, with the names of their branches."""
    names: dict[str, list[str]] = {}
    for answer in answers:
        names.setdefault(answer.text.strip(), []).append(answer.branch)
    if len(names) == 1:
        return next(iter(names))
    return "\n\n".join(f"## {', '.join(who)}\n\n{text}" for text, who in names.items())


def vote(texts: Sequence[str]) -> int:
    """Returns the index of the answer with the most votes.

    Answers that differ only in case, space or punctuation are equal. If several answers have the most votes,
    the one that shares most words with all others wins. Ties go to the first.
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
    leading = [i for i, answer in enumerate(words) if votes[answer] == most]
    return max(leading, key=lambda i: agreement[i])


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


# -- the judge ---------------------------------------------------------------------------------------------
_JUDGE = (
    "You are given a question and several answers to it. Decide which answer is best: correct first, then "
    'complete, then clear. Answer with one JSON object: {"best": NUMBER, "reason": "WHY"}.'
)


class Judge(IsolatedNode):
    """Picks the best answer. The output is its text, or `{"undecided": true}` if the judge names none."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        notes: FanOutNotes = config[NOTES]
        if result.error:
            return result
        place = parse_verdict(str(result.raw_output or ""), len(notes.answers))
        if place is None:
            return NodeResult(self.name, {"undecided": True}, is_answer=False)
        return NodeResult(self.name, _choose(notes, place))


def judge_node() -> Judge:
    """Returns the node of the judge, which sees only the question and the answers."""
    prompt = PromptNode(
        "decide",
        role="judge",
        instructions=_JUDGE,
        model_override="judge",
        tool_loop=False,
        routing="edges_only",
    )
    return Judge("judge", prompt, _judge_messages)


def _judge_messages(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: FanOutNotes = config[NOTES]
    parts = [f"Question: {state.question}"]
    parts += [f"## Answer {number}\n{answer.text}" for number, answer in enumerate(notes.answers, 1)]
    return (Message("user", "\n\n".join(parts)),)


def parse_verdict(text: str, count: int) -> int | None:
    """Returns the index of the answer that a judge named, or None.

    Args:
        text: The answer of the judge: the JSON object, or only a number.
        count: The number of answers.
    """
    for value in extract_values(text):
        if isinstance(value, dict) and (place := _answer_index(value.get("best"), count)) is not None:
            return place
    alone = _NUMBER.fullmatch(text.strip())
    return _answer_index(alone[1], count) if alone else None


def _answer_index(value: Any, count: int) -> int | None:
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    number = int(text) if text.isdecimal() else 0
    return number - 1 if 1 <= number <= count else None


class ParallelFanOut:
    """Several models or roles answer concurrently. Their answers are joined, voted on, or judged."""

    class Options(PatternOptions):
        branches: tuple[Branch, ...] = Field(min_length=1, description="The branches that answer.")
        merge: Merge = Field(
            "concat",
            description="concat: all answers. vote: the one that most branches agree on. "
            "judge: the one that the role judge picks.",
        )

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        graph = partial(fan_out_graph, name_branches(options.branches), options.merge)
        return GraphPattern(graph, lambda task: FanOutNotes())


def name_branches(branches: Iterable[Branch]) -> list[Branch]:
    """Returns branches with different names: their own, else their role or model, numbered if they repeat."""
    seen: Counter[str] = Counter()
    named = []
    for number, branch in enumerate(branches, 1):
        model = branch.model if isinstance(branch.model, str) else ""
        name = branch.name or model.replace("/", ":") or branch.role or f"branch {number}"
        seen[name] += 1
        name = f"{name} {seen[name]}" if seen[name] > 1 else name
        named.append(branch.model_copy(update={"name": name}))
    return named
