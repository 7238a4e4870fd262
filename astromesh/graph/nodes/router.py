"""RouterNode: chooses one of several ways, by a model or by a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import WITHOUT_MODEL, BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.extract import extract_object
from astromesh.graph.nodes import assembly
from astromesh.graph.own_keys import RETRY_ERROR
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import CompletionRequest, CompletionResult, Message

#: what models like to put around a word
_AROUND = " \t\r\n\"'`*_.:()[]<>"


class RouterNode(BaseNode):
    """Asks the model which way to go and goes there.

    The answer must be one of the choices exactly (case and punctuation around it aside); anything else is
    asked again. The choices are `routes`, or else the keys of `transitions`; a choice that is a key of
    `transitions` leads to that target, any other is itself a node's name. `routes` may be a mapping of
    choices to what each is for.

    Args:
        choose: a function of the state that answers the choice instead of a model, sync or async.
        max_tries: model calls before the node fails, or goes to `default_next` where it has one.
        keywords: see `NodeKeywords`; `instructions` say what to decide by.

    Raises:
        ValueError: there is nothing to choose from.
    """

    own = ("choose", "max_tries")
    ignores: ClassVar[frozenset[str]] = WITHOUT_MODEL - {"model_override"}

    def __init__(
        self,
        name: str,
        *,
        choose: Callable[[GraphState], Any] | None = None,
        max_tries: int = 3,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        # `routes` are choices here; what the engine must know as declared targets is where they lead
        routes, transitions = keywords.get("routes", ()), keywords.get("transitions", {})
        choices = dict(routes) if isinstance(routes, Mapping) else dict.fromkeys(routes, "")
        choices = choices or {str(key): "" for key in transitions if key != "error"}
        if not choices:
            raise ValueError(f"Router {name!r} has nothing to choose from: give routes or transitions.")
        keywords["routes"] = tuple(transitions.get(c, c) for c in choices)
        super().__init__(name, **keywords)
        self.choices: dict[str, str] = choices
        self.choose, self.max_tries = choose, max_tries
        self._folded = {choice.casefold(): choice for choice in choices}

    def given(self, key: str) -> Any:
        return self.choices if key == "routes" else super().given(key)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self.choose is None:
            return await self._ask(state, config)
        said = self.choose(state)
        if inspect.isawaitable(said):
            said = await said
        choice = self._match(str(said))
        return self._to(choice, said) if choice else self._lost(said)

    async def _ask(self, state: GraphState, config: NodeConfig) -> NodeResult:
        messages = assembly.ready(
            assembly.with_system(state.messages, Message("system", self._prompt(state)))
        )
        answer = CompletionResult()
        for _ in range(self.max_tries):
            answer = await config.complete(CompletionRequest(messages), role="router")
            if choice := self._match(answer.content):
                return self._to(choice, answer.content)
            again = f"Answer with exactly one of: {', '.join(self.choices)}."
            messages = (*messages, Message("assistant", answer.content or "…"), Message("user", again))
        return self._lost(answer.content)

    def _prompt(self, state: GraphState) -> str:
        listed = "\n".join(f"- {c}: {text}" if text else f"- {c}" for c, text in self.choices.items())
        refused = state.context.get(RETRY_ERROR)
        return assembly.join([
            self.instructions,
            f"Your last choice cannot be accepted: {refused}" if refused else "",
            assembly.inputs(state, self.input_keys),
            assembly.inherited(state, self.inherit_context_from),
            f"Choose what is to happen next:\n{listed}\nAnswer with exactly one of these and nothing else.",
        ])  # fmt: skip

    def _match(self, text: str) -> str:
        """The choice that a text is, or an empty string. A choice that merely occurs in it is none."""
        found = extract_object(text, "route")
        word = str(found["route"]) if found else text
        return self._folded.get(word.strip(_AROUND).casefold(), "") or self._folded.get(word.casefold(), "")

    def _to(self, choice: str, raw: Any) -> NodeResult:
        return NodeResult(self.name, choice, raw, next_node=self.transitions.get(choice, choice))

    def _lost(self, raw: Any) -> NodeResult:
        if self.default_next:
            return NodeResult(self.name, None, raw, next_node=self.default_next)
        known = ", ".join(self.choices)
        return NodeResult(self.name, None, raw, error=f"{self.name!r} got no valid choice. Choices: {known}.")
