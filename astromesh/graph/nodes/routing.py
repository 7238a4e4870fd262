"""Nodes in which a model chooses what runs next.

A RouterNode goes to one of its targets. An AutonomousNode runs nodes of its pool until the model is done
(document 000).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Unpack

from astromesh.graph.base import MODEL_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.model_output import extract_object
from astromesh.graph.node_config import Graph, Node, NodeConfig
from astromesh.graph.nodes import system_prompt
from astromesh.graph.nodes.composite import all_nodes
from astromesh.graph.nodes.guard import GuardNode
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import call_inline
from astromesh.graph.state import RETRY_ERROR, GraphState
from astromesh.graph.validation import check_int
from astromesh.types import CompletionRequest, CompletionResult, Message

#: Characters that models put around a word.
_IGNORED_AROUND = " \t\r\n\"'`*_.:()[]<>"


class RouterNode(BaseNode):
    """Asks the model for a choice and goes to its target.

    The answer must equal one of the choices, apart from case and punctuation around it. After any other
    answer the model is asked again. The choices are `routes`, or else the keys of `transitions`. A choice
    that is a key of `transitions` leads to that target; any other is itself the name of a node. `routes` may
    be a mapping of choices to their purposes.

    Args:
        choose: A function of the state that returns the choice instead of a model, sync or async.
        max_tries: Model calls before the node fails, or goes to `default_next` if it has one.
        keywords: See `NodeKeywords`. `instructions` say what to decide by.

    Raises:
        ValueError: There is nothing to choose from.
    """

    constructor_keys = ("choose", "max_tries")
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS - {"model_override"}

    def __init__(
        self,
        name: str,
        *,
        choose: Callable[[GraphState], Any] | None = None,
        max_tries: int = 3,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        # `routes` are choices here; the engine must know their targets
        routes, transitions = keywords.get("routes", ()), keywords.get("transitions", {})
        choices = dict(routes) if isinstance(routes, Mapping) else dict.fromkeys(routes, "")
        choices = choices or {str(key): "" for key in transitions if key != "error"}
        if not choices:
            raise ValueError(f"Router {name!r} has nothing to choose from. Set routes or transitions.")
        keywords["routes"] = tuple(transitions.get(c, c) for c in choices)
        super().__init__(name, **keywords)
        self.choices: dict[str, str] = choices
        self.choose, self.max_tries = choose, max_tries
        self._folded = {choice.casefold(): choice for choice in choices}

    def constructor_value(self, key: str) -> Any:
        return self.choices if key == "routes" else super().constructor_value(key)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self.choose is None:
            return await self._ask(state, config)
        answer = call_inline("The choice", self.choose, state)
        if inspect.isawaitable(answer):
            answer = await answer
        choice = self._match(str(answer))
        return self._choose_result(choice, answer) if choice else self._no_choice(answer)

    async def _ask(self, state: GraphState, config: NodeConfig) -> NodeResult:
        messages = system_prompt.complete_conversation(
            system_prompt.with_system(state.messages, Message("system", self._prompt(state)))
        )
        answer = CompletionResult()
        for _ in range(self.max_tries):
            answer = await config.complete(CompletionRequest(messages), role="router")
            if choice := self._match(answer.content):
                return self._choose_result(choice, answer.content)
            again = f"Answer with exactly one of: {', '.join(self.choices)}."
            messages = (*messages, Message("assistant", answer.content or "…"), Message("user", again))
        return self._no_choice(answer.content)

    def _prompt(self, state: GraphState) -> str:
        listed = "\n".join(f"- {c}: {text}" if text else f"- {c}" for c, text in self.choices.items())
        refused = state.context.get(RETRY_ERROR)
        return system_prompt.join([
            self.instructions,
            f"Your last choice cannot be accepted: {refused}" if refused else "",
            system_prompt.inputs(state, self.input_keys),
            system_prompt.inherited(state, self.inherit_context_from),
            f"Choose what is to happen next:\n{listed}\nAnswer with exactly one of these and nothing else.",
        ])  # fmt: skip

    def _match(self, text: str) -> str:
        """Returns the choice that a text equals, or an empty string.

        A choice that merely occurs in it does not count.
        """
        found = extract_object(text, "route")
        word = str(found["route"]) if found else text
        return self._folded.get(word.strip(_IGNORED_AROUND).casefold(), "") or self._folded.get(
            word.casefold(), ""
        )

    def _choose_result(self, choice: str, raw: Any) -> NodeResult:
        return NodeResult(self.name, choice, raw, next_node=self.transitions.get(choice, choice))

    def _no_choice(self, raw: Any) -> NodeResult:
        if self.default_next:
            return NodeResult(self.name, None, raw, next_node=self.default_next)
        known = ", ".join(self.choices)
        return NodeResult(self.name, None, raw, error=f"{self.name!r} got no valid choice. Choices: {known}.")


log = logging.getLogger("astromesh.graph")

DONE = "__done__"
#: Characters of an earlier step's output that the model sees when it chooses.
_MAX_SHOWN_STEPS = 500
#: The problem of a guard in a pool.
SKIPPABLE_GUARD = (
    "a guard in a pool has no effect, because the model can skip it. Give `guards` to the nodes whose "
    "output it should check, or put it after them in a SubgraphNode."
)


class PoolStep(NamedTuple):
    """A choice of the model, as it reads of it later.

    Args:
        node: The node that ran. Empty: the choice was not a node of the pool.
    """

    node: str
    text: str


class AutonomousNode(BaseNode):
    """Asks the model which node of the pool runs next, runs it, and asks again.

    It ends when the model answers `__done__` or a terminal node succeeds. The model is asked again after a
    name that is not in the pool, which counts as a step. The developer decides what is in the pool, the model
    the path.

    Args:
        name: The name of the node. It may be left out, with the pool in its place.
        pool: The nodes to choose from. Their `description` (or instructions) tells the model what each does.
        max_steps: The limit of choices. After it the run stops as `max_iterations` with the last output.
        keywords: See `NodeKeywords`. `instructions` say what to choose by.

    Raises:
        ValueError: The pool is empty, or two of its nodes have one name.
    """

    constructor_keys = ("pool", "max_steps")
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS - {"model_override"}

    def __init__(
        self,
        name: str | Iterable[BaseNode],
        pool: Iterable[BaseNode] = (),
        max_steps: int = 10,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        own, members = (name, tuple(pool)) if isinstance(name, str) else ("autonomous", tuple(name))
        super().__init__(own, **keywords)
        all_nodes(own, members)
        check_int(f"Node {own!r}", "max_steps", max_steps)
        self.pool: dict[str, BaseNode] = {node.name: node for node in members}
        self.max_steps = max_steps
        if not members or len(self.pool) != len(members):
            raise ValueError(f"The pool of {own!r} needs nodes with different names.")
        if DONE in self.pool:
            raise ValueError(f"{own!r}: no node of the pool may be called {DONE}.")

    def constructor_value(self, key: str) -> Any:
        return tuple(self.pool.values()) if key == "pool" else super().constructor_value(key)

    def children(self) -> Iterable[BaseNode]:
        return self.pool.values()

    def streams_child(self, child: Node | Graph) -> bool:
        return isinstance(child, BaseNode) and child.is_terminal

    def problems(self) -> Iterable[str]:
        guards = (node.name for node in self.pool.values() if isinstance(node, GuardNode))
        return [f"{name}: {SKIPPABLE_GUARD}" for name in guards]

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        history: list[PoolStep] = []
        last = NodeResult(self.name)
        for _ in range(self.max_steps):
            choice = await self._choose(state, config, history)
            if choice == DONE:
                return self._final_result(last)
            node = self.pool.get(choice)
            if node is None:
                log.warning("%s: the model chose %.80r, which is not one of the nodes", config.path, choice)
                history.append(PoolStep("", f"{choice!r} is not one of the nodes."))
                continue
            result = await config.run(node, state)
            history.append(PoolStep(choice, _result_line(result)))
            last = result
            if node.is_terminal and not result.error:
                return self._final_result(result)
        return replace(self._passed_on(last), stop_reason="max_iterations")

    async def _choose(self, state: GraphState, config: NodeConfig, history: list[PoolStep]) -> str:
        system = system_prompt.with_system(state.messages, Message("system", self._prompt(history)))
        answer = await config.complete(
            CompletionRequest(system_prompt.complete_conversation(system)), role="router"
        )
        found = extract_object(answer.content, "next_node")
        return str(found["next_node"]).strip() if found else answer.content.strip().strip("\"'`.")

    def _prompt(self, history: list[PoolStep]) -> str:
        nodes = "\n".join(_node_line(node) for node in self.pool.values())
        steps = "\n".join(f"{number}. {step.text}" for number, step in enumerate(history, 1))
        return system_prompt.join([
            self.instructions,
            f"Here are available nodes:\n{nodes}\n- {DONE}: the work is complete",
            f"Steps so far:\n{steps}" if steps else "",
            'Which should run next? Answer with one JSON object: {"next_node": "NAME", "reason": "WHY"}',
        ])  # fmt: skip

    def _final_result(self, last: NodeResult) -> NodeResult:
        error = last.error or ("" if last.output is not None else f"{self.name!r} ended without a result.")
        return replace(self._passed_on(last), error=error, exception=last.exception)

    def _passed_on(self, last: NodeResult) -> NodeResult:
        return NodeResult(self.name, last.output, last.raw_output, is_answer=last.is_answer)


def _node_line(node: BaseNode) -> str:
    first = (node.description or node.instructions).strip().partition("\n")[0]
    return f"- {node.name}: {first or type(node).__name__}{' (terminal)' if node.is_terminal else ''}"


def _result_line(result: NodeResult) -> str:
    if result.error:
        return f"{result.node_name} failed: {result.error[:_MAX_SHOWN_STEPS]}"
    output: Any = system_prompt.as_text(result.output)
    return f"{result.node_name}: {output[:_MAX_SHOWN_STEPS]}"
