"""RouterNode: a model or a function chooses one of several targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import MODEL_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.inline_calls import call_inline
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes import system_prompt
from astromesh.graph.records import NodeResult
from astromesh.graph.state import RETRY_ERROR, GraphState
from astromesh.graph.structured_output import extract_object
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
