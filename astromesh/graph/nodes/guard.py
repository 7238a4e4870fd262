"""Guards check a node's final output. GuardNode is a gate that only accepted output passes.

A guard is a function of `(output)` or `(output, state)`, sync or async. It passes by returning True, None or
a passed `GuardVerdict`. It fails by returning False or a failed verdict, or by raising an exception. Any
other return value is a fault of its author and fails too.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

from astromesh.errors import OutputRefused, is_failure, text_of
from astromesh.graph.base import MODEL_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.function import declared_input, may_answer
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import call_inline
from astromesh.graph.state import GraphState, retries_key
from astromesh.graph.validation import check_int, positional_arity
from astromesh.types import Message

log = logging.getLogger("astromesh.graph")
GuardMode = Literal["block", "retry", "warn"]


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """The result of a guard.

    Args:
        feedback: What is wrong and how to correct it. The model reads it if the guard retries.
    """

    passed: bool
    feedback: str = ""


class Guard:
    """A check with its name and the consequence of a failure.

    Args:
        check: A function of `(output)` or `(output, state)`.
        mode: `block` fails the node. `retry` asks the model again with the feedback, and then blocks. `warn`
            accepts the output and reports the guard in `guards_failed`.
        name: Replaces the function's own.
        max_retries: Further model calls of mode `retry`.
    """

    def __init__(
        self, check: Callable[..., Any], mode: GuardMode = "block", *, name: str = "", max_retries: int = 2
    ) -> None:
        if mode not in ("block", "retry", "warn"):
            raise ValueError(f"A guard's mode must be block, retry or warn, not {mode!r}.")
        self.check = check
        self.mode: GuardMode = mode
        self.name = name or getattr(check, "__name__", type(check).__name__)
        check_int(f"Guard {self.name!r}", "max_retries", max_retries, least=0)
        self.max_retries = max_retries
        self._arity = positional_arity(check, f"Guard {self.name!r}", most=2)

    async def verdict(self, output: Any, state: Any) -> GuardVerdict:
        """Returns the result of the check. An exception is a failed verdict."""
        try:
            arguments = (output,) if self._arity == 1 else (output, state)
            answer = call_inline("The guard", self.check, *arguments)
            if inspect.isawaitable(answer):
                answer = await answer
        except BaseException as error:  # a guard is foreign code, and a guard that raises must not pass
            if not is_failure(error):
                raise
            log.warning("the guard %s raised an exception", self.name, exc_info=True)
            return GuardVerdict(False, text_of(error) or type(error).__name__)
        if isinstance(answer, GuardVerdict):
            return answer
        if answer is None or answer is True:
            return GuardVerdict(True)
        if answer is False:
            return GuardVerdict(False)
        return GuardVerdict(False, f"The guard returned {answer!r}, which is neither a bool nor a verdict.")

    def __repr__(self) -> str:
        return f"Guard({self.name!r}, {self.mode!r})"


@dataclass(frozen=True, slots=True)
class GuardResults:
    """The results of all guards of a node for one output.

    Args:
        passed, failed: Names, in the order of the guards.
        refused: The failed guards that do not accept the output.
        feedback: Their feedback, one line each.
    """

    passed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    refused: tuple[Guard, ...] = ()
    feedback: str = ""

    def may_retry(self, tries: int) -> bool:
        """Whether another answer can help: every guard that refused allows one more attempt."""
        return all(g.mode == "retry" and tries < g.max_retries for g in self.refused)

    @property
    def error(self) -> str:
        return (
            f"refused by {', '.join(g.name for g in self.refused)}: {self.feedback}" if self.refused else ""
        )

    def refusal(self, error: str) -> OutputRefused:
        """Returns the exception of a node whose output was refused."""
        return OutputRefused(self.refused[0].name, error)


def as_guards(guards: Sequence[Any]) -> tuple[Guard, ...]:
    """Returns guards unchanged, and functions as guards that block."""
    return tuple(g if isinstance(g, Guard) else Guard(g) for g in guards)


async def run_guards(guards: Sequence[Guard], output: Any, state: Any) -> GuardResults:
    """Runs every guard, in order. All of them run even after one failed, so that the feedback is complete."""
    passed: list[str] = []
    failed: list[tuple[Guard, str]] = []
    for guard in guards:
        verdict = await guard.verdict(output, state)
        if verdict.passed:
            passed.append(guard.name)
        else:
            failed.append((guard, verdict.feedback or f"{guard.name} is not met."))
    refused = [(g, text) for g, text in failed if g.mode != "warn"]
    return GuardResults(
        tuple(passed),
        tuple(g.name for g, _ in failed),
        tuple(g for g, _ in refused),
        "\n".join(text for _, text in refused),
    )


class GuardNode(BaseNode):
    """Checks the last output, or the input that it declares, and accepts or refuses it.

    A refused output ends the run, unless an edge `on_guard_fail`, an error edge or a transition leads on. A
    guard of mode `retry` sends the work back to the node that did it, with the feedback as a message. Inside
    a LoopNode that is an earlier node of its body. Other nodes that run children cannot send work back: there
    the guard has failed.

    Args:
        retry_node: The node that repeats its work. The default is the node that ran last.
        keywords: See `NodeKeywords`. `guards` are functions or `Guard`s.
    """

    protected = True
    constructor_keys = ("retry_node",)
    handles: ClassVar[frozenset[str]] = frozenset({"guards"})
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(self, name: str, *, retry_node: str = "", **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.add_routes(retry_node)
        self.retry_node = retry_node
        self._guards = as_guards(self.guards)

    def problems(self) -> Iterable[str]:
        if not self.guards:
            yield "guards: a GuardNode without guards accepts everything."

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = declared_input(self, state)
        checked = await run_guards(self._guards, value, state)
        result = NodeResult(self.name, guards_passed=checked.passed, guards_failed=checked.failed)
        if not checked.refused:
            result.output, result.is_answer = value, may_answer(value, state)
            state.context.pop(self._retries_key, None)  # later output has its own attempts
        elif (worker := self._worker(state)) and checked.may_retry(self._tries(state)):
            self._send_back(state, checked, result, worker)
        else:
            result.error, result.stop_reason = f"The output was {checked.error}", "critical_error"
            result.exception = checked.refusal(result.error)
        return result

    def _worker(self, state: GraphState) -> str:
        if self.retry_node:
            return self.retry_node
        if self._is_alone(state):
            last = state.last_result
            return last.node_name if last else ""
        return next((n for n in reversed(state.visited) if n != self.name), "")

    def _is_alone(self, state: GraphState) -> bool:
        """Whether another node runs this one. Then it is not the graph's current node."""
        return state.current_node != self.name

    def _tries(self, state: GraphState) -> int:
        return int(state.context.get(self._retries_key, 0))

    @property
    def _retries_key(self) -> str:
        return retries_key(self.name)

    def _send_back(self, state: GraphState, checked: GuardResults, result: NodeResult, worker: str) -> None:
        state.context[self._retries_key] = self._tries(state) + 1
        text = f"That answer cannot be accepted:\n{checked.feedback}\nAnswer again, corrected."
        result.messages_added = (Message("user", text),)
        result.next_node = worker
        if self._is_alone(state):  # nothing has passed until the node that runs it goes back
            result.error = f"The output was {checked.error}"
