"""`astromesh.Agent`: an agent in Python, which runs in the pipeline of agents from YAML."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import get_ident
from typing import Any, Generic, NamedTuple, Self, TypeVar, Unpack, overload
from uuid import uuid4

from msgspec import UNSET, UnsetType

from astromesh.access.scopes import Viewer, principal_of
from astromesh.agents import arguments
from astromesh.agents.arguments import (
    AgentTool,
    GuardrailLike,
    MemoryLike,
    PatternLike,
    Place,
    SharedStores,
    Source,
    place_of,
    source_of_file,
)
from astromesh.agents.manifest import AgentKeys, Live, ModelLike, model_block, plain
from astromesh.agents.parameters import (
    AllKeys,
    DecisionKeys,
    OnError,
    RunKeys,
    Word,
    check_agent,
    check_names,
    check_on_error,
    check_resume,
    check_run,
    read_attachments,
)
from astromesh.agents.results import (
    OutputT,
    Question,
    Result,
    RunStream,
    explained,
    failed_graph_result,
    failed_result,
    keeping_graph_results,
    question_of,
    released_messages,
    request_of_messages,
    result_of,
    waiting_result,
)
from astromesh.errors import (
    ApprovalRequired,
    AstromeshError,
    ConfigError,
    InvalidConfiguration,
    InvalidGraph,
    InvalidInput,
    InvalidOutput,
)
from astromesh.event_loops import OpenPerLoop
from astromesh.graph import prebuilt
from astromesh.graph.base import BaseNode
from astromesh.graph.engine import Input, as_messages
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import OutputSchema
from astromesh.graph.records import ExecutionReport, GraphResult
from astromesh.plugins import Plugins
from astromesh.runtime.agent import Declaration, LiveParts, SystemPrompt
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.runs import Decision
from astromesh.telemetry.events import EventSink
from astromesh.text import did_you_mean
from astromesh.tools.base import DepsT, ToolPort
from astromesh.types import CallerContext, Event

#: the output of an agent that a file declares
FileOutputT = TypeVar("FileOutputT")


class _StandIns(NamedTuple):
    """Agents that stand in for others in a context, by identity: see `Agent.override`.

    Args:
        agents: The overridden ones.
        callers: Those that have an overridden agent as a tool. They are added when they run.
    """

    agents: Mapping[int, Any]
    callers: dict[int, Any]


_STAND_INS: ContextVar[_StandIns | None] = ContextVar("astromesh_stand_ins", default=None)


class Agent(Generic[DepsT, OutputT]):
    """An agent.

    Its runs take the way of runs over HTTP: pipeline, guardrails, memory, budgets and traces are the same
    objects. `AgentRuntime(agents=[agent])` and `astromesh serve module:agent` serve it.

    It works without being closed. `async with agent` closes its connections at a moment of your choice;
    `with agent` keeps them open between calls of `run_sync`.

    Args:
        model: `provider:name`, e.g. `openai:gpt-4o-mini`; a Provider; a block as in YAML; or an async
            function that takes a CompletionRequest and returns a text or a CompletionResult.
        name: Unique among the agents of a server.
        system: The system prompt: a Jinja2 template, or a function of the run's `ToolContext`, sync or async,
            whose text is used as it is.
        tools: Python functions with type hints, `@tool`s, `Tool` objects, `agent.as_tool()`, YAML blocks, or
            one ToolPort.
        servers: MCP servers by name, each a block as in mcp.yaml, whose tools the agent gets.
        pattern: The name of a pattern of YAML, of a prebuilt graph (`deliberate`, `debate`,
            `reasoning_controller`), a graph, or `spec.orchestration` as a mapping. None: `react`.
        node_pool: Nodes from which the model builds its own path, instead of a pattern.
        output_type: The type of `result.output`: a pydantic model, a dataclass, a TypedDict, or a JSON
            Schema.
        memory: Where conversations are stored: `memory`, `sqlite:PATH`, `postgres://…`, `redis://…`, or a
            block as in YAML.
        guardrails: Rules for queries and answers, or `{"input": rules, "output": rules}`. A rule is its type,
            a mapping as in YAML, a `Rule`, or a function of the text: it returns the text that replaces it,
            False to block it, or None.
        budgets: Limits of a run, e.g. `{"cost_usd": 0.10, "tokens": 20_000}`, or a block as in YAML.
        on_error: Whether a failed run raises its error, or returns a result that has it.
        deps: What tools find as `ToolContext.deps` in runs that bring none of their own.
        deps_type: The type of `deps`, for type checkers alone.
        plugins: Where providers, stores and rules are looked up. None: everything installed.
        data_dir: The folder of what runs store beside their memory. None: `.astromesh`.
        store: Where runs are stored, so that they can wait for a person and outlive their process: `memory`
            (as long as the agent), `sqlite:PATH`, or `postgres://…`. None: only runs of agents with an
            approval or a human node are stored, in `data_dir`. A server uses its own.
        keys: Every other key of an agent's YAML.

    Raises:
        UnknownPlugin, MissingExtra: Something that the agent names is not installed.
        ConfigError: An argument is wrong. InvalidConfiguration lists all faults.
        InvalidGraph: Its graph cannot run.
    """

    @overload
    def __init__(
        self: Agent[DepsT, str],
        model: ModelLike,
        *,
        output_type: None = ...,
        deps: DepsT | None = ...,
        deps_type: type[DepsT] | None = ...,
        **keys: Unpack[AllKeys],
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[DepsT, Any],
        model: ModelLike,
        *,
        output_type: Mapping[str, Any],
        deps: DepsT | None = ...,
        deps_type: type[DepsT] | None = ...,
        **keys: Unpack[AllKeys],
    ) -> None: ...

    @overload
    def __init__(
        self,
        model: ModelLike,
        *,
        output_type: type[OutputT],
        deps: DepsT | None = ...,
        deps_type: type[DepsT] | None = ...,
        **keys: Unpack[AllKeys],
    ) -> None: ...

    def __init__(  # noqa: PLR0913 (the keys that most agents have)
        self,
        model: ModelLike,
        *,
        name: str = "agent",
        system: str | SystemPrompt = "",
        tools: Iterable[Any] | ToolPort | None = None,
        servers: Mapping[str, Mapping[str, Any]] | None = None,
        pattern: PatternLike = None,
        node_pool: Sequence[BaseNode] | None = None,
        output_type: Any = None,
        memory: MemoryLike = None,
        guardrails: Sequence[GuardrailLike] | Mapping[str, Any] = (),
        budgets: Mapping[str, Any] | None = None,
        on_error: OnError = "raise",
        deps: DepsT | None = None,
        deps_type: type[DepsT] | None = None,
        plugins: Plugins | None = None,
        data_dir: str | Path | None = None,
        store: str | None = None,
        **keys: Unpack[AgentKeys],
    ) -> None:
        check_names(keys, AllKeys.__annotations__, "Agent")
        named = {
            "system": system, "tools": tools, "servers": servers, "pattern": pattern, "node_pool": node_pool,
            "memory": memory, "guardrails": guardrails, "budgets": budgets, "plugins": plugins,
            "data_dir": data_dir, "store": store,
        }  # fmt: skip
        check_agent(name, {**named, **keys})
        plugins = plugins or Plugins()
        blocks = plain(servers or {})
        tool_list = arguments.listed(tools)
        prompt = system if isinstance(system, str) else Live("", system, "system", _about_function(system))
        spec = {
            "model": arguments.models(model, keys, plugins),
            "prompts": {"system": prompt, "variables": plain(keys.get("variables"))},
            "orchestration": arguments.orchestration(pattern, node_pool, keys),
            "tools": arguments.tools(tool_list, blocks),
            "memory": arguments.memory(memory, SharedStores(plugins).live),
            "guardrails": arguments.guardrails(guardrails, plugins),
            "budgets": arguments.budgets(budgets),
            "output_schema": arguments.output_schema(output_type),
        }
        live = LiveParts(None if isinstance(system, str) else system, _typed(output_type), deps)
        manifest = arguments.manifest_of(name, spec, keys)
        callees = tuple(dict.fromkeys(one.agent for one in tool_list if isinstance(one, AgentTool)))
        source = Source(name, manifest, live, servers=blocks, called=callees)
        self._set_up(source, plugins, on_error, output_type, data_dir, store)

    #: keeps the event loop of its thread between calls of `run_sync`, inside `with agent`
    _runner: tuple[int, asyncio.Runner] | None = None
    #: replaces the `deps` of every run, inside `override`
    _deps: Any = UNSET

    def _set_up(
        self,
        source: Source,
        plugins: Plugins,
        on_error: OnError,
        output_type: Any,
        data_dir: str | Path | None,
        store: str | None,
    ) -> None:
        """Checks what the agent is made of; opens nothing."""
        check_on_error(on_error)
        self._source, self._plugins, self._on_error = source, plugins, on_error
        self._place = place_of(store, data_dir, self)
        self._schema = None if output_type is None or output_type is str else OutputSchema(output_type)
        source.require_sound_graphs()
        make = partial(_runtime, source, plugins, self._place)
        configuration = make().load_configuration()
        if faults := (*configuration.faults, *configuration.broken.get(source.name, ())):
            raise InvalidConfiguration(faults)
        self._manifest = configuration.agents[source.name]
        self._runtimes = OpenPerLoop(make, self)

    @property
    def name(self) -> str:
        """The name of the agent."""
        return self._source.name

    @property
    def declaration(self) -> Declaration:
        """What `AgentRuntime(agents=[agent])` opens."""
        return self._current()._source.declaration  # noqa: SLF001

    @property
    def called(self) -> Sequence[Agent[Any, Any]]:
        """The agents that are tools of this one."""
        return self._source.called

    @property
    def graph(self) -> PromptGraph | None:
        """The graph that the agent runs, if it is a prebuilt one or was passed; else None."""
        block = self._source.manifest.get("spec", {}).get("orchestration", {})
        value = block.get("graph")
        if isinstance(value, Live):
            return value.value  # type: ignore[no-any-return]
        return prebuilt.react() if block.get("pattern", "react") == "react" else None

    # -- YAML ------------------------------------------------------------------------------------------------

    @overload
    @classmethod
    def from_yaml(
        cls,
        path: str | Path,
        *,
        output_type: type[FileOutputT],
        deps: Any = ...,
        on_error: OnError = ...,
        plugins: Plugins | None = ...,
        data_dir: str | Path | None = ...,
        store: str | None = ...,
    ) -> Agent[Any, FileOutputT]: ...

    @overload
    @classmethod
    def from_yaml(
        cls,
        path: str | Path,
        *,
        output_type: None = ...,
        deps: Any = ...,
        on_error: OnError = ...,
        plugins: Plugins | None = ...,
        data_dir: str | Path | None = ...,
        store: str | None = ...,
    ) -> Agent[Any, Any]: ...

    @classmethod
    def from_yaml(  # noqa: PLR0913 (as the constructor)
        cls,
        path: str | Path,
        *,
        output_type: type[Any] | None = None,
        deps: Any = None,
        on_error: OnError = "raise",
        plugins: Plugins | None = None,
        data_dir: str | Path | None = None,
        store: str | None = None,
    ) -> Agent[Any, Any]:
        """Returns the agent of a YAML file.

        If the file is in the folder `agents` of a configuration, the agent uses its other files, too:
        providers, servers, pipelines, graphs, and the agents that it may call.

        Args:
            path: The file.
            output_type: The type of `result.output` of an agent with `output_schema`. None: the JSON value.
            deps, on_error, plugins, data_dir, store: As in `Agent`.

        Raises:
            InvalidConfiguration: The file has faults; all are listed, with line and column.
        """
        live = LiveParts(output_type=_typed(output_type), deps=deps)
        agent: Agent[Any, Any] = cls.__new__(cls)
        source = source_of_file(Path(path), live)
        schema = source.manifest.get("spec", {}).get("output_schema") if output_type is None else output_type
        agent._set_up(source, plugins or Plugins(), on_error, schema, data_dir, store)
        return agent

    def to_yaml(self, *, strict: bool = False) -> str:
        """Returns the agent as the text of a YAML file.

        Functions that can be imported are written as `module:name`. What cannot be written, such as a lambda,
        stands as a comment at its key. The blocks of `servers` belong into mcp.yaml, and graphs into files of
        their own.

        Raises:
            ConfigError: `strict`, and something cannot be written. The message lists it.
        """
        return self._source.yaml(strict=strict)

    # -- runs ------------------------------------------------------------------------------------------------

    async def run(self, query: str, *, deps: DepsT | None = None, **keys: Unpack[RunKeys]) -> Result[OutputT]:
        """Executes one run.

        Args:
            query: The message of the user.
            deps: What tools find as `ToolContext.deps`.
            keys: `session_id`, `history`, `attachments`, `context`, `caller`, `metadata`, `on_error`.

        Raises:
            AstromeshError: The run failed, and `on_error` is "raise". The error's cause is that of the
                provider.
            ConfigError: The agent cannot be opened, e.g. an API key is not set.
            InvalidInput: An argument is wrong.
        """
        return await self._run(query, deps, keys, ())

    def run_sync(self, query: str, *, deps: DepsT | None = None, **keys: Unpack[RunKeys]) -> Result[OutputT]:
        """Executes one run and waits for it: `run` for programs without an event loop.

        Raises:
            RuntimeError: An event loop runs in this thread.
        """
        return self._wait_for("run", self.run(query, deps=deps, **keys))

    def _wait_for(self, name: str, work: Coroutine[Any, Any, Result[OutputT]]) -> Result[OutputT]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            own = self._runner
            return own[1].run(work) if own is not None and own[0] == get_ident() else asyncio.run(work)
        work.close()
        raise RuntimeError(f"{name}_sync cannot wait inside a running event loop. Await `agent.{name}(…)`.")

    def stream(self, query: str, *, deps: DepsT | None = None, **keys: Unpack[RunKeys]) -> RunStream[OutputT]:
        """Returns a stream of one run at once; the run begins with the first read, or with `async with`.

        Leaving the stream before its end cancels the run.
        """
        agent = self._current()
        return RunStream(lambda sinks: agent._run(query, deps, keys, sinks))  # noqa: SLF001

    # -- runs that wait for a person -------------------------------------------------------------------------

    async def resume(
        self,
        run_id: str,
        decision: Word = "approve",
        *,
        deps: DepsT | None = None,
        **keys: Unpack[DecisionKeys],
    ) -> Result[OutputT]:
        """Decides for a run that waits for a person, and executes it to its end or its next question.

        Any process with the store of the run may call it, also after a restart. What the run has done is not
        repeated.

        Args:
            run_id: Of `result.run_id`, or of a question of `approvals()`.
            decision: For a tool call `approve` or `deny`, for a question of a graph `answer`, too.
            deps: As in `run`.
            keys: `arguments`, `answer`, `question`, `caller`, `on_error`.

        Raises:
            RunNotFound, NotWaiting, InvalidInput: There is no such run, it does not wait, or for something
                else.
            AstromeshError: As `run`.
        """
        agent, runs = self._current(), list[Run]()
        check_names(keys, DecisionKeys.__annotations__, "resume")
        check_resume(run_id, decision, keys)
        changed, on_error = keys.get("arguments"), keys.get("on_error")
        runtime = await agent._runtimes.current()  # noqa: SLF001
        try:
            request, done = await runtime.runner.resume(
                run_id,
                Decision(
                    decision,
                    None if changed is None else dict(changed),
                    keys.get("answer"),
                    keys.get("question"),
                ),
                caller=keys.get("caller"),
                deps=agent._deps if agent._deps is not UNSET else deps,  # noqa: SLF001
                watch=keeping_graph_results(runs),
            )
            result = result_of(done, runs[-1] if runs else None, request, agent._output(done))  # noqa: SLF001
        except AstromeshError as error:
            return self._failed(explained(error), runs, None, on_error)
        return self._checked(result, on_error)

    def resume_sync(
        self,
        run_id: str,
        decision: Word = "approve",
        *,
        deps: DepsT | None = None,
        **keys: Unpack[DecisionKeys],
    ) -> Result[OutputT]:
        """As `resume`, for programs without an event loop."""
        return self._wait_for("resume", self.resume(run_id, decision, deps=deps, **keys))

    async def approvals(self, *, caller: CallerContext | None = None) -> Sequence[Question]:
        """Returns what the runs of a caller wait for, the oldest question first."""
        runtime = await self._current()._runtimes.current()  # noqa: SLF001
        return [question_of(one) for one in await runtime.runs.approvals(Viewer(*principal_of(caller)))]

    # -- conversations ---------------------------------------------------------------------------------------

    def session(self, session_id: str) -> Session[DepsT, OutputT]:
        """Returns a conversation: its runs find the turns before.

        Raises:
            InvalidInput: The id is empty.
        """
        if not session_id:
            raise InvalidInput("A session needs an id. Without one, call `agent.run`, which stores nothing.")
        return Session(self, session_id)

    def as_tool(self, name: str = "", description: str = "") -> AgentTool:
        """Returns the agent as a tool of another one: a call is a run in the trace and budget of that one.

        Args:
            name, description: What the model sees. Empty: those of this agent.
        """
        about = description or self._manifest.spec.identity.description
        return AgentTool(self, name or self.name, about)

    # -- document 000 ----------------------------------------------------------------------------------------

    async def ainvoke(
        self, input: Input, *, caller: CallerContext | None = None, context: Mapping[str, Any] | None = None
    ) -> GraphResult:
        """Executes one run and returns the result of its graph (document 000).

        Output and messages have the answer as the output rules have released it. The context and the data of
        hooks are those of the graph.

        Args:
            input: A text, a list of messages, or `{"messages": […]}`.
            caller: The caller as tools see it. MCP servers receive its token.
            context: Values in the context of the graph's nodes.

        Raises:
            InvalidGraph: The graph cannot run. Every other failure is in the report of the result.
        """
        runs: list[Run] = []
        try:
            check_run({"caller": caller, "context": context})
            request = request_of_messages(as_messages(input), context or {})
            result = await self._current()._execute(request, caller, (), runs.append)  # noqa: SLF001
        except InvalidGraph:
            raise
        except AstromeshError as error:
            return failed_graph_result(error, runs)
        made = runs[0].scope.graph_result if runs else None
        if made is None:
            made = GraphResult(list(result.messages), None, {}, ExecutionReport([]))
        if made.text and made.text != result.text:
            made.messages = released_messages(made.messages, made.text, result.text)
        if made.output is None or made.text != result.text or self._schema is not None:
            made.output = result._output if made.report.stop_reason == "completed" else made.output  # noqa: SLF001
        return made

    async def astream_events(
        self, input: Input, *, caller: CallerContext | None = None, context: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Event]:
        """Executes one run and yields its events as they happen. The last one says how it ended."""
        request = request_of_messages(as_messages(input), context or {})
        stream = RunStream(lambda sinks: self._current()._returned(request, caller, sinks))  # noqa: SLF001
        async for event in stream:
            yield event

    # -- life ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the connections of this event loop. A later run opens them again."""
        await self._runtimes.close()

    async def __aenter__(self) -> Self:
        await self._runtimes.current()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    def __enter__(self) -> Self:
        self._runner = get_ident(), asyncio.Runner()
        return self

    def __exit__(self, *exc: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner[1].close()  # the end of its loop closes the connections

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    # -- tests -----------------------------------------------------------------------------------------------

    @contextmanager
    def override(
        self,
        *,
        model: ModelLike | UnsetType = UNSET,
        tools: Iterable[Any] | UnsetType = UNSET,
        deps: Any = UNSET,
        wrap_model: Callable[[Any], Any] | UnsetType = UNSET,
    ) -> Iterator[None]:
        """Replaces parts of the agent in this context, e.g. the model in a test.

        It replaces them also where the agent is a tool of another one. Agents that are tools of this one keep
        their parts: override them, too.

        Args:
            model: Replaces every model of the agent.
            tools: Replace its tools.
            deps: Replace those of every run.
            wrap_model: Returns a provider in place of each of the agent's, e.g. one that records its calls.
        """
        agent = copy.copy(self._current())
        agent._replace(model, tools, deps, wrap_model)
        around = _STAND_INS.get()
        token = _STAND_INS.set(_StandIns({**(around.agents if around else {}), id(self): agent}, {}))
        try:
            yield
        finally:
            _STAND_INS.reset(token)

    def _replace(self, model: Any, tools: Any, deps: Any, wrap_model: Any) -> None:
        """Replaces parts, and opens everything anew."""
        source = self._source
        if model is not UNSET:
            source = source.with_model(plain(model_block(model, self._plugins)))
        if tools is not UNSET:
            tool_list = list(tools)
            agent_tools = [one for one in tool_list if isinstance(one, AgentTool)]
            source = source.with_tools(arguments.tools(tool_list, {}), agent_tools)
        if deps is not UNSET:
            self._deps = deps
        if wrap_model is not UNSET:
            source = replace(source, live=replace(source.live, wrap_model=wrap_model))
        self._source, self._runner = source, None
        self._runtimes = OpenPerLoop(partial(_runtime, source, self._plugins, self._place), self)

    def _current(self) -> Agent[DepsT, OutputT]:
        """Returns the agent that stands in for this one in this context, or this one."""
        stand_ins = _STAND_INS.get()
        if stand_ins is None:
            return self
        agents, callers = stand_ins
        agent: Agent[DepsT, OutputT] = agents.get(id(self), self)
        if not agent._calls_any(agents):
            return agent
        if id(self) not in callers:
            made = callers[id(self)] = copy.copy(agent)
            made._replace(UNSET, UNSET, UNSET, UNSET)
        caller: Agent[DepsT, OutputT] = callers[id(self)]
        return caller

    def _calls_any(self, agents: Mapping[int, Any]) -> bool:
        """Whether one of some agents is a tool of this one, or of one of its tools."""
        return any(id(one) in agents or one._calls_any(agents) for one in self.called)  # noqa: SLF001

    # -- one run ---------------------------------------------------------------------------------------------

    async def _run(
        self, query: str, deps: DepsT | None, keys: RunKeys, sinks: Iterable[EventSink]
    ) -> Result[OutputT]:
        check_names(keys, RunKeys.__annotations__, "A run")
        check_run(keys)
        check_on_error(keys.get("on_error"))
        if not isinstance(query, str):
            raise InvalidInput(f"The query of a run must be a text, not {query!r}.")
        agent = self._current()
        request = await agent._request(query, deps, keys)  # noqa: SLF001
        runs: list[Run] = []
        try:
            result = await agent._execute(request, keys.get("caller"), sinks, runs.append)  # noqa: SLF001
        except AstromeshError as error:
            return self._failed(error, runs, request, keys.get("on_error"))
        return self._checked(result, keys.get("on_error"))

    def _checked(self, result: Result[OutputT], on_error: OnError | None) -> Result[OutputT]:
        if result.error is not None and (on_error or self._on_error) == "raise":
            raise result.error
        return result

    def _failed(
        self, error: AstromeshError, runs: Sequence[Run], request: RunRequest | None, on_error: OnError | None
    ) -> Result[OutputT]:
        """Returns the result of a run without an answer, or raises its error."""
        if isinstance(error, ApprovalRequired) and error.waiting_for is not None:
            return waiting_result(
                error, request.session_id if request is not None and request.persist else ""
            )
        if (on_error or self._on_error) == "raise":
            raise error
        return failed_result(error, runs[-1] if runs and request is not None else None, request)

    async def _request(self, query: str, deps: DepsT | None, keys: RunKeys) -> RunRequest:
        session = keys.get("session_id")
        if session and self._remembers_nothing:
            raise InvalidInput(
                f"The agent {self.name!r} has no memory for the session {session!r}. Pass memory='memory' or "
                "memory='sqlite:PATH' to Agent, or history=result.messages to each run."
            )
        history = keys.get("history")
        if history is None and not session:
            history = ()
        return RunRequest(
            query,
            session or f"run-{uuid4().hex}",
            keys.get("context") or {},
            keys.get("metadata") or {},
            attachments=await read_attachments(keys.get("attachments", ())),
            history=None if history is None else as_messages(history) if history else (),
            persist=bool(session),
            deps=self._deps if self._deps is not UNSET else deps,
        )

    @property
    def _remembers_nothing(self) -> bool:
        spec = self._manifest.spec
        memory = spec.memory
        stores = (memory.conversational, memory.semantic, memory.episodic)
        return all(one is None for one in stores) and not spec.budgets.per_session.caps()

    async def _execute(
        self,
        request: RunRequest,
        caller: CallerContext | None,
        sinks: Iterable[EventSink],
        watch: Callable[[Run], None],
    ) -> Result[OutputT]:
        """Executes a run and returns its result. Raises: AstromeshError: the run failed."""
        runtime = await self._runtimes.current()
        runs: list[Run] = []

        keep = keeping_graph_results(runs)

        def watched(run: Run) -> None:
            keep(run)
            watch(run)

        if faults := runtime.broken.get(self.name):
            await self._runtimes.close()  # the next run may find what is missing now
            raise faults[0]
        try:
            answer = await runtime.runner.start(
                runtime.agent(self.name), request, caller=caller, sinks=sinks, watch=watched
            )
        except AstromeshError as error:
            raise explained(error) from error.__cause__
        return result_of(answer, runs[-1] if runs else None, request, self._output(answer))

    async def _returned(
        self, request: RunRequest, caller: CallerContext | None, sinks: Iterable[EventSink]
    ) -> Result[OutputT]:
        try:
            return await self._execute(request, caller, sinks, lambda _: None)
        except AstromeshError as error:
            return failed_result(error, None, request)

    def _output(self, answer: RunAnswer) -> Any:
        if self._schema is None or answer.metadata.get("stop_reason", "completed") != "completed":
            return answer.response
        try:
            return self._schema.parse(answer.response)
        except ValueError as error:  # an output rule has changed it
            raise InvalidOutput(
                f"What the output rules leave of the answer does not fit output_type: {error}"
            ) from error


class Session(Generic[DepsT, OutputT]):
    """A conversation with an agent: `agent.session(id)`."""

    def __init__(self, agent: Agent[DepsT, OutputT], session_id: str) -> None:
        self._agent, self.id = agent, session_id

    async def run(self, query: str, *, deps: DepsT | None = None, **keys: Unpack[RunKeys]) -> Result[OutputT]:
        """As `Agent.run`."""
        return await self._agent.run(query, deps=deps, **self._keys(keys))

    def run_sync(self, query: str, *, deps: DepsT | None = None, **keys: Unpack[RunKeys]) -> Result[OutputT]:
        """As `Agent.run_sync`."""
        return self._agent.run_sync(query, deps=deps, **self._keys(keys))

    def stream(self, query: str, *, deps: DepsT | None = None, **keys: Unpack[RunKeys]) -> RunStream[OutputT]:
        """As `Agent.stream`."""
        return self._agent.stream(query, deps=deps, **self._keys(keys))

    def _keys(self, keys: RunKeys) -> RunKeys:
        if keys.get("session_id", self.id) != self.id:
            raise InvalidInput(f"This is the session {self.id!r}. For another one, call `agent.session(id)`.")
        return {**keys, "session_id": self.id}


#: the name of document 000
build_agent = Agent


# -- details -------------------------------------------------------------------------------------------------


def _runtime(source: Source, plugins: Plugins, place: Place) -> AgentRuntime:
    return AgentRuntime(
        data_dir=place.data_dir,
        plugins=plugins,
        agents=[source],
        storage_url=place.storage_url,
        keeps_runs=False,
    )


def _typed(output_type: Any) -> Any:
    """Returns a type that the pipeline checks answers with; a JSON Schema stands in the manifest."""
    return None if output_type is str or isinstance(output_type, Mapping) else output_type


def _about_function(function: Any) -> str:
    return f"the function {getattr(function, '__qualname__', type(function).__name__)}"


# -- agents by the names under which Python imports them: `astromesh serve module:agent` ---------------------


def load_agents(references: Iterable[str]) -> list[Agent]:
    """Imports agents; modules are also searched in the working directory.

    Args:
        references: `module:name` of agents, or of lists of agents.

    Raises:
        ConfigError: The module or the name does not exist, or is not an agent.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return [agent for reference in references for agent in _load(reference)]


def _load(reference: str) -> list[Agent]:
    module_name, colon, name = reference.partition(":")
    if not colon or not name:
        raise ConfigError(f"{reference!r} does not name an agent. Write MODULE:NAME, e.g. app:agent.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports one that does not
        raise ConfigError(
            f"There is no module {error.name!r}. Start the command in the folder of {error.name}.py, or "
            "install the package that contains it."
        ) from error
    found = getattr(module, name, None)
    agents = found if isinstance(found, list | tuple) else [found]
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        known = [key for key, value in vars(module).items() if isinstance(value, Agent)]
        hint = did_you_mean(name, known) or (f"Its agents: {', '.join(known)}." if known else "")
        raise ConfigError(f"{reference!r} is not an agent. {hint}".strip())
    return list(agents)
