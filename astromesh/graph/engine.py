"""PromptGraphEngine compiles a graph once and runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from os import urandom
from typing import Any, Generic, TypeAlias

from astromesh.errors import InvalidGraph, InvalidInput, NodeFailed
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.graph import PromptGraph
from astromesh.graph.hooks import HookSet
from astromesh.graph.node_config import NO_MODEL
from astromesh.graph.plan import CompileOptions, Plan, compile_graph
from astromesh.graph.problems import known_roles, unknown_role, unknown_roles
from astromesh.graph.records import GraphResult, S
from astromesh.graph.run import UNLIMITED_RETRIES, Run, RunSettings
from astromesh.graph.scope import Scope
from astromesh.graph.state import MAX_ITERATIONS
from astromesh.graph.validation import check_int, check_seconds
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.events import MODEL_DELTA, EventStream
from astromesh.tools.base import ToolPort
from astromesh.tools.toolbox import ToolLike, tool_port
from astromesh.types import CallerContext, Event, Message, ToolCall, calling_as

#: A question, messages (ours or JSON objects of the chat format), or `{"messages": […]}`.
Input: TypeAlias = str | Sequence[Message | Mapping[str, Any]] | Mapping[str, Any]
_ROLES = ("assistant", "system", "tool", "user")


def as_messages(value: Input) -> tuple[Message, ...]:
    """Returns the input as messages.

    Raises:
        InvalidInput: The input is neither text, nor messages (none, too), nor a mapping with messages.
    """
    if isinstance(value, str):
        return (Message("user", value),)
    if type(value) is tuple and value and all([type(message) is Message for message in value]):  # noqa: C419 (faster)
        return value
    if isinstance(value, Mapping) and "messages" in value:
        value = value["messages"]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidInput(
            "The input must be a text, a list of messages, or {'messages': […]}, "
            f"not {_type_description(value)}."
        )
    return tuple(message if isinstance(message, Message) else _message(message) for message in value)


def _type_description(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping) or value.get("role") not in _ROLES:
        raise InvalidInput(f"A message needs a role of {', '.join(_ROLES)}: {value!r}")
    calls = value.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise InvalidInput(f"The tool_calls of a message must be a list, not {calls!r}.")
    content, answered, name = (_text(value, key, "a message") for key in ("content", "tool_call_id", "name"))
    return Message(value["role"], content, tuple(map(_call, calls)), answered, name)


def _text(record: Mapping[str, Any], key: str, owner: str) -> str:
    value = record.get(key) or ""
    if not isinstance(value, str):
        raise InvalidInput(f"The {key} of {owner} must be text.")
    return value


def _call(value: Any) -> ToolCall:
    if isinstance(value, ToolCall):
        return value
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidInput(f"A tool call needs an id and a function with a name: {value!r}")
    arguments = _text(function, "arguments", "a tool call")
    return ToolCall(_text(value, "id", "a tool call"), function["name"], arguments or "{}")


_CLOCK: Clock = SystemClock()


class PromptGraphEngine(Generic[S]):
    """Runs one graph, any number of times and concurrently. Runs share only the compiled plan.

    Args:
        graph: Changes apply from the next run on. A run never changes it.
        model: A Provider, the model router, or any object that completes and streams. None if no node needs
            one.
        tools: A ToolPort, or tools and Python functions.
        hooks: In the order in which they are called. See `Hook`.
        lightweight_model: For nodes with the flag LIGHTWEIGHT: a model, or a role. Roles are those of every
            agent (`STANDARD_ROLES`) and those in `roles` of the model.
        max_iterations: Node executions of one run, nested ones included. Each item of a FanOutNode and each
            round of a LoopNode may have as many.
        max_node_iterations: Visits of one node. After them the node is stuck.
        max_mutations_per_run: The limit of applied graph actions of the model.
        allow_self_modification: Whether graph actions are applied at all.
        human_handler: Answers the questions of human nodes.
        clock: The clock of pauses between retries.
        seed: The seed of the jitter of these pauses.
        finalizer_seconds: The timeout of the finalizer of a stopped or cancelled run.

    Raises:
        ConfigError: Two tools have one name, or an entry is not a tool.
    """

    def __init__(  # noqa: PLR0913 (the keywords of graph.md section 1)
        self,
        graph: PromptGraph[S],
        model: ModelPort | None = None,
        *,
        tools: ToolPort | Sequence[ToolLike] | None = None,
        hooks: Sequence[Any] = (),
        lightweight_model: ModelPort | str | None = None,
        max_iterations: int = MAX_ITERATIONS,
        max_node_iterations: int = 25,
        max_mutations_per_run: int = 10,
        allow_self_modification: bool = False,
        human_handler: Any = None,
        clock: Clock | None = None,
        seed: int | None = None,
        finalizer_seconds: float = 10.0,
    ) -> None:
        check_int("The engine", "max_iterations", max_iterations)
        check_int("The engine", "max_node_iterations", max_node_iterations)
        check_int("The engine", "max_mutations_per_run", max_mutations_per_run, least=0)
        check_seconds("The engine", "finalizer_seconds", finalizer_seconds)
        self.graph = graph
        self.hooks = tuple(hooks)
        self._setup = RunSettings(
            CompileOptions(HookSet(self.hooks), max_node_iterations),
            model or NO_MODEL,
            tool_port(tools),
            lightweight_model,
            human_handler,
            clock or _CLOCK,
            max_iterations,
            max_mutations_per_run,
            allow_self_modification,
            seed,
            finalizer_seconds,
        )
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The compiled graph.

        Raises:
            InvalidGraph: The graph has no nodes, its entry is not one of them, or it names an unknown role.
        """
        plan = self._plan
        if plan is None or plan.version != self.graph.version:
            self._check_roles()
            plan = self._plan = compile_graph(self.graph, self._setup.options)
        return plan

    def _check_roles(self) -> None:
        """Raises InvalidGraph if a node or the engine names a role that its model does not have."""
        setup = self._setup
        if setup.model is NO_MODEL:  # the model of a run comes with its roles
            return
        known = known_roles(setup.model)
        found = unknown_roles(self.graph, known)
        light = setup.lightweight_model
        if isinstance(light, str) and light not in known:
            found.append(f"lightweight_model: {unknown_role(light, known)}")
        if found:
            raise InvalidGraph(found)

    async def ainvoke(
        self,
        input: Input,
        *,
        state: S | Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
    ) -> GraphResult[S]:
        """Runs the graph once. A failed run returns a result too: see its report.

        Args:
            input: A question, messages, or `{"messages": […]}`.
            state: Initial values of a typed state: an instance of its class, or a mapping.
            context: Initial values of the state's context.
            config: Values that nodes find in their `config`.
            caller: Who is calling. Tools see it.

        Raises:
            InvalidGraph: The graph cannot run at all.
            InvalidInput: The input or the state has another form.
            asyncio.CancelledError: The run was cancelled.
        """
        messages = as_messages(input)
        if state is not None:
            context = {**self._initial_state(state), **(context or {})}
        if caller is None:
            return await Run(self._setup, self.plan, messages, context, config).execute()
        scope = Scope(caller=caller, clock=self._setup.clock, retries=UNLIMITED_RETRIES)
        with calling_as(caller):
            return await Run(self._setup, self.plan, messages, context, config, scope).execute()

    def _initial_state(self, state: Any) -> dict[str, Any]:
        schema = self.graph.schema
        if schema is None:
            raise InvalidInput(f"The graph {self.graph.name!r} has no typed state. Pass values as `context`.")
        return schema.initial(state)

    def start(
        self,
        messages: Sequence[Message],
        scope: Scope,
        *,
        model: ModelPort | None = None,
        tools: ToolPort | None = None,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Run:
        """Returns a run inside another one, for the pipeline: `await engine.start(…).execute()`.

        Events, ledger, caller, deadline, clock, path and retry budget are those of the scope. After a
        cancellation the run's `result` holds what exists.

        Args:
            messages: System, history, question.
            scope: The scope of the surrounding run.
            model: Replaces the engine's.
            tools: Replace the engine's.
            context: Initial values of the state's context.
            config: Values that nodes find in their `config`.

        Raises:
            InvalidGraph: The graph cannot run at all.
        """
        plan = self._plan
        if plan is None or plan.version != self.graph.version:
            plan = self.plan
        run = Run(self._setup, plan, messages, context, config, scope)
        run.model = model or run.model
        run.tools = tools or run.tools
        return run

    async def astream_events(
        self,
        input: Input,
        *,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
    ) -> AsyncIterator[Event]:
        """Yields the events of one run, in the form of the runtime's. The last event says how the run ended.

        It is the run of `ainvoke` with a listener. Closing the iterator cancels the run.

        Args:
            input: A question, messages, or `{"messages": […]}`.
            context: Initial values of the state's context.
            config: Values that nodes find in their `config`.
            caller: Who is calling. Tools see it.

        Raises:
            InvalidGraph: The graph cannot run at all.
            InvalidInput: The input has another form.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        listener = _QueueListener(queue)
        events = EventStream(urandom(16).hex(), [listener])
        scope = Scope(
            events.run_id, caller=caller, events=events, clock=self._setup.clock, retries=UNLIMITED_RETRIES
        )
        run = Run(self._setup, self.plan, as_messages(input), context, config, scope)
        with calling_as(caller):
            task = asyncio.create_task(_run_with_events(run, events, scope, listener))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


class _QueueListener:
    """Puts events into a queue, deltas too. `text_parts` holds the newest text of the role `assistant`."""

    wants_deltas = True

    def __init__(self, queue: asyncio.Queue[Event | None]) -> None:
        self._queue = queue
        self.text_parts: list[str] = []

    def send(self, event: Event) -> None:
        if event.data.get("role") == ASSISTANT:
            if event.type == "model.started":
                self.text_parts.clear()
            elif event.type == MODEL_DELTA:
                self.text_parts.append(event.data["content"])
        self._queue.put_nowait(event)


async def _run_with_events(run: Run, events: EventStream, scope: Scope, listener: _QueueListener) -> None:
    """Executes the run between its first event and its last."""
    events.emit("run.started")
    try:
        result = await run.execute()
    except asyncio.CancelledError:
        events.emit("run.cancelled", response=run.result.text if run.result else "")
        raise
    report = result.report
    if report.error and result.output is None:
        code = NodeFailed.code if report.stop_reason == "failed" else report.stop_reason
        events.emit("run.failed", code=code, detail=report.error, metadata=report.to_json())
    else:
        if result.text and result.text != "".join(listener.text_parts):  # it was held back or rewritten
            events.emit(MODEL_DELTA, step=scope.next_step(), role=ASSISTANT, content=result.text)
        events.emit("run.completed", response=result.text, metadata=report.to_json())
