"""PromptNode: one turn of a model, in the nine steps of document 000.

    1  preprocessor                        6  kind of answer: tool calls, text, structured output
    2  context assembly, tool section      7  guards
    3  strategy and perspective            8  strategy parsing
    4  tools and output schema             9  postprocessor
    5  model call                          then the engine writes the output

In step 6 an answer with tool calls has them made, and the node is entered again with their results. The steps
from 7 on apply to the final answer alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from msgspec import structs

from astromesh.errors import InvalidOutput, text_of
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.calls import ASSISTANT, goto_of, tool_message
from astromesh.graph.flags import NodeFlag
from astromesh.graph.model_output import json_of, output_schema, whole_object
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes import system_prompt
from astromesh.graph.nodes.guard import Guard, GuardResults, as_guards, run_guards
from astromesh.graph.nodes.system_prompt import PERSPECTIVES, STRATEGIES, Perspective, Strategy, as_block
from astromesh.graph.records import TOOL_CALLS_PRESENT, NodeResult
from astromesh.graph.state import GraphState
from astromesh.graph.validation import postprocessor, preprocessor
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolCall, ToolSpec

_new_without_init = object.__new__


@dataclass(slots=True)
class PreparedPrompt:
    """The objects that are made once per invocation and used in every re-entry.

    Args:
        head: The static part of the system prompt.
        sys_msg: The whole system prompt as a message if no part of it depends on the state, else None.
        tools: The tools that are offered.
    """

    head: str
    sys_msg: Message | None
    tools: tuple[ToolSpec, ...]


class PromptNode(BaseNode):
    """Asks the model, makes its tool calls until it answers, checks the answer and writes it.

    Args:
        role: The role in events and token frames: `assistant` writes the answer of the run, any other role
            (`planner`, `critic`, …) is a call that the graph makes for itself. The default is the assistant,
            unless guards, a strategy, a postprocessor or a schema stand between the model's text and the
            answer.
        keywords: See `NodeKeywords`.

    Raises:
        ValueError: The strategy or perspective is unknown.
        TypeError: A block, guard or processor is invalid.
    """

    #: The instructions of a class of nodes. A node's own come after them.
    purpose: str = ""
    constructor_keys: ClassVar[tuple[str, ...]] = ("role",)
    handles: ClassVar[frozenset[str]] = frozenset({"preprocessor", "guards", "postprocessor"})

    def __init__(self, name: str, *, role: str = "", **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.role = role
        self._own_instructions = system_prompt.join([self.purpose, self.instructions])
        self._blocks = tuple(map(as_block, self.blocks))
        self._guards = as_guards(self.guards)
        self._strategy: Strategy | None = _by_name(self.strategy, STRATEGIES, "strategy")
        self._perspective: Perspective | None = _by_name(self.perspective, PERSPECTIVES, "perspective")
        self._schema = None if self.output_schema is None else output_schema(self.output_schema)
        # an answer that does not fit its schema is refused like one that a guard refuses; where there are
        # tools, the first try is the end of the tool loop, the second the structured call, then its repair
        self._schema_guard = Guard(
            _always_fails, "retry", name="output_schema", max_retries=2 if self._may_use_tools else 1
        )
        self._preprocessor = preprocessor(self.preprocessor)
        self._postprocessor = postprocessor(self.postprocessor)
        self._dynamic = bool(self.input_keys or self.inherit_context_from) or any(
            block.dynamic for block in self._blocks
        )
        self._plain = not (self._guards or self._strategy or self._postprocessor or self._schema)
        # only a prompt of fixed text is the same in every invocation
        varies = self._may_use_tools or self._blocks or self._strategy or self._perspective or self._dynamic
        self._static_prompt: PreparedPrompt | None = (
            None
            if varies
            else PreparedPrompt(self._own_instructions, Message("system", self._own_instructions), ())
        )
        # a subclass may change the text
        self._answers_verbatim = self._plain and type(self) is PromptNode
        self._event_role = role or (ASSISTANT if self._plain and not _is_summarized(self) else name)

    @property
    def _may_use_tools(self) -> bool:
        return bool(self.tools) or self.inject_tools

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self._preprocessor:
            await self._preprocessor(state, config)
        request = self._request(self._static_prompt or self._prepared(state, config), state)
        answer = await self._ask(request, config)
        if answer.tool_calls:
            return await self._use_tools(answer, state, config)
        if not self._plain:
            return await self._conclude(request, answer, state, config)
        # nothing stands between the text of the model and the reader
        content = answer.content
        output = self._parse(content) if content[:1] in _MAYBE_JSON else content
        config.is_verbatim = self._answers_verbatim and output is content
        # the constructor sets every field, which takes a tenth of the time of the whole node
        result = _new_without_init(NodeResult)
        result.node_name, result.output, result.raw_output = self.name, output, content
        result.messages_added = (Message("assistant", content),)
        return result

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        return config.complete(request, self._event_role)

    # -- steps 2 to 4: the request -------------------------------------------------------------------------

    def _prepared(self, state: GraphState, config: NodeConfig) -> PreparedPrompt:
        key, values = f"_node_cache_{config.path}", config.runtime.values
        prepared: PreparedPrompt | None = values.get(key)
        if prepared is not None:
            return prepared
        own, specs = self._own_instructions, config.specs()
        if self._blocks:
            static = (block.render(state) for block in self._blocks if not block.dynamic)
            own = system_prompt.join([own, *static])
        # a node without own instructions leaves the caller's system prompt unchanged
        head = f"{own}\n\n{system_prompt.tool_section(specs)}" if own and specs else own
        message = None if self._dynamic else Message("system", self._shape(head))
        prepared = values[key] = PreparedPrompt(head, message, specs)
        return prepared

    def _request(self, prepared: PreparedPrompt, state: GraphState) -> CompletionRequest:
        system = prepared.sys_msg
        if system is None or state.observations or state.plan or state.reflections:
            text = system_prompt.join([prepared.head, *self._from_state(prepared, state)])
            system = Message("system", self._shape(text))
        so_far = state.messages
        is_complete = so_far and so_far[-1].role == "user"
        if is_complete and not system.content:
            messages = tuple(so_far)
        elif is_complete and so_far[0].role == "user":
            messages = (system, *so_far)
        else:
            messages = system_prompt.complete_conversation(system_prompt.with_system(so_far, system))
        # with tools, the structured call comes at the end of the tool loop
        schema = self._schema.json_schema if self._schema and not prepared.tools else None
        return CompletionRequest(messages, prepared.tools, {}, schema)

    def _from_state(self, prepared: PreparedPrompt, state: GraphState) -> Sequence[str]:
        return (
            *(block.render(state) for block in self._blocks if block.dynamic),
            system_prompt.inputs(state, self.input_keys),
            system_prompt.inherited(state, self.inherit_context_from),
            # a node with tools sees their results in the conversation
            "" if prepared.tools else system_prompt.observations(state),
            system_prompt.plan(state),
            system_prompt.reflections(state),
        )

    def _shape(self, prompt: str) -> str:
        """Applies strategy and perspective (step 3)."""
        if self._strategy:
            prompt = self._strategy.wrap(prompt)
        return self._perspective.apply(prompt) if self._perspective else prompt

    # -- step 6: tools -------------------------------------------------------------------------------------

    async def _use_tools(self, answer: CompletionResult, state: GraphState, config: NodeConfig) -> NodeResult:
        calls = with_unique_ids(answer.tool_calls)
        message = Message("assistant", answer.content, calls)
        result = NodeResult(self.name, answer.content or None, answer.content, tool_calls=calls)
        if not self.tool_loop:
            result.messages_added = (message,)
            return result
        results = await config.call_tools(calls, state)
        if NodeFlag.READONLY not in self.flags:
            state.observations.extend(
                {"tool": r.name, "call_id": r.call_id, "ok": r.ok, "result": r.content} for r in results
            )
        result.messages_added = (message, *map(tool_message, results))
        if any(r.ends_run for r in results):
            state.stop("completed")
        result.next_node = goto_of(results)
        result.transition_reason = "" if result.next_node else TOOL_CALLS_PRESENT
        return result

    # -- steps 6 to 9: the final answer --------------------------------------------------------------------

    async def _conclude(
        self, request: CompletionRequest, answer: CompletionResult, state: GraphState, config: NodeConfig
    ) -> NodeResult:
        tries = 0
        output, checked = await self._check_answer(answer, state, config)
        while checked.refused and checked.may_retry(tries):
            tries += 1
            request = self._ask_again(request, answer, checked)
            answer = await self._ask(request, config)
            output, checked = await self._check_answer(answer, state, config)
        result = NodeResult(self.name, output, answer.content)
        result.guards_passed, result.guards_failed = checked.passed, checked.failed
        if not checked.refused:
            # the conversation gets the final output, in the model's own characters
            result.messages_added = (Message("assistant", self._written(output, answer.content)),)
            return result
        result.error = f"The answer of {self.name!r} was {checked.error}"
        by_schema = self._schema_guard in checked.refused
        result.exception = InvalidOutput(result.error) if by_schema else checked.refusal(result.error)
        return result

    async def _check_answer(
        self, answer: CompletionResult, state: GraphState, config: NodeConfig
    ) -> tuple[Any, GuardResults]:
        """Returns the output after steps 6 to 9, None if it is refused, and the results of the guards."""
        try:
            parsed = self._parse(answer.content)
        except ValueError as error:
            guard = self._schema_guard
            return None, GuardResults((), (guard.name,), (guard,), text_of(error))
        checked = await run_guards(self._guards, parsed, state)
        if checked.refused:
            return None, checked
        output = self._strategy.parse(parsed) if self._strategy else parsed
        if self._strategy and not self._schema:
            output = self._parse(output)
        if self._postprocessor:
            output = await self._postprocessor(output, state, config)
        if self._guards and output is not parsed and output != parsed:
            # steps 8 and 9 have changed the answer
            checked = await run_guards(self._guards, output, state)
        return (None if checked.refused else output), checked

    def _parse(self, text: Any) -> Any:
        if self._schema:
            return self._schema.parse(text)
        if self.routing == "edges_only" or not isinstance(text, str) or text[:1] not in _MAYBE_JSON:
            return text
        if not text.lstrip().startswith(_JSON):
            return text
        found = whole_object(text)
        return text if found is None else found

    def _written(self, output: Any, text: str) -> str:
        if isinstance(output, str):
            return output
        if not self._schema and whole_object(text) == output:
            return text
        return json_of(text, output) or system_prompt.as_text(output)

    def _ask_again(
        self, request: CompletionRequest, answer: CompletionResult, checked: GuardResults
    ) -> CompletionRequest:
        refused = (
            Message("assistant", answer.content),
            Message("user", f"That answer cannot be accepted:\n{checked.feedback}\n{_RETRY_INSTRUCTION}"),
        )
        return structs.replace(
            request,
            messages=(*request.messages, *(m for m in refused if m.content)),
            tool_choice="none" if request.tools else "auto",
            output_schema=self._schema.json_schema if self._schema else None,
        )


async def _always_fails(output: Any) -> bool:
    return False


_RETRY_INSTRUCTION = "Answer again, corrected, without a remark about it."
_JSON = ("{", "```")
_MAYBE_JSON = frozenset("{` \t\r\n\f\v")


def with_unique_ids(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Returns the calls with unique ids. Some models leave ids out or use one twice."""
    ids = [call.id for call in calls]
    if all(ids) and len(set(ids)) == len(ids):
        return tuple(calls)
    used: set[str] = set()
    renamed = []
    for number, call in enumerate(calls):
        fresh = call.id if call.id and call.id not in used else f"{call.id or 'call'}_{number}"
        used.add(fresh)
        renamed.append(structs.replace(call, id=fresh))
    return tuple(renamed)


def _by_name(value: Any, known: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    if value not in known:
        raise ValueError(f"There is no {what} {value!r}. Known: {', '.join(known)}.")
    return known[value]


def _is_summarized(node: BaseNode) -> bool:
    return NodeFlag.SUMMARIZE_OUTPUT in node.flags
