"""PromptNode: one turn of a model, in the nine steps of document 000.

    1  preprocessor                        6  what kind of answer: tool calls, text, structured output
    2  context assembly, tool section      7  guards
    3  strategy and perspective            8  strategy parsing
    4  tools and output schema bound       9  postprocessor
    5  model call                          then the engine writes the output

An answer that asks for tools has them called (step 6) and is entered again with their results; everything
from step 7 on happens on the final answer alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

from astromesh.errors import InvalidOutput
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.extract import whole_object
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes import assembly
from astromesh.graph.nodes.blocks import as_block
from astromesh.graph.nodes.guards import NOTHING_CHECKED, Checked, Guard, as_guards, check_all
from astromesh.graph.nodes.perspectives import PERSPECTIVES, Perspective
from astromesh.graph.nodes.strategies import STRATEGIES, Strategy
from astromesh.graph.output_schema import output_schema
from astromesh.graph.records import TOOL_CALLS_PRESENT, NodeResult, new_message, new_request
from astromesh.graph.signature import postprocessor, preprocessor
from astromesh.graph.state import GraphState
from astromesh.node.calls import ASSISTANT
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolCall, ToolSpec

_blank = object.__new__


@dataclass(slots=True)
class Bound:
    """What an invocation makes once for a node and reuses on every re-entry.

    Args:
        head: the static part of the system prompt.
        sys_msg: the whole system prompt as a message where nothing in it depends on the state, else None.
        tools: what is offered.
    """

    head: str
    sys_msg: Message | None
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Final:
    """A final answer after steps 6 to 9."""

    output: Any
    checked: Checked = NOTHING_CHECKED


class PromptNode(BaseNode):
    """Asks the model, lets it call tools until it answers, checks and writes the answer.

    Args:
        role: who speaks, for events and token frames: `assistant` is the run's own voice, anything else
            (`planner`, `critic`, …) a call that the graph makes for itself. By default the assistant, unless
            guards, a strategy, a postprocessor or a schema stand between the model's words and the answer.
        keywords: see `NodeKeywords`.

    Raises:
        ValueError: an unknown strategy or perspective.
        TypeError: a block, guard or processor that is none.
    """

    #: instructions of a class of nodes; a node's own come after them
    purpose: str = ""
    own: ClassVar[tuple[str, ...]] = ("role",)
    handles: ClassVar[frozenset[str]] = frozenset({"preprocessor", "guards", "postprocessor"})

    def __init__(self, name: str, *, role: str = "", **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.role = role
        self._words = assembly.join([self.purpose, self.instructions])
        self._blocks = tuple(map(as_block, self.blocks))
        self._guards = as_guards(self.guards)
        self._strategy: Strategy | None = _named(self.strategy, STRATEGIES, "strategy")
        self._perspective: Perspective | None = _named(self.perspective, PERSPECTIVES, "perspective")
        self._schema = None if self.output_schema is None else output_schema(self.output_schema)
        # an answer that does not fit its schema is refused like one that a guard refuses; where there are
        # tools, the first try is the end of the tool loop, the second the structured call, then its repair
        self._fits = Guard(_never, "retry", name="output_schema", max_retries=2 if self._may_use_tools else 1)
        self._before = preprocessor(self.preprocessor)
        self._after = postprocessor(self.postprocessor)
        self._dynamic = bool(self.input_keys or self.inherit_context_from) or any(
            block.dynamic for block in self._blocks
        )
        self._plain = not (self._guards or self._strategy or self._after or self._schema)
        # what is the same in every invocation: words alone, for everything else is asked anew in each
        asked = self._may_use_tools or self._blocks or self._strategy or self._perspective or self._dynamic
        self._same: Bound | None = None if asked else Bound(self._words, Message("system", self._words), ())
        # a subclass may make anything of what was said
        self._speaks = self._plain and type(self) is PromptNode
        self._voice = role or (ASSISTANT if self._plain and not _rewritten(self) else name)

    @property
    def _may_use_tools(self) -> bool:
        return bool(self.tools) or self.inject_tools

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self._before:
            await self._before(state, config)
        request = self._request(self._same or self._bound(state, config), state)
        answer = await self._ask(request, config)
        if answer.tool_calls:
            return await self._use_tools(answer, state, config)
        if self._plain:
            result = self._said(answer, config)
        else:
            result = await self._conclude(request, answer, state, config)
        return self._finish(result, state)

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        return config.complete(request, self._voice)

    # -- steps 2 to 4: what the model is asked -------------------------------------------------------------

    def _bound(self, state: GraphState, config: NodeConfig) -> Bound:
        key = f"_node_cache_{config.path}"
        bound: Bound | None = config.get(key)
        if bound is None:
            bound = config[key] = self._bind(state, config.specs())
        return bound

    def _bind(self, state: GraphState, specs: tuple[ToolSpec, ...]) -> Bound:
        own = self._words
        if self._blocks:
            static = (block.render(state) for block in self._blocks if not block.dynamic)
            own = assembly.join([own, *static])
        # a node without words of its own leaves the caller's system prompt as it is
        head = f"{own}\n\n{assembly.tool_section(specs)}" if own and specs else own
        return Bound(head, None if self._dynamic else Message("system", self._shape(head)), specs)

    def _request(self, bound: Bound, state: GraphState) -> CompletionRequest:
        system = bound.sys_msg
        if system is None or state.observations or state.plan or state.reflections:
            text = assembly.join([bound.head, *self._from_state(bound, state)])
            system = Message("system", self._shape(text))
        said = state.messages
        if system.content and said and said[0].role == said[-1].role == "user":
            messages = (system, *said)  # as most are: nothing to join, nothing left unanswered
        else:
            messages = assembly.ready(assembly.with_system(said, system))
        # with tools, the structured call comes at the end of the tool loop
        schema = self._schema.json_schema if self._schema and not bound.tools else None
        return new_request(messages, bound.tools, {}, schema)

    def _from_state(self, bound: Bound, state: GraphState) -> Sequence[str]:
        return (
            *(block.render(state) for block in self._blocks if block.dynamic),
            assembly.inputs(state, self.input_keys),
            assembly.inherited(state, self.inherit_context_from),
            # a node with tools sees what its tools said in the conversation
            "" if bound.tools else assembly.observations(state),
            assembly.plan(state),
            assembly.reflections(state),
        )

    def _shape(self, prompt: str) -> str:
        """Step 3."""
        if self._strategy:
            prompt = self._strategy.wrap(prompt)
        return self._perspective.apply(prompt) if self._perspective else prompt

    # -- step 6: tools -------------------------------------------------------------------------------------

    async def _use_tools(self, answer: CompletionResult, state: GraphState, config: NodeConfig) -> NodeResult:
        calls = distinct(answer.tool_calls)
        said = Message("assistant", answer.content, calls)
        result = NodeResult(self.name, answer.content or None, answer.content, tool_calls=calls)
        if not self.tool_loop:
            result.messages_added = (said,)
            return result
        results = await config.call_tools(calls, state)
        if NodeFlag.READONLY not in self.flags:
            state.observations.extend(
                {"tool": r.name, "call_id": r.call_id, "ok": r.ok, "result": r.content} for r in results
            )
        heard = (Message("tool", r.content, tool_call_id=r.call_id, name=r.name) for r in results)
        result.messages_added = (said, *heard)
        if any(r.ends_run for r in results):
            state.stop("completed")
        result.transition_reason = TOOL_CALLS_PRESENT
        return result

    # -- steps 6 to 9: the final answer --------------------------------------------------------------------

    def _said(self, answer: CompletionResult, config: NodeConfig) -> NodeResult:
        """The answer as it was said: nothing stands between the model and the reader."""
        content = answer.content
        output = self._parse(content) if content[:1] in _MAYBE_JSON else content
        config.said = self._speaks and output is content
        # without its constructor, which sets every field there is: a tenth of the time of the whole node
        result = _blank(NodeResult)
        result.node_name, result.output, result.raw_output = self.name, output, content
        result.messages_added = (new_message("assistant", content),)
        return result

    async def _conclude(
        self, request: CompletionRequest, answer: CompletionResult, state: GraphState, config: NodeConfig
    ) -> NodeResult:
        tries = 0
        final = await self._settle(answer, state, config)
        while final.checked.refused and final.checked.may_retry(tries):
            tries += 1
            request = self._ask_again(request, answer, final.checked)
            answer = await self._ask(request, config)
            final = await self._settle(answer, state, config)
        return self._result(answer, final)

    async def _settle(self, answer: CompletionResult, state: GraphState, config: NodeConfig) -> Final:
        try:
            parsed = self._parse(answer.content)
        except ValueError as error:
            return Final(None, Checked((), (self._fits.name,), (self._fits,), str(error)))
        checked = await check_all(self._guards, parsed, state)
        if checked.refused:
            return Final(None, checked)
        output = self._strategy.parse(parsed) if self._strategy else parsed
        if self._strategy and not self._schema:
            output = self._parse(output)
        if self._after:
            output = await self._after(output, state, config)
        if self._guards and output is not parsed and output != parsed:
            # what steps 8 and 9 made of the answer is what is let out
            checked = await check_all(self._guards, output, state)
        return Final(None if checked.refused else output, checked)

    def _parse(self, text: Any) -> Any:
        if self._schema:
            return self._schema.parse(text)
        if self.routing == "edges_only" or not isinstance(text, str) or text[:1] not in _MAYBE_JSON:
            return text
        if not text.lstrip().startswith(_JSON):
            return text
        found = whole_object(text)
        return text if found is None else found

    def _ask_again(
        self, request: CompletionRequest, answer: CompletionResult, checked: Checked
    ) -> CompletionRequest:
        refused = (
            Message("assistant", answer.content),
            Message("user", f"That answer cannot be accepted:\n{checked.feedback}\n{_AGAIN}"),
        )
        return replace(
            request,
            messages=(*request.messages, *(m for m in refused if m.content)),
            tool_choice="none" if request.tools else "auto",
            output_schema=self._schema.json_schema if self._schema else None,
        )

    def _result(self, answer: CompletionResult, final: Final) -> NodeResult:
        result = NodeResult(self.name, final.output, answer.content)
        result.guards_passed, result.guards_failed = final.checked.passed, final.checked.failed
        if final.checked.refused:
            result.error = f"The answer of {self.name!r} was {final.checked.error}"
            by_schema = self._fits in final.checked.refused
            result.exception = (
                InvalidOutput(result.error) if by_schema else final.checked.refusal(result.error)
            )
        else:
            # what the conversation gains is what is let out
            result.messages_added = (Message("assistant", assembly.as_text(final.output)),)
        return result

    def _finish(self, result: NodeResult, state: GraphState) -> NodeResult:
        """For nodes that do something with their answer."""
        return result


async def _never(output: Any) -> bool:
    return False


_AGAIN = "Answer again, corrected, without a remark about it."
_JSON = ("{", "```")
_MAYBE_JSON = frozenset("{` \t\r\n\f\v")


def distinct(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with ids that differ: some models leave them out or give one id twice."""
    ids = [call.id for call in calls]
    if all(ids) and len(set(ids)) == len(ids):
        return tuple(calls)
    taken: set[str] = set()
    renamed = []
    for number, call in enumerate(calls):
        fresh = call.id if call.id and call.id not in taken else f"{call.id or 'call'}_{number}"
        taken.add(fresh)
        renamed.append(replace(call, id=fresh))
    return tuple(renamed)


def _named(value: Any, known: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    if value not in known:
        raise ValueError(f"There is no {what} {value!r}. Known: {', '.join(known)}.")
    return known[value]


def _rewritten(node: BaseNode) -> bool:
    return NodeFlag.SUMMARIZE_OUTPUT in node.flags
