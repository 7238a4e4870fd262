"""PromptGraphEngine: a graph, compiled once, and its runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from os import urandom
from typing import Any

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.provider import ModelPort
from astromesh.abc.tool import ToolPort
from astromesh.graph.graph import PromptGraph
from astromesh.graph.hooks import HookSet
from astromesh.graph.inputs import Input, as_messages
from astromesh.graph.keywords import check_seconds, check_whole
from astromesh.graph.nothing import NO_MODEL
from astromesh.graph.plan import Plan, compile_graph
from astromesh.graph.records import GraphResult
from astromesh.graph.run import PLENTY, Run, Setup
from astromesh.graph.step import Kit
from astromesh.node.calls import ASSISTANT
from astromesh.node.scope import Scope
from astromesh.node.toolbox import ToolLike, tool_port
from astromesh.telemetry.stream import DELTA, EventStream
from astromesh.types import CallerContext, Event, Message, calling_as

_CLOCK: Clock = SystemClock()


class PromptGraphEngine:
    """Runs one graph, as often and as often at once as wanted: runs share nothing but the compiled plan.

    Args:
        graph: changes of it count from the next run on; a run never changes it.
        model: a Provider, the model router, or anything that completes and streams; None for graphs without.
        tools: a ToolPort, or tools and Python functions.
        hooks: in the order in which they are asked; see `Hook`.
        lightweight_model: for nodes with the flag LIGHTWEIGHT: a model, or one of the agent's roles.
        max_iterations: node executions of one run, nested ones included.
        max_node_iterations: visits of one node; over that it is stuck.
        max_mutations_per_run: graph actions of the model that are applied.
        allow_self_modification: whether they are looked at at all.
        human_handler: what human nodes ask.
        clock: what pauses between retries go by.
        seed: for the jitter of these pauses.
        finalizer_seconds: that the finalizer of a stopped or cancelled run may take; then it is cut short.

    Raises:
        ConfigError: two tools have one name, or a tool is none.
    """

    def __init__(  # noqa: PLR0913 (the keywords of graph.md section 1)
        self,
        graph: PromptGraph,
        model: ModelPort | None = None,
        *,
        tools: ToolPort | Sequence[ToolLike] | None = None,
        hooks: Sequence[Any] = (),
        lightweight_model: ModelPort | str | None = None,
        max_iterations: int = 50,
        max_node_iterations: int = 25,
        max_mutations_per_run: int = 10,
        allow_self_modification: bool = False,
        human_handler: Any = None,
        clock: Clock | None = None,
        seed: int | None = None,
        finalizer_seconds: float = 10.0,
    ) -> None:
        check_whole("The engine", "max_iterations", max_iterations)
        check_whole("The engine", "max_node_iterations", max_node_iterations)
        check_whole("The engine", "max_mutations_per_run", max_mutations_per_run, least=0)
        check_seconds("The engine", "finalizer_seconds", finalizer_seconds)
        self.graph = graph
        self.hooks = tuple(hooks)
        self._setup = Setup(
            Kit(HookSet(self.hooks), max_node_iterations),
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
            InvalidGraph: the graph has no nodes, or its entry is none of them.
        """
        plan = self._plan
        if plan is None or plan.version != self.graph.version:
            plan = self._plan = compile_graph(self.graph, self._setup.kit)
        return plan

    async def ainvoke(
        self,
        input: Input,
        *,
        context: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        caller: CallerContext | None = None,
    ) -> GraphResult:
        """Runs the graph once. A failed run is a result too: see its report.

        Args:
            input: a question, messages, or `{"messages": […]}`.
            context: initial values of the state's context.
            config: values that nodes find in their `config`.
            caller: who is calling; tools see it.

        Raises:
            InvalidGraph: the graph cannot run at all.
            InvalidInput: the input is none of the three.
            asyncio.CancelledError: the run was cancelled.
        """
        messages = as_messages(input)
        if caller is None:
            return await Run(self._setup, self.plan, messages, context, config).execute()
        scope = Scope(caller=caller, clock=self._setup.clock, retries=PLENTY)
        with calling_as(caller):
            return await Run(self._setup, self.plan, messages, context, config, scope).execute()

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
        """A run inside another one, for the pipeline: `await engine.start(…).execute()`.

        Events, ledger, caller, deadline, clock, path and retry budget are those of the scope. After a cancel
        the run's `result` still holds what there was.

        Args:
            messages: system, history, question.
            scope: of the surrounding run.
            model: instead of the engine's.
            tools: instead of the engine's.
            context: initial values of the state's context.
            config: values that nodes find in their `config`.

        Raises:
            InvalidGraph: the graph cannot run at all.
        """
        run = Run(self._setup, self.plan, messages, context, config, scope)
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
        """The events of one run, as the runtime emits them; the last one says how it ended.

        It is the run of `ainvoke` with a listener. Closing the iterator cancels it.

        Args:
            input: a question, messages, or `{"messages": […]}`.
            context: initial values of the state's context.
            config: values that nodes find in their `config`.
            caller: who is calling; tools see it.

        Raises:
            InvalidGraph: the graph cannot run at all.
            InvalidInput: the input is none of the three.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        listener = _Queued(queue)
        events = EventStream(urandom(16).hex(), [listener])
        scope = Scope(events.run_id, caller=caller, events=events, clock=self._setup.clock, retries=PLENTY)
        run = Run(self._setup, self.plan, as_messages(input), context, config, scope)
        with calling_as(caller):
            task = asyncio.create_task(_announced(run, events, scope, listener))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


class _Queued:
    """A listener that hands events on, deltas as well; `said` is the newest text of the run's own voice."""

    wants_deltas = True

    def __init__(self, queue: asyncio.Queue[Event | None]) -> None:
        self._queue = queue
        self.said: list[str] = []

    def send(self, event: Event) -> None:
        if event.data.get("role") == ASSISTANT:
            if event.type == "model.started":
                self.said.clear()
            elif event.type == DELTA:
                self.said.append(event.data["content"])
        self._queue.put_nowait(event)


async def _announced(run: Run, events: EventStream, scope: Scope, listener: _Queued) -> None:
    """The run between its first event and its last."""
    events.emit("run.started")
    try:
        result = await run.execute()
    except asyncio.CancelledError:
        events.emit("run.cancelled", response=run.result.text if run.result else "")
        raise
    report = result.report
    if report.error and result.output is None:
        code = "node_failed" if report.stop_reason == "completed" else report.stop_reason
        events.emit("run.failed", code=code, detail=report.error, metadata=report.to_json())
    else:
        if result.text and result.text != "".join(
            listener.said
        ):  # what was held back, or made of other words
            events.emit(DELTA, step=scope.next_step(), role=ASSISTANT, content=result.text)
        events.emit("run.completed", response=result.text, metadata=report.to_json())
