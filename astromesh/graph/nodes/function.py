"""Functions and tools as nodes: FunctionNode with its decorator `@node`, TransformNode, and ToolNode."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Unpack, get_args

import orjson

from astromesh.graph.base import MODEL_KEYWORDS, PROMPT_KEYWORDS, BaseNode, NodeKeywords
from astromesh.graph.calls import goto_of, tool_message
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.private_state import call_in_thread, call_in_worker, function_name
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import call_inline
from astromesh.graph.scope import NodeEffect
from astromesh.graph.state import GraphState
from astromesh.graph.validation import check_int, positional_arity
from astromesh.tools.process_pool import Isolation, is_isolated
from astromesh.types import Message, ToolCall, ToolResult

Function = Callable[..., Any]


class FunctionNode(BaseNode):
    """A function as a node.

    An async function runs in the event loop. A plain one runs in a tool thread on a private copy of the
    state, so that it may block and its timeout holds: see `private_state`.

    Args:
        function: Takes `(state)` or `(state, config)`. Returns a NodeResult, or any value as the output.
        inline: A plain function runs in the event loop, which costs less than 1 µs instead of a change of
            threads. Use it for pure functions that take less than a millisecond: nothing else runs meanwhile,
            and no timeout interrupts them.
        effect: What the function does to the world by itself. It decides what happens if the process of a
            durable run dies while the function runs: one that only reads, or that may be repeated
            (`idempotent`), runs again. For any other one a person decides. The default is `read` for an
            inline function, else `write`. A function that has ended is never repeated.
        isolation: `process`: the function runs in a worker process, which its timeout kills. It takes the
            state alone, whose context must be JSON. Other processes must be able to import it.
        max_memory_mb: MiB of data that the function may have in its worker process. None: no limit.

    Raises:
        TypeError, ValueError: A keyword is not valid, or does not fit the function.
    """

    constructor_keys = ("function", "inline", "effect", "isolation", "max_memory_mb")
    ignores: ClassVar[frozenset[str]] = PROMPT_KEYWORDS

    def __init__(
        self,
        name: str,
        function: Function,
        *,
        inline: bool = False,
        effect: NodeEffect | None = None,
        isolation: Isolation = None,
        max_memory_mb: int | None = None,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        keywords.setdefault("description", (inspect.getdoc(function) or "").partition("\n")[0])
        super().__init__(name, **keywords)
        if not isinstance(inline, bool):
            raise TypeError(f"Node {name!r}: inline must be true or false, not {inline!r}.")
        if effect not in (None, *get_args(NodeEffect)):
            known = ", ".join(get_args(NodeEffect))
            raise ValueError(f"Node {name!r}: effect must be one of {known}, not {effect!r}.")
        self.function, self.inline, self._own_effect = function, inline, effect
        self.effect = effect or ("read" if inline else "write")
        self.arity = positional_arity(function, f"Node {name!r}", most=2)
        self.is_async = inspect.iscoroutinefunction(function)
        self.isolation, self.max_memory_mb = isolation, max_memory_mb
        self._name_elsewhere = function_name(function) if self.arity == 1 else ""
        self._check_isolation()
        #: one object for all calls: by it the threads count those that hang
        self._in_thread = lambda *arguments: (function(*arguments),)
        if self.arity == 1:  # without a config it reaches neither model nor tools
            self.ignores = MODEL_KEYWORDS - {"tool_loop"}  # type: ignore[misc]  # of this node

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self.isolation or (self._name_elsewhere and not self.inline and is_isolated()):
            return await call_in_worker(
                self.name, self._name_elsewhere, state, max_memory_mb=self.max_memory_mb or 0
            )
        others = () if self.arity == 1 else (config,)
        if not self.is_async and not self.inline:
            return as_result(self.name, await call_in_thread(self.name, self._in_thread, state, *others))
        value = call_inline("The inline function", self.function, state, *others)
        if self.is_async or hasattr(value, "__await__"):
            value = await value
        return as_result(self.name, value)

    def _check_isolation(self) -> None:
        place = f"Node {self.name!r}"
        if self.isolation not in (None, "process"):
            raise ValueError(f"{place}: isolation must be process, not {self.isolation!r}.")
        if self.max_memory_mb is not None:
            check_int(place, "max_memory_mb", self.max_memory_mb, least=1)
            if not self.isolation:
                raise ValueError(f"{place}: max_memory_mb needs isolation: process.")
        if self.isolation and self.inline:
            raise ValueError(f"{place}: a function is either inline or has isolation: process.")
        if self.isolation and not self._name_elsewhere:
            raise ValueError(
                f"{place}: isolation: process needs a function of (state) that other processes can import: "
                "neither a lambda nor a function of the main program or of another function."
            )

    @property
    def takes_state_only(self) -> bool:
        """Whether `body` takes the state without a config."""
        return self.arity == 1 and self.body() is self.function

    def constructor_value(self, key: str) -> Any:
        return self._own_effect if key == "effect" else super().constructor_value(key)

    def problems(self) -> Iterable[str]:
        if self.inline and self.is_async:
            yield "inline: not used by an async function, which runs in the event loop."

    @property
    def plain_function(self) -> Function | None:
        """The function if it is everything that the node does: inline, and of the state alone."""
        is_all = type(self).execute is FunctionNode.execute and self.arity == 1
        is_all = is_all and self.inline and not self.is_async
        return self.function if is_all else None

    def body(self) -> Callable[..., Awaitable[Any]]:
        """Returns the function itself if it is async: one coroutine less than `execute`."""
        return self.function if self.is_async and not self.isolation else self.execute


def node(
    name: str,
    *,
    inline: bool = False,
    effect: NodeEffect | None = None,
    isolation: Isolation = None,
    max_memory_mb: int | None = None,
    **keywords: Unpack[NodeKeywords],
) -> Callable[[Function], FunctionNode]:
    """Makes a function a node: `@node("validate", flags={NodeFlag.RETRYABLE})`. See `FunctionNode`."""

    def decorate(function: Function) -> FunctionNode:
        return FunctionNode(
            name, function, inline=inline, effect=effect, isolation=isolation, max_memory_mb=max_memory_mb,
            **keywords,
        )  # fmt: skip

    return decorate


def as_result(name: str, value: Any) -> NodeResult:
    """Returns a value as a result: itself if it is one, else with the value as the output."""
    if isinstance(value, NodeResult):
        value.node_name = value.node_name or name
        return value
    return NodeResult(name, value)


# -- TransformNode: a pure step from value to value --------------------------------------------------------


class TransformNode(BaseNode):
    """Makes a new value from older ones, without a model.

    Args:
        transform: A function of `(value)` or `(value, state)`, sync or async. The value is that of the one
            input key, a dict of the values of several, or without input keys the output of the last node.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("transform",)
    ignores: ClassVar[frozenset[str]] = MODEL_KEYWORDS

    def __init__(self, name: str, transform: Callable[..., Any], **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, **keywords)
        self.transform = transform
        self._arity = positional_arity(transform, f"Node {name!r}", most=2)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        value = declared_input(self, state)
        arguments = (value,) if self._arity == 1 else (value, state)
        made = call_inline("The transform", self.transform, *arguments)
        result = as_result(self.name, await made if inspect.isawaitable(made) else made)
        if result.output is value and not may_answer(value, state):  # passed on unchanged
            result.is_answer = False
        return result


def declared_input(node: BaseNode, state: GraphState) -> Any:
    """Returns the input of a node: its one input key, a dict of its input keys, or the last output.

    Raises:
        KeyError: A declared input does not exist.
    """
    keys = node.input_keys
    if not keys:
        last = state.last_result
        return state.question if last is None else last.output
    missing = [key for key in keys if key not in state.context]
    if missing:
        raise KeyError(f"{node.name!r} needs {', '.join(missing)} in the context, which no node has written.")
    return state.context[keys[0]] if len(keys) == 1 else {key: state.context[key] for key in keys}


def may_answer(value: Any, state: GraphState) -> bool:
    """Whether a value that a node passes on can be the answer.

    Neither the question nor a tool's result can.
    """
    source = next((r for r in reversed(state.node_history) if r.output is value), None)
    return value is not state.question if source is None else source.is_answer


# -- tools ------------------------------------------------------------------------------------------------


Arguments = Mapping[str, Any] | Callable[[GraphState], Mapping[str, Any]]


class ToolNode(BaseNode):
    """Makes tool calls without asking a model.

    Without `tool` it makes the calls of the last assistant message: the step after a PromptNode with
    `tool_loop=False`. With `tool` it calls that one, and a failed call fails the node.

    Args:
        tool: The name of a tool, one of the engine's or of `tools`. Empty for the pending calls.
        arguments: The arguments of that call: a mapping, or a function of the state. The default are the
            values of `input_keys`.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("tool", "arguments")
    ignores: ClassVar[frozenset[str]] = PROMPT_KEYWORDS | {"model_override", "tool_loop"}

    def __init__(
        self, name: str, tool: str = "", arguments: Arguments | None = None, **keywords: Unpack[NodeKeywords]
    ) -> None:
        if tool or not keywords.get("tools"):
            # no model chooses here: any of the engine's tools may be named or pending
            keywords.setdefault("inject_tools", True)
        super().__init__(name, **keywords)
        self.tool, self.arguments = tool, arguments

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        if self.tool:
            return await self._call(state, config)
        calls = pending_calls(state.messages)
        if not calls:
            return NodeResult(self.name, error=f"{self.name!r} has no tool call to carry out.")
        results = await config.call_tools(calls, state)
        messages = tuple(map(tool_message, results))
        # the model may correct a failed call: it is not the node's failure
        return NodeResult(
            self.name,
            _values_of(results),
            messages_added=messages,
            is_answer=False,
            next_node=goto_of(results),
        )

    async def _call(self, state: GraphState, config: NodeConfig) -> NodeResult:
        arguments = self._arguments(state)
        if inspect.isawaitable(arguments):
            arguments = await arguments
        text = orjson.dumps(dict(arguments), default=str).decode()
        call = ToolCall(config.scope.call_id(), self.tool, text)
        (result,) = results = await config.call_tools((call,), state)
        failed = "" if result.ok else f"{self.tool}: {result.content}"
        return NodeResult(
            self.name,
            result.value,
            result.content,
            error=failed,
            is_answer=False,
            next_node=goto_of(results),
        )

    def _arguments(self, state: GraphState) -> Any:
        if callable(self.arguments):
            return self.arguments(state)
        if self.arguments is not None:
            return self.arguments
        return {key: state.context[key] for key in self.input_keys if key in state.context}


def pending_calls(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Returns the tool calls of the newest assistant message that have no result yet."""
    answered_ids: set[str] = set()
    for message in reversed(messages):
        if message.role == "tool":
            answered_ids.add(message.tool_call_id)
        elif message.role == "assistant":
            return tuple(call for call in message.tool_calls if call.id not in answered_ids)
        else:
            break
    return ()


def _values_of(results: Sequence[ToolResult]) -> Any:
    values = [r.value if r.ok else {"error": r.error, "message": r.content} for r in results]
    return values[0] if len(values) == 1 else values
