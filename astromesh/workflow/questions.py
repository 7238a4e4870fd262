"""Questions of stages to people: `human` nodes, and tools that need an approval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct, structs

from astromesh.config.workflow import SELECTION_KEY, HumanSpec
from astromesh.graph.call_record import hash_of
from astromesh.tools.base import HumanQuestion
from astromesh.types import JsonObject, ToolCall, ToolSpec
from astromesh.workflow.base import StageFault
from astromesh.workflow.plan import Stage


class Question(Struct, frozen=True):
    """A question of a stage to a person.

    Args:
        kind: `human` of a node, `approval` of a tool call, `unknown_outcome`, as in `HumanQuestion`.
        name: of the node or tool.
        arguments: the input of the stage, or the arguments of the call.
        question: instructions.
        seconds: until it expires.
        parameters: JSON Schema of arguments that the person may change.
        schema: JSON Schema of the answer.
        edges: labels of which the answer names one: the text, or the key `selection` of an object.
        assignees: scopes of which a person needs one; empty: as for runs that wait.
    """

    kind: str
    name: str
    arguments: Any = None
    question: str = ""
    seconds: float = 7 * 86_400.0
    parameters: JsonObject | None = None
    schema: JsonObject | None = None
    edges: tuple[str, ...] = ()
    selection: str = SELECTION_KEY
    assignees: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        """Returns it as it is stored, without `seconds`: a stored question has a time."""
        data = structs.asdict(self)
        del data["seconds"]
        return {**data, "edges": list(self.edges), "assignees": list(self.assignees)}


def question_about(request: HumanQuestion) -> Question:
    """Returns the question about a call, as policies of tools and the journal ask it."""
    return Question(
        request.kind, request.name, request.arguments, request.question, request.seconds, request.parameters
    )


class People(Protocol):
    """Asks people for the stages of Tasks."""

    def can_wait(self, task: str) -> bool:
        """Returns whether a Task can wait for a person: it must survive its process."""

    async def ask(self, task: str, stage: str, ticket: str, question: Question) -> JsonObject:
        """Returns the decision, possibly days later and in another process.

        Args:
            task: id of the Task, with its path.
            ticket: identity of the question within the stage, the same when the stage runs again.

        Returns:
            `{"decision": "approve", "deny", "answer" or "expired", "arguments"?, "answer"?, "by"?}`
        """


#: asks a question of the current stage: its ticket and the question
Ask = Callable[[str, Question], Awaitable[JsonObject]]


class ToolQuestions:
    """The questions of one tool call to people, as its policies ask them: a `RecordedToolCall`.

    Args:
        number: of the call in its stage.
        is_fork: whether the Task is a fork whose record has no such call.
    """

    def __init__(self, call: ToolCall, number: int, ask: Ask, *, is_fork: bool = False) -> None:
        self._ask, self.is_fork, self._counts = ask, is_fork, Counter[str]()
        self._ticket = f"{call.name}:{hash_of([call.name, call.arguments])[:16]}:{number}"

    async def ask(self, request: HumanQuestion) -> JsonObject:
        number = self._counts[request.kind]
        self._counts[request.kind] += 1
        ticket = f"{request.kind}:{self._ticket}{f'#{number}' if number else ''}"
        return await self._ask(ticket, question_about(request))

    def has_request(self, kind: str) -> bool:
        """Returns False: every question is asked as its call is made."""
        return False

    async def record_intent(self, spec: ToolSpec) -> None:
        """Does nothing: the journal of stages records calls."""


def node_question(stage: Stage, human: HumanSpec, schema: JsonObject | None, input: Any) -> Question:
    """Returns the question of a `human` node about its input."""
    edges = tuple(edge.label for edge in stage.out) if stage.role == "decision" else ()
    return Question(
        "human", stage.node.id, input, human.instructions, human.expires_after,
        schema=schema, edges=edges, selection=stage.node.selection_key or SELECTION_KEY,
        assignees=human.assignees,
    )  # fmt: skip


def output_of(stage: Stage, human: HumanSpec, decision: Mapping[str, Any], input: Any) -> Any:
    """Returns the output of a `human` node: the answer, or for a decision its edge and the unchanged input.

    Raises:
        StageFault: `denied`, or `expired` with `on_expiry: failure`.
    """
    word, answer = decision["decision"], decision.get("answer")
    if word == "deny":
        note = f" {decision['note']}" if decision.get("note") else ""
        raise StageFault("denied", f"A person refused {stage.id!r}.{note}")
    if word == "expired":
        if human.on_expiry == "failure":
            raise StageFault("expired", f"Nobody answered {stage.id!r} in time (human.expires_after).")
        answer = stage.node.default_edge
    if stage.role == "decision":
        key = stage.node.selection_key or SELECTION_KEY
        return {key: answer, "output": input} if isinstance(answer, str) else answer
    return answer if word == "answer" else input
