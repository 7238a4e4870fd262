"""PromptGraphEngine compiles a graph once and runs it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from os import urandom
from typing import Any, Generic, TypeAlias, cast

from astromesh.durable.base import JournalStep
from astromesh.errors import InvalidGraph, InvalidInput
from astromesh.graph.calls import ModelFunction, as_model
from astromesh.graph.graph import PromptGraph
from astromesh.graph.hooks import HookSet
from astromesh.graph.node_cache import NodeCache
from astromesh.graph.node_config import NO_MODEL
from astromesh.graph.nodes.human import human_handler
from astromesh.graph.plan import CompileOptions, Plan, compile_graph
from astromesh.graph.problems import known_roles, named_roles, unknown_role, unknown_roles
from astromesh.graph.records import Checkpoint, GraphResult, GraphSnapshot, Interrupt, S
from astromesh.graph.run import UNLIMITED_RETRIES, Run, RunSettings
from astromesh.graph.scope import Scope
from astromesh.graph.state import MAX_ITERATIONS
from astromesh.graph.stored_runs import (
    GraphRuns,
    Replay,
    Replayed,
    RunsStore,
    config_of,
    request_of,
    start_of,
    with_call,
    with_update,
)
from astromesh.graph.streams import (
    Call,
    GraphEvents,
    GraphStream,
    Mode,
    QueueListener,
    StateListener,
    checked_modes,
    execute_stored,
    run_with_events,
    stop,
)
from astromesh.graph.validation import check_int, check_seconds
from astromesh.providers.base import ModelPort
from astromesh.telemetry import ids
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.telemetry.events import EventStream
from astromesh.tools.base import ToolPort
from astromesh.tools.toolbox import ToolLike, tool_port
from astromesh.types import CallerContext, Event, JsonObject, Message, ToolCall, calling_as

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
    content, tool_call_id, name = (
        _text(value, key, "a message") for key in ("content", "tool_call_id", "name")
    )
    return Message(value["role"], content, tuple(map(_call, calls)), tool_call_id, name)


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


def _named_models(main: ModelPort | str, names: Iterable[str], clock: Clock) -> ModelPort:
    # imported on first use, as the store is
    module = importlib.import_module("astromesh.graph.engine_plugins")
    model: ModelPort = module.NamedModels(main, names, clock)
    return model


def _store_of(url: str, clock: Clock) -> RunsStore:
    # imported on first use: it imports plugins, which an engine without a store does not need
    module = importlib.import_module("astromesh.graph.engine_plugins")
    store: RunsStore = module.EngineStore(url, clock)
    return store


class PromptGraphEngine(Generic[S]):
    """Runs one graph, any number of times and concurrently. Runs share only the compiled plan.

    Args:
        graph: Changes apply from the next run on. A run never changes it.
        model: `provider:name`, a Provider, an async function of the CompletionRequest, or any object that
            completes and streams. None if no node needs one.
        tools: A ToolPort, or tools and Python functions.
        hooks: In the order in which they are called. See `Hook`.
        lightweight_model: For nodes with the flag LIGHTWEIGHT: as `model`, or a role. Roles are those of
            every agent (`STANDARD_ROLES`) and those in `roles` of the model.
        max_iterations: Node executions of one run, nested ones included. Each item of a FanOutNode and each
            round of a LoopNode may have as many.
        max_node_iterations: Visits of one node. After them the node is stuck.
        max_mutations_per_run: The limit of applied graph actions of the model.
        allow_self_modification: Whether graph actions are applied at all.
        human_handler: Answers the questions of human nodes.
        clock: The clock of pauses between retries.
        seed: The seed of the jitter of these pauses.
        finalizer_seconds: The timeout of the finalizer of a stopped or cancelled run.
        store: Keeps runs with their finished nodes and calls: `memory` (as long as the engine),
            `sqlite:PATH`, or `postgres://…`. Nodes may then wait by `interrupt`.

    Raises:
        ConfigError: Two tools have one name, an entry is not a tool, `store` names no store, or `model` no
            provider.
    """

    def __init__(  # noqa: PLR0913 (the keywords of graph.md section 1)
        self,
        graph: PromptGraph[S],
        model: ModelPort | ModelFunction | str | None = None,
        *,
        tools: ToolPort | Sequence[ToolLike] | None = None,
        hooks: Sequence[Any] = (),
        lightweight_model: ModelPort | ModelFunction | str | None = None,
        max_iterations: int = MAX_ITERATIONS,
        max_node_iterations: int = 25,
        max_mutations_per_run: int = 10,
        allow_self_modification: bool = False,
        human_handler: Any = None,
        clock: Clock | None = None,
        seed: int | None = None,
        finalizer_seconds: float = 10.0,
        store: str | None = None,
    ) -> None:
        check_int("The engine", "max_iterations", max_iterations)
        check_int("The engine", "max_node_iterations", max_node_iterations)
        check_int("The engine", "max_mutations_per_run", max_mutations_per_run, least=0)
        check_seconds("The engine", "finalizer_seconds", finalizer_seconds)
        self.graph = graph
        self.hooks = tuple(hooks)
        clock = clock or _CLOCK
        self._store = None if store is None else _store_of(store, clock)
        if model is None:
            model = NO_MODEL
        model = _named_models(model, (), clock) if isinstance(model, str) else as_model(model)
        if not (lightweight_model is None or isinstance(lightweight_model, str)):
            lightweight_model = as_model(lightweight_model)
        self._setup = RunSettings(
            CompileOptions(HookSet(self.hooks), max_node_iterations),
            model,
            tool_port(tools),
            lightweight_model,
            human_handler,
            clock,
            max_iterations,
            max_mutations_per_run,
            allow_self_modification,
            seed,
            finalizer_seconds,
            NodeCache(clock, None if self._store is None else self._store.opened),
        )
        self._plan: Plan | None = None
        #: The version of the graph whose nodes have their models.
        self._version_with_models: int | None = None

    def replace_node_models(self, replace_one: Callable[[ModelPort], ModelPort | None]) -> None:
        """Replaces the models that nodes have as objects, for the pipeline.

        Args:
            replace_one: Takes a model; returns another one, or None for the model of the run.
        """
        options = replace(self._setup.options, node_model=replace_one)
        self._setup, self._plan = replace(self._setup, options=options), None

    @property
    def plan(self) -> Plan:
        """The compiled graph.

        Raises:
            InvalidGraph: The graph has no nodes, or its entry is not one of them.
        """
        plan = self._plan
        if plan is None or plan.version != self.graph.version:
            plan = self._plan = compile_graph(self.graph, self._setup.options)
        return plan

    def _open_models(self) -> None:
        """Makes the models that nodes name by `provider:name` available to runs of this engine.

        Raises:
            InvalidGraph: A node or the engine names a model or a role that does not exist.
        """
        version = self.graph.version
        setup, light = self._setup, self._setup.lightweight_model
        named = named_roles(self.graph) | ({light} if isinstance(light, str) else frozenset())
        if any(":" in name for name in named):
            setup = self._setup = replace(setup, model=_named_models(setup.model, named, setup.clock))
        if setup.model is not NO_MODEL:
            known = known_roles(setup.model)
            found = unknown_roles(self.graph, known)
            if isinstance(light, str) and light not in known:
                found.append(f"lightweight_model: {unknown_role(light, known)}")
            if found:
                raise InvalidGraph(found)
        self._version_with_models = version

    async def ainvoke(
        self,
        input: Input,
        *,
        state: S | Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
        run_id: str = "",
    ) -> GraphResult[S]:
        """Runs the graph once. A failed run returns a result too: see its report.

        Args:
            input: A question, messages, or `{"messages": […]}`.
            state: Initial values of a typed state: an instance of its class, or a mapping.
            context: Initial values of the state's context. With a store, they are JSON.
            config: Values that nodes find in their `config`. A store keeps those that are JSON.
            caller: Who is calling. Tools see it. A store keeps it without its token.
            run_id: The name of the run in the store. The default is a new one.

        Raises:
            InvalidGraph: The graph cannot run at all.
            InvalidInput: The input or the state has another form.
            Conflict: The store has a run of this id.
            asyncio.CancelledError: The run was cancelled.
        """
        messages = as_messages(input)
        if state is not None:
            context = {**self._initial_state(state), **(context or {})}
        if self._store is not None:
            return await self._run_stored(messages, context or {}, Call(config, caller), run_id)
        if run_id:
            raise InvalidInput(
                "run_id: this engine has no `store`, which would keep the run under this name."
            )
        if caller is None:
            return await self._made(messages, context, config).execute()
        scope = Scope(caller=caller, clock=self._setup.clock, retries=UNLIMITED_RETRIES)
        with calling_as(caller):
            return await self._made(messages, context, config, scope).execute()

    def _made(
        self,
        messages: Sequence[Message],
        context: Mapping[str, Any] | None,
        config: Mapping[str, Any] | None,
        scope: Scope | None = None,
    ) -> Run:
        version, plan = self.graph.version, self._plan
        if self._version_with_models != version:
            self._open_models()
        if plan is None or plan.version != version:
            plan = self.plan
        return Run(self._setup, plan, messages, context, config, scope)

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
        run = Run(self._setup, self.plan, messages, context, config, scope)
        run.model = model or run.model
        run.tools = tools or run.tools
        return run

    def astream(  # noqa: PLR0913 (the keywords of `ainvoke`)
        self,
        input: Input,
        mode: Mode | Sequence[Mode] = "updates",
        *,
        state: S | Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
        run_id: str = "",
    ) -> GraphStream[S]:
        """Returns a stream of one run, which starts with the first part. See `GraphStream`.

        It is the run of `ainvoke` with a listener. Leaving the stream before its end cancels the run.

        Args:
            mode: What the parts are, in any combination. `values`: the state after each node. `updates`: what
                each node has changed in it. `messages`: the text of models as it comes. `custom`: what nodes
                `emit`.
            input, state, context, config, caller, run_id: As in `ainvoke`.

        Raises:
            InvalidInput: There is no such mode. The stream raises what `ainvoke` raises.
        """
        modes = checked_modes(mode)

        def start(listener: StateListener) -> Coroutine[Any, Any, GraphResult[S]]:
            return self._run_heard(input, state, Call(config, caller, listener), context, run_id)

        return GraphStream(modes, start)

    async def astream_events(
        self,
        input: Input,
        *,
        state: S | Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
        run_id: str = "",
    ) -> AsyncIterator[Event]:
        """Yields the events of one run, in the form of the runtime's. The last event says how the run ended.

        It is the run of `ainvoke` with a listener. Closing the iterator cancels the run.

        Args:
            input, state, context, config, caller, run_id: As in `ainvoke`.

        Raises:
            InvalidGraph: The graph cannot run at all.
            InvalidInput: The input has another form.
        """
        listener = QueueListener()
        task = asyncio.create_task(
            self._run_heard(input, state, Call(config, caller, listener), context, run_id)
        )
        task.add_done_callback(lambda _: listener.close())
        try:
            async for event in listener:
                yield event
            await task
        finally:
            await stop(task)

    async def _run_heard(
        self,
        input: Input,
        state: S | Mapping[str, Any] | None,
        call: Call,
        context: Mapping[str, Any] | None,
        run_id: str,
    ) -> GraphResult[S]:
        """Runs the graph with a listener."""
        messages = as_messages(input)
        if state is not None:
            context = {**self._initial_state(state), **(context or {})}
        if self._store is not None:
            return await self._run_stored(messages, context or {}, call, run_id)
        assert call.listener is not None
        run_id = urandom(16).hex()
        events = GraphEvents(run_id, [call.listener])
        scope = Scope(
            run_id,
            caller=call.caller,
            events=events,
            clock=self._setup.clock,
            retries=UNLIMITED_RETRIES,
        )
        run = self._made(messages, context, call.config, scope)
        run.tells_state, run.is_local = call.listener.wants_state, True
        with calling_as(call.caller):
            return await run_with_events(run, events, scope)

    # -- runs in a store -----------------------------------------------------------------------------------

    async def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
    ) -> GraphResult[S]:
        """Continues a run that waits, or whose process has died. Finished nodes and calls are not repeated.

        A process that still executes the run stops at its next step.

        Args:
            answers: Values by the ids of `result.interrupts`. Some may stay open.
            config: Values in addition to those that the store has, and in place of them.
            caller: Who is calling now. None: the caller that the store has, without a token.

        Raises:
            RunNotFound, ApprovalNotFound: The store has no such run, or the run has no such question.
            Conflict: The run has ended.
            InvalidInput: An answer does not fit its question.
            NondeterministicGraph, Divergence: The graph was changed, or makes other calls than the record.
            LeaseLost: Somebody else has continued the run meanwhile.
        """
        return await self._resume(run_id, answers, Call(config, caller))

    def astream_resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        mode: Mode | Sequence[Mode] = "updates",
        *,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
    ) -> GraphStream[S]:
        """Returns a stream of what a run does from where it is continued: `resume` with a listener.

        Args:
            mode: As in `astream`.
            run_id, answers, config, caller: As in `resume`.

        Raises:
            InvalidInput: There is no such mode. The stream raises what `resume` raises.
        """
        modes = checked_modes(mode)

        def start(listener: StateListener) -> Coroutine[Any, Any, GraphResult[S]]:
            return self._resume(run_id, answers, Call(config, caller, listener))

        return GraphStream(modes, start)

    async def _resume(self, run_id: str, answers: Mapping[str, Any] | None, call: Call) -> GraphResult[S]:
        async with self._stored.opened() as runs:
            opened = await runs.resume(run_id, answers or {})
            return await execute_stored(self._new_run, opened, call)

    async def interrupts(self, run_id: str) -> list[Interrupt]:
        """Returns what a run waits for. Raises: RunNotFound."""
        async with self._stored.opened() as runs:
            return await runs.questions(run_id)

    async def history(self, run_id: str) -> list[Checkpoint]:
        """Returns the finished nodes of a run, in the order in which they ended.

        Raises:
            RunNotFound: The store has no such run.
        """
        async with self._stored.opened() as runs:
            return await runs.history(run_id)

    async def state_at(self, run_id: str, step: int) -> GraphSnapshot[S]:
        """Returns the state of a run after a step, for which nothing is called again.

        Args:
            step: A number of `history`, or 0 for the start. For another step, the newest node before it.

        Raises:
            RunNotFound: The store has no such run.
            InvalidInput: The run has no such step, the step is inside a function that had not ended, or the
                graph was changed.
        """
        schema = self.graph.schema
        async with self._stored.opened() as runs:
            found, target, _ = await self._look_at(runs, run_id, step)
        typed = None if schema is None else schema.read(found.context)
        number, path = (0, "") if target is None else (target.ordinal, (target.output or {})["node"])
        return GraphSnapshot(run_id, number, path, found.next, cast(S, typed), found.context, found.messages)

    async def fork(
        self,
        run_id: str,
        step: int,
        update: Mapping[str, Any] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
        new_id: str = "",
    ) -> GraphResult[S]:
        """Starts a new run that has the steps of another one up to a step, and goes on from there.

        Nothing before the step is executed again. The other run does not change.

        Args:
            step: A number of `history`, or 0 for the start.
            update: Is written to the state after the step: to fields of a typed state, else to the context.
                The edges after the step are then decided anew.
            config, caller: As in `resume`.
            new_id: The name of the new run. The default is a new one.

        Raises:
            RunNotFound: The store has no such run.
            InvalidInput: As `state_at`; or the update does not fit, or its step is not the end of a node.
        """
        if not isinstance(update, Mapping | None):
            raise InvalidInput(f"The update of a fork must be a mapping, not {_type_description(update)}.")
        async with self._stored.opened() as runs:
            request, edit = (await runs.row(run_id)).request, None
            if update is not None and not step:
                request = with_update(request, update, self.graph.schema)
            elif update is not None:
                found, target, _ = await self._look_at(runs, run_id, step, update)
                if target is None or target.ordinal != step:
                    raise InvalidInput(f"Step {step} is not the end of a node, which an update needs.")
                edit = found.edit
            new_id, request = new_id or ids.new_id("run_"), with_call(request, config, caller)
            opened = await runs.fork(run_id, step, new_id, request=request, edit=edit)
            return await execute_stored(self._new_run, opened, Call(config, caller))

    async def delete(self, run_id: str) -> bool:
        """Deletes a run from the store. Returns whether there was one."""
        async with self._stored.opened() as runs:
            return await runs.delete(run_id)

    @property
    def _stored(self) -> RunsStore:
        if self._store is None:
            raise InvalidInput("This engine has no `store`: PromptGraphEngine(graph, store='sqlite:PATH').")
        return self._store

    async def _run_stored(
        self, messages: Sequence[Message], context: Mapping[str, Any], call: Call, run_id: str
    ) -> GraphResult[S]:
        async with self._stored.opened() as runs:
            request = with_call(request_of(messages, context), call.config, call.caller)
            opened = await runs.begin(self.graph.name, run_id or ids.new_id("run_"), request)
            return await execute_stored(self._new_run, opened, call)

    def _new_run(self, request: JsonObject, config: Mapping[str, Any] | None, scope: Scope) -> Run:
        """Returns a run of what a stored run begins with."""
        messages, context = start_of(request, self.graph.schema)
        run = self._made(messages, context, config_of(request, config), scope)
        if run.settings.human_handler is None:
            run.settings = replace(run.settings, human_handler=human_handler(scope))
        return run

    async def _look_at(
        self, runs: GraphRuns, run_id: str, step: int, update: Mapping[str, Any] | None = None
    ) -> tuple[Replayed, JournalStep | None, JsonObject]:
        """Returns a run as it was at a step, and the newest node that had finished there."""
        schema = self.graph.schema
        request, target, journal = await runs.replay(run_id, step)
        if target is None:
            messages, context = start_of(request, schema)
            return Replayed(context, messages, self.graph.entry, None), None, request
        scope = Scope(run_id, events=EventStream(run_id), retries=UNLIMITED_RETRIES)
        scope.journal = journal
        options = CompileOptions(HookSet(()), self._setup.options.max_node_iterations)
        run = self._new_run(request, None, scope)
        run.settings = replace(run.settings, options=options)
        run.plan = compile_graph(self.graph, options)
        return await Replay(target, update, schema).run(run, journal), target, request
