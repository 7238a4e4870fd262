"""Bootstrap: opens the agents and RAG pipelines of a configuration folder (document 001, last diagram)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from astromesh.config.agent import AgentManifest, Conversational, Episodic, RoleModel, Semantic, ToolBlock
from astromesh.config.folder import Configuration
from astromesh.config.providers import ModelBlock
from astromesh.config.rag import RAGManifest
from astromesh.config.skills import READ_SKILL
from astromesh.config.validation import suggest_name
from astromesh.core.circuit_breaker import BreakerRules
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.core.memory import ConversationalMemory, EpisodicMemory, MemoryManager, SemanticMemory
from astromesh.core.model_router import Health, ModelRouter
from astromesh.core.prompt_engine import PromptEngine, compile_transform
from astromesh.core.tools import ToolRegistry, declare_source, declare_tool, read_skill_tool, skills_prompt
from astromesh.durable.base import DurableBackend, RunStore
from astromesh.durable.budgets import BudgetStore
from astromesh.durable.leases import RetentionPolicy
from astromesh.durable.tasks import TaskStore
from astromesh.errors import (
    AstromeshError,
    ConfigError,
    InvalidConfiguration,
    InvalidManifest,
    MissingKey,
    PipelineNotFound,
    StoreError,
    StoreUnavailable,
    Unavailable,
)
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import AnswerSchema
from astromesh.knowledge.base import Embedder, KnowledgePipeline
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.orchestration.base import EndsAtDeadline
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.runtime.agent import NO_LIVE_PARTS, Agent, LiveParts, limits_of
from astromesh.runtime.config_loader import (
    detect_circular_refs,
    load_configuration,
    load_snapshot,
    snapshot_of,
)
from astromesh.runtime.knowledge import (
    open_embedder,
    open_embedder_block,
    open_rag_pipeline,
    refresh_pipeline,
)
from astromesh.storage.sqlite import default_file
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.tools.base import DeclaredSource, DeclaredTool, RunAgent, Tool, ToolSource
from astromesh.tools.results import LongResults
from astromesh.types import JsonObject

log = get_logger("astromesh.bootstrap")


#: group and name of the plugin for the servers of mcp.yaml
_MCP = ("tool_sources", "mcp")


#: seconds between two attempts to open what needs an unavailable store: the first pause, the longest
RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 30.0


#: factor from one such pause to the next
_BACKOFF = 1.5


#: checks whether a store or service answers; returns what it could not check
Ping = Callable[[], Awaitable[str | None]]


Eraser = Callable[[str, str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """What another configuration has changed, by name.

    Args:
        agents: Agents that are new or were opened again.
        removed: Agents that are not there any more.
        pipelines: RAG pipelines that are new or were opened again.
        rejected: Why changed agents could not be opened; their last version stays.
    """

    agents: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    rejected: tuple[InvalidManifest, ...] = ()


@dataclass(slots=True)
class RuntimeState:
    """The open resources of a runtime.

    Args:
        env: Where `${VAR}` and the names of secrets are looked up.
        broken: Agents that cannot run, with the faults of the manifest or the error of what did not open.
        recovering: Those of them that work as soon as their stores answer.
        unopened: RAG pipelines that could not be opened.
        checks: The checks of stores and providers, by `store:…` or `provider:…`. If one could not be opened,
            its check raises the reason.
        erasers: Delete everything of one principal (tenant, id) that is not in a memory; return the number.
        live: What agents that are declared in Python have beside their manifest, by name.
        deps: The dependencies of plugins that are opened later.
        reopen: Opens an agent as a snapshot describes it, for runs that began under it.
        apply: Opens what another configuration has changed (`runtime/reload.py`).
        rejected: The faults of changed files whose last good version stays in use.
        outdated: Changed files that only a restart applies, as warnings.
        texts: The last good text of files that have faults now.
        factory: `module:function` that makes the runtime again, of the folders of configuration and data, in
            another process. Empty: it has parts in Python, which no other process can make.
    """

    configuration: Configuration
    resources: Resources = field(default_factory=Resources)
    plugins: Plugins = field(default_factory=Plugins)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    agents: dict[str, Agent] = field(default_factory=dict)
    broken: dict[str, tuple[InvalidManifest, ...]] = field(default_factory=dict)
    recovering: set[str] = field(default_factory=set)
    knowledge: dict[str, KnowledgePipeline] = field(default_factory=dict)
    unopened: dict[str, AstromeshError] = field(default_factory=dict)
    checks: dict[str, Ping] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    erasers: list[Eraser] = field(default_factory=list)
    live: Mapping[str, LiveParts] = field(default_factory=dict)
    deps: Deps = field(default_factory=Deps)
    reopen: Callable[[str, JsonObject], Awaitable[Agent]] | None = None
    apply: Callable[[Configuration, bool], Awaitable[AppliedChanges]] | None = None
    rejected: tuple[InvalidManifest, ...] = ()
    outdated: tuple[InvalidManifest, ...] = ()
    texts: Mapping[Path, str] = field(default_factory=dict)
    factory: str = ""


#: the durable backend that has no server
IN_PROCESS = "in_process"


async def open_durable_backend(state: RuntimeState, deps: Deps | None = None) -> DurableBackend:
    """Opens what dispatches segments; the claim of a segment decides who executes it."""
    durable = state.configuration.runtime.spec.durable
    opened: DurableBackend = await state.plugins.open(
        "durable_backends", durable.backend, durable.options or {}, deps or state.deps
    )
    return opened


async def open_runtime(
    state: RuntimeState,
    data_dir: Path,
    clock: Clock,
    run_agent: RunAgent,
    graphs: Mapping[str, PromptGraph],
) -> None:
    """Opens everything that a configuration names. If that fails, it closes what it has opened.

    Args:
        state: The configuration, into which the rest is opened.

    Raises:
        InvalidConfiguration: faults that nothing can run with, all at once.
        CircularAgentReference: agents that call each other in a circle.
    """
    state.configuration.require_sound()
    detect_circular_refs(state.configuration.edges)
    state.broken = _public_faults(state.configuration)
    try:
        await _Bootstrap(state, data_dir, clock, run_agent, graphs).run()
    except BaseException:
        await state.resources.close()
        raise


class _Bootstrap:
    """Opens a configuration once; retries what needs a store that is unavailable."""

    def __init__(
        self,
        opened: RuntimeState,
        data_dir: Path,
        clock: Clock,
        run_agent: RunAgent | None,
        graphs: Mapping[str, PromptGraph],
    ) -> None:
        self._opened, self._plugins = opened, opened.plugins
        self._clock = clock
        configuration = opened.configuration
        breaker = configuration.providers.spec.routing.circuit_breaker
        rules = BreakerRules(breaker.failure_threshold, breaker.recovery_timeout)
        self._health = opened.health = Health(rules, clock)
        self._prompts = PromptEngine()
        self._checked_options: dict[str, list[Any]] = {}
        #: the checks of stores of agents that could not be opened
        self._failing: set[str] = set()
        #: the logged reason why each agent or pipeline could not be opened
        self._reported_errors: dict[str, str] = {}
        self._servers: dict[str, Any] = {}
        #: opened stores by agent and group: an agent that is opened again finds its conversations
        self._stores: dict[tuple[str, str], list[tuple[Any, Embedder | None, Any]]] = {}
        self._graphs, self._healing = graphs, False
        runtime = configuration.runtime.spec
        self._deps = Deps(
            clock=clock,
            data_dir=data_dir,
            config_dir=configuration.folder,
            storage_url=runtime.storage.url.get_secret_value(),
            listen_url=runtime.storage.listen_url.get_secret_value(),
            sqlite_synchronous=runtime.storage.sqlite.synchronous,
            redis_url=runtime.redis.url.get_secret_value(),
            resources=opened.resources,
            knowledge=opened.knowledge,
            unavailable_knowledge=opened.unopened,
            servers=self._servers,
            **_names_of(configuration, graphs),
            run_agent=run_agent,
            compile_transform=compile_transform,
        )

    async def run(self) -> None:
        await self._open_http()
        await self._open_servers()
        await self._open_long_results()
        await self._check_durable_backend()
        self._opened.deps, self._opened.reopen = self._deps, self._reopen
        self._opened.apply = self._apply
        if not await self._open_all():
            self._start_healing()
        await asyncio.gather(*(server.wait_first_attempt() for server in self._servers.values()))

    async def _open_all(self) -> bool:
        """Opens every pipeline and agent that is not open yet. Returns False if a store does not answer."""
        missed = [m for n, m in self._opened.configuration.rag.items() if n not in self._opened.knowledge]
        reached = await asyncio.gather(*(self._open_pipeline(one.name, one) for one in missed))
        missing = {n: a for n, a in self._opened.configuration.agents.items() if n not in self._opened.agents}
        agents = await asyncio.gather(*map(self._try_open_agent, missing.values()))
        for name, agent in zip(missing, agents, strict=True):
            if isinstance(agent, Agent):
                self._opened.agents[name] = agent
                self._opened.broken.pop(name, None)
                self._opened.recovering.discard(name)
                if self._reported_errors.pop(name, ""):
                    log.info("agent_available", agent=name)
        return all(reached) and not any(isinstance(agent, StoreUnavailable) for agent in agents)

    async def _try_open_agent(self, manifest: AgentManifest) -> Agent | AstromeshError:
        """Opens an agent, or returns the error. Agents open concurrently, so that timeouts do not add up."""
        try:
            return await self._agent(manifest)
        except AstromeshError as error:
            name, fault = manifest.name, _open_fault(error, manifest)
            if self._is_new_error(name, fault):
                log.error("agent_unavailable", agent=name, error=str(fault))
            self._opened.broken[name] = (relative_fault(self._opened.configuration.folder, fault),)
            if isinstance(error, StoreUnavailable):
                self._opened.recovering.add(name)
            return error

    def _is_new_error(self, what: str, error: AstromeshError) -> bool:
        """Whether this reason was not logged before: what cannot be opened is tried again and again."""
        before, self._reported_errors[what] = self._reported_errors.get(what), str(error)
        return before != str(error)

    def _start_healing(self) -> None:
        if not self._healing:
            self._healing = True
            healing = asyncio.create_task(self._retry_unopened())
            self._opened.resources.on_close(partial(_cancel_task, healing))

    async def _retry_unopened(self) -> None:
        """Tries again until every store has answered."""
        pause = RETRY_SECONDS
        while True:
            await self._clock.sleep(pause)
            if await self._open_all():
                self._healing = False
                return
            pause = min(pause * _BACKOFF, MAX_RETRY_SECONDS)

    # -- another configuration -----------------------------------------------------------------------------

    async def _apply(self, configuration: Configuration, code_changed: bool) -> AppliedChanges:
        """Opens what differs from the present configuration. Active runs keep the objects that they have.

        Args:
            configuration: Valid files, and the last good version of those with faults.
            code_changed: Whether every agent is opened again, because the Python code of tools has changed.
        """
        opened = self._opened
        before, opened.configuration = opened.configuration, configuration
        opened.deps = self._deps = replace(self._deps, **_names_of(configuration, self._graphs))
        pipelines = [name for name, rag in configuration.rag.items() if before.rag.get(name) != rag]
        for name in pipelines:
            await self._open_pipeline(name, configuration.rag[name])
        for name in before.rag.keys() - configuration.rag.keys():
            opened.knowledge.pop(name, None)
            opened.unopened.pop(name, None)
            opened.checks.pop(f"store:rag:{name}", None)
        for name in self._failing:  # whoever needs these stores opens them again
            opened.checks.pop(name, None)
        self._failing.clear()
        removed = tuple(sorted(opened.agents.keys() - configuration.agents.keys()))
        for name in removed:
            del opened.agents[name]
        opened.broken = _public_faults(configuration)
        changed = [
            manifest for name, manifest in configuration.agents.items()
            if self._is_changed(name, manifest, code_changed, bool(pipelines))
        ]  # fmt: skip
        rejected = [fault for one in changed for fault in await self._replace_agent(one)]
        if opened.recovering or not opened.knowledge.keys() >= configuration.rag.keys():
            self._start_healing()
        names = tuple(manifest.name for manifest in changed)
        return AppliedChanges(names, removed, tuple(pipelines), tuple(rejected))

    def _is_changed(
        self, name: str, manifest: AgentManifest, code_changed: bool, pipelines_changed: bool
    ) -> bool:
        agent = self._opened.agents.get(name)
        if agent is None:
            return True
        if manifest is agent.manifest:  # the last good version of a file with faults
            return False
        if code_changed or (pipelines_changed and agent.knowledge_tools):
            return True
        return manifest != agent.manifest or agent.snapshot != self._snapshot(name)

    async def _replace_agent(self, manifest: AgentManifest) -> tuple[InvalidManifest, ...]:
        """Opens an agent. If it cannot be opened, its last version stays, and the faults are returned."""
        opened, name = self._opened, manifest.name
        agent = await self._try_open_agent(manifest)
        if isinstance(agent, Agent):
            opened.agents[name] = agent
            opened.broken.pop(name, None)
            opened.recovering.discard(name)
            self._reported_errors.pop(name, "")
            return ()
        if name not in opened.agents:
            return ()
        opened.recovering.discard(name)
        return opened.broken.pop(name, ())

    def _snapshot(self, name: str) -> JsonObject:
        return snapshot_of(self._opened.configuration, name, self._opened.texts)

    async def pipeline(self, manifest: RAGManifest) -> KnowledgePipeline:
        """Opens one RAG pipeline without any agent; it ingests nothing yet."""
        await self._open_http()
        return await open_rag_pipeline(manifest, self._plugins, self._deps, self._reranker)

    async def _open_http(self) -> None:
        allowed = self._opened.configuration.runtime.spec.network.allow_hosts
        http = await self._opened.resources.shared(Http, lambda: Http(allowed))
        self._deps = replace(self._deps, http=http)

    async def _check_durable_backend(self) -> None:
        """Checks the server that places durable runs, if there is one. Raises: MissingExtra."""
        name = self._opened.configuration.runtime.spec.durable.backend
        if name != IN_PROCESS:
            self._opened.checks[f"durable:{name}"] = (
                await open_durable_backend(self._opened, self._deps)
            ).ping

    async def _open_long_results(self) -> None:
        cache: LongResults = await self._opened.resources.shared(
            LongResults, lambda: LongResults(self._clock)
        )
        self._registry = ToolRegistry(self._clock, long_results=cache)

        async def erase(tenant: str, owner: str) -> int:
            return cache.erase_owner(tenant, owner)

        self._opened.erasers.append(erase)

    async def _output_rule(self, block: Any) -> Any:
        """Opens an output rule, with the embedder that it names, if it names one."""
        deps, name = self._deps, getattr(block.options, "embedder_plugin", "")
        if name:
            options = self._plugins.load("embedders", name).Options()
            embedder = await open_embedder_block(ModelBlock(name, name, "", options), self._plugins, deps)
            deps = replace(deps, embedder=embedder)
        return await self._plugins.open("guardrails", block.type, block.options, deps)

    # -- parts of an agent ---------------------------------------------------------------------------------

    async def _agent(
        self,
        manifest: AgentManifest,
        snapshot: JsonObject | None = None,
        graphs: Mapping[str, Any] | None = None,
    ) -> Agent:
        """Args: snapshot, graphs: those of a run, which replace the present ones."""
        spec = manifest.spec
        rules = GuardrailsEngine(
            [await self._open("guardrails", r.type, r.options) for r in spec.guardrails.input],
            [await self._output_rule(rule) for rule in spec.guardrails.output],
        )
        router = await self._router(manifest.name, spec.model, rules)
        tools: list[Tool | DeclaredTool | DeclaredSource] = [await self._tool(block) for block in spec.tools]
        permitted = spec.permissions.tools
        if manifest.skills:
            tools.append(read_skill_tool(manifest.skills))
            permitted = None if permitted is None else (*permitted, READ_SKILL)
        bound = self._registry.bind(
            manifest.name,
            tools,
            permitted,
            approve_if_tainted=spec.permissions.tainted == "approval",
        )
        defaults = self._opened.configuration.runtime.spec.defaults.orchestration
        orchestration = spec.orchestration
        live = self._opened.live.get(manifest.name, NO_LIVE_PARTS)
        schema = spec.output_schema if live.output_type is None else live.output_type
        graphs = {**self._deps.graphs, **(graphs or {})}
        deps = replace(self._deps, graphs=graphs, roles=router.roles, node_model=live.node_model)
        pattern = await self._plugins.open("patterns", orchestration.pattern, orchestration.options, deps)
        can_call_tools = any(one.limits.tools for one in (router, *router.roles.values()))
        if tools and not can_call_tools:
            log.warning(
                "tools_left_out",
                agent=manifest.name,
                models=router.limits.names,
                tools=[*(b.name for b in spec.tools), *([READ_SKILL] if manifest.skills else ())],
            )
        return Agent(
            name=manifest.name,
            manifest=manifest,
            guardrails=rules,
            memory=await self._memory(manifest, router, rules),
            prompt=self._prompts.register(
                manifest.name, spec.prompts.system, description=spec.identity.description,
                variables=spec.prompts.variables,
            ),
            skills=skills_prompt(manifest.skills) if can_call_tools else "",
            tools=bound,
            router=router,
            pattern=pattern,
            pattern_name=orchestration.pattern,
            max_iterations=orchestration.max_iterations or defaults.max_iterations,
            timeout_seconds=orchestration.timeout_seconds or defaults.timeout_seconds,
            grace_seconds=pattern.grace_seconds if isinstance(pattern, EndsAtDeadline) else 0.0,
            stream=manifest.stream,
            budget=spec.budgets.per_run.caps(),
            output_schema=AnswerSchema(schema) if schema is not None else None,
            live=live,
            snapshot=snapshot or self._snapshot(manifest.name),
            limits=limits_of(spec.budgets),
            max_running=spec.queue.max_running or 0,
            merges_messages=spec.sessions.concurrency == "merge",
            continues_on_disconnect=spec.on_disconnect == "continue",
            can_call_tools=can_call_tools,
            loaded_at=self._clock.now(),
        )  # fmt: skip

    async def _reopen(self, name: str, snapshot: JsonObject) -> Agent:
        """Raises: InvalidManifest: the agent cannot be opened with the other files as they are now."""
        folder = self._opened.configuration.folder
        found = load_snapshot(folder, name, snapshot, self._opened.env, self._plugins, self._deps.graphs)
        graphs = {n: found.graphs[n].spec for n in snapshot.get("graphs", {}) if n in found.graphs}
        return await self._agent(found.agents[name], snapshot, graphs)

    async def _router(
        self, agent: str, models: RoleModel, rules: GuardrailsEngine | None = None
    ) -> ModelRouter:
        blocks = models.usable()
        if not blocks:
            reasons = "; ".join(f"{b.name}: {b.skipped}" for b in models.blocks())
            raise ConfigError(f"The agent {agent!r} has no usable model: {reasons}.")
        providers = await self._providers(agent, blocks)
        if wrap := self._opened.live.get(agent, NO_LIVE_PARTS).wrap_model:
            providers = [wrap(provider) for provider in providers]
        strategy = (
            models.routing.strategy or self._opened.configuration.providers.spec.routing.default_strategy
        )
        roles = {}
        for name, other in getattr(models, "roles", {}).items():
            is_named_by_node = name == f"{other.primary.provider}:{other.primary.model}"
            if not (other.usable() or is_named_by_node):  # without a key; the main models answer instead
                continue
            roles[name] = await self._router(agent, other, rules)
        return ModelRouter(providers, strategy=strategy, roles=roles, health=self._health, rules=rules)

    async def _providers(self, agent: str, blocks: Sequence[ModelBlock]) -> list[Any]:
        """Opens the providers of an agent, without those whose service finds no credentials.

        Raises:
            MissingKey: none is left.
        """
        opened, last = [], None
        for block in blocks:
            try:
                opened.append(await self._provider(block))
            except MissingKey as error:
                log.warning("provider_skipped", agent=agent, provider=block.name, reason=str(error))
                self._opened.checks.setdefault(f"provider:{block.name}", partial(_skipped, str(error)))
                last = error
        if last is not None and not opened:
            raise last
        return opened

    async def _provider(self, block: ModelBlock) -> Any:
        provider = await self._open("providers", block.plugin, block.options)
        provider.provider, provider.name = block.provider, block.name
        self._opened.checks.setdefault(f"provider:{provider.name}", provider.ping)
        self._opened.resources.on_close(provider.close)
        return provider

    async def _memory(
        self, manifest: AgentManifest, router: ModelRouter, rules: GuardrailsEngine
    ) -> MemoryManager:
        memory = manifest.spec.memory
        manager = MemoryManager(
            await self._conversational(manifest.name, memory.conversational),
            await self._semantic(manifest.name, memory.semantic),
            await self._episodic(manifest.name, memory.episodic),
            model=router,
            clock=self._clock,
            about=memory.model_dump(mode="json", exclude_none=True),
            rules=rules,
        )
        self._opened.resources.on_close(manager.close)
        return manager

    async def _conversational(self, agent: str, block: Conversational | None) -> ConversationalMemory | None:
        if block is None:
            return None
        store = await self._store(agent, "conversation_stores", block)
        strategy = await self._open("memory_strategies", block.strategy, block.strategy_options)
        return ConversationalMemory(store, strategy, float(block.ttl or 0))

    async def _semantic(self, agent: str, block: Semantic | None) -> SemanticMemory | None:
        if block is None:
            return None
        embedder = await open_embedder(block.embeddings, self._plugins, self._deps)
        if embedder is not None:
            self._opened.checks.setdefault(f"embedder:{embedder.fingerprint}", embedder.ping)
        store = await self._store(agent, "semantic_stores", block, embedder)
        return SemanticMemory(store, block.top_k, block.similarity_threshold, block.auto_index, block.facts)

    async def _episodic(self, agent: str, block: Episodic | None) -> EpisodicMemory | None:
        if block is None:
            return None
        return EpisodicMemory(await self._store(agent, "episodic_stores", block), block.max_events)

    async def _store(self, agent: str, group: str, block: Any, embedder: Embedder | None = None) -> Any:
        key = (block.backend, block.options)
        opened = self._stores.setdefault((agent, group), [])
        for known, embedded_by, store in opened:
            if known == key and embedded_by is embedder:
                return store
        store = await self._open_store(group, block, embedder)
        opened.append((key, embedder, store))
        return store

    async def _open_store(self, group: str, block: Any, embedder: Embedder | None) -> Any:
        name, deps = f"store:{group}:{block.backend}", replace(self._deps, embedder=embedder)
        try:
            store = await self._plugins.open(group, block.backend, block.options, deps)
        except AstromeshError as error:
            if self._is_declared(block):  # not only in the snapshot of an old run
                self._failing.add(self._check(name, block.options, _failing_check(error)))
            raise
        self._failing.discard(self._check(name, block.options, store.ping))
        self._opened.resources.on_close(store.close)
        return store

    def _is_declared(self, block: Any) -> bool:
        memories = (agent.spec.memory for agent in self._opened.configuration.agents.values())
        return any(block is one for m in memories for one in (m.conversational, m.semantic, m.episodic))

    def _check(self, name: str, options: Any, ping: Ping) -> str:
        """Adds a check and returns its name.

        A store of the same kind with other options, another file say, gets a number.
        """
        checked = self._checked_options.setdefault(name, [])
        if options not in checked:
            checked.append(options)
        number = checked.index(options) + 1
        name = name if number == 1 else f"{name}:{number}"
        self._opened.checks[name] = ping
        return name

    async def _tool(self, block: ToolBlock) -> DeclaredTool | DeclaredSource:
        tool = await self._open("tools", block.type, block.options)
        return declare_source(tool, block) if isinstance(tool, ToolSource) else declare_tool(tool, block)

    async def _open_servers(self) -> None:
        """Opens MCP servers, which connect in the background: one that is down does not delay the start."""
        for name, record in self._opened.configuration.mcp.spec.servers.items():
            plugin = self._plugins.load(*_MCP)
            options = plugin.Options.model_validate({"name": name, **record.model_dump()})
            server = await plugin.open(options, self._deps)
            self._servers[name] = server
            self._opened.resources.on_close(server.close)
            self._opened.checks[f"tools:mcp:{name}"] = server.ping

    async def _open_pipeline(self, name: str, manifest: RAGManifest) -> bool:
        """Opens a pipeline and ingests its sources. A failure breaks only the agents that use the pipeline.

        Returns False if its store does not answer.
        """
        try:
            pipeline = await open_rag_pipeline(manifest, self._plugins, self._deps, self._reranker)
            await refresh_pipeline(pipeline)
        except AstromeshError as error:
            if self._is_new_error(f"pipeline {name}", error):
                log.error("pipeline_unavailable", pipeline=name, error=str(error))
            self._opened.unopened[name] = error
            self._opened.checks[f"store:rag:{name}"] = _failing_check(error)
            return not isinstance(error, StoreError)
        self._opened.unopened.pop(name, None)
        self._opened.knowledge[name] = pipeline
        self._opened.checks[f"store:rag:{name}"] = pipeline.ping
        if manifest.spec.mode != "lexical":
            embedder = await open_embedder(manifest.spec.embeddings, self._plugins, self._deps)
            if embedder is not None:
                self._opened.checks.setdefault(f"embedder:{embedder.fingerprint}", embedder.ping)
        return True

    async def _reranker(self, pipeline: str, models: RoleModel) -> ModelRouter | None:
        if not models.usable():
            reasons = "; ".join(f"{b.name}: {b.skipped}" for b in models.blocks())
            log.warning("reranker_skipped", pipeline=pipeline, reason=reasons)
            return None
        return await self._router(pipeline, models)

    async def _open(self, group: str, name: str, options: Any) -> Any:
        return await self._plugins.open(group, name, options, self._deps)


async def _skipped(reason: str) -> str:
    """Answers for a provider that was not opened, as `Provider.ping` does."""
    return f"skipped: {reason}"


def _names_of(configuration: Configuration, graphs: Mapping[str, PromptGraph]) -> dict[str, Any]:
    """Returns the fields of `Deps` that a configuration fills. Args: graphs: made in Python."""
    return {
        "graphs": {**{n: m.spec for n, m in configuration.graphs.items()}, **graphs},
        "agents": {n: a.spec.identity.description for n, a in configuration.agents.items()},
    }


def _open_fault(error: AstromeshError, manifest: AgentManifest) -> InvalidManifest:
    """Returns why an agent cannot be opened. The error of a store does not name the agent's file."""
    if isinstance(error, InvalidManifest):
        return error
    return InvalidManifest(str(error), file="" if isinstance(error, StoreError) else str(manifest.file))


def _public_faults(configuration: Configuration) -> dict[str, tuple[InvalidManifest, ...]]:
    """Returns the faults of broken agents as clients may read them."""
    return {
        name: tuple(relative_fault(configuration.folder, fault) for fault in faults)
        for name, faults in configuration.broken.items()
    }


def relative_fault(folder: Path, fault: InvalidManifest) -> InvalidManifest:
    """Returns a fault without the path of the configuration folder, which clients must not see."""
    place = f"{folder}/"
    message = fault.message.replace(place, "") if folder.is_absolute() else fault.message
    return InvalidManifest(
        message,
        file=fault.file.removeprefix(place),
        line=fault.line,
        column=fault.column,
        key=fault.key,
        hint=fault.hint,
        rule=fault.rule,
    )


def _failing_check(error: AstromeshError) -> Ping:
    """Returns the check of a store or pipeline that could not be opened."""

    async def ping() -> str | None:
        raise error.with_traceback(None)

    return ping


async def _cancel_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


# -- RAG pipelines by name -----------------------------------------------------------------------------------


def pipeline_of(opened: RuntimeState, name: str) -> KnowledgePipeline:
    """Returns a pipeline of a running runtime.

    Raises:
        PipelineNotFound: there is no such pipeline.
        Unavailable: it could not be opened.
    """
    if name in opened.knowledge:
        return opened.knowledge[name]
    if name in opened.configuration.rag:
        raise Unavailable(f"The pipeline {name!r} could not be opened; the server's log says why.")
    raise _pipeline_not_found(name, opened.configuration.rag)


@asynccontextmanager
async def open_single_pipeline(
    folder: Path, data_dir: Path, name: str, plugins: Plugins | None = None, clock: Clock | None = None
) -> AsyncIterator[KnowledgePipeline]:
    """Opens one pipeline of a configuration folder without the agents; it ingests nothing yet.

    Raises:
        InvalidConfiguration: the file of the pipeline, or one that concerns all, has faults.
        PipelineNotFound: there is no such pipeline.
    """
    plugins = plugins or Plugins()
    configuration = load_configuration(folder, plugins)
    configuration.require_sound()
    opened = RuntimeState(configuration, plugins=plugins)
    try:
        manifest = _pipeline_manifest(configuration, name)
        yield await _Bootstrap(opened, data_dir, clock or SystemClock(), None, {}).pipeline(manifest)
    finally:
        await opened.resources.close()


def _pipeline_manifest(configuration: Configuration, name: str) -> RAGManifest:
    if name in configuration.rag:
        return configuration.rag[name]
    faults = [fault for found in configuration.unusable.values() for fault in found if ".rag." in fault.file]
    if faults:  # the file of the pipeline may be among them: its name cannot always be read
        raise InvalidConfiguration(faults)
    raise _pipeline_not_found(name, configuration.rag)


def _pipeline_not_found(name: str, known: Iterable[str]) -> PipelineNotFound:
    return PipelineNotFound(f"There is no RAG pipeline named {name!r}. {suggest_name(name, known)}")


# -- stores that open on demand: those of `storage.url` ------------------------------------------------------


class RuntimeStores:
    """Opens the stores of a runtime, which closes them.

    Args:
        state: Returns what the runtime holds open.
    """

    def __init__(self, plugins: Plugins, state: Callable[[], RuntimeState]) -> None:
        self._plugins, self._state = plugins, state

    @property
    def may_hold_runs(self) -> bool:
        """Whether somebody may have written to the store of runs."""
        return self._kind() == "postgres" or default_file(self._state().deps).exists()

    @property
    def retention(self) -> RetentionPolicy:
        """How many ended runs are stored, and for how long."""
        spec = self._state().configuration.runtime.spec
        storage, recording = spec.storage, spec.recording
        return RetentionPolicy(storage.keep_days, storage.keep_runs, recording.retention_days)

    async def open_runs(self) -> RunStore:
        """Opens the store of runs. Readiness checks ask it from then on."""
        store: RunStore = await self._open("run_stores")
        self._manage("runs", store)
        return store

    async def open_tasks(self) -> TaskStore:
        """Opens the store of Tasks. Readiness checks ask it from then on."""
        store: TaskStore = await self._open("task_stores")
        self._manage("tasks", store)
        self._state().erasers.append(store.erase_owner)
        return store

    async def open_budgets(self) -> BudgetStore:
        store: BudgetStore = await self._open("budget_stores")
        return store

    async def open_backend(self) -> DurableBackend:
        """Opens what dispatches segments to this process; the claim of a segment decides who executes it."""
        return await open_durable_backend(self._state())

    def _kind(self) -> str:
        url = self._state().deps.storage_url
        return "sqlite" if not url or url.startswith("sqlite:") else "postgres"

    async def _open(self, group: str) -> Any:
        return await self._plugins.open(group, self._kind(), {}, self._state().deps)

    def _manage(self, name: str, store: RunStore | TaskStore) -> None:
        state = self._state()
        state.checks[f"store:{name}:{self._kind()}"] = store.ping
        state.resources.on_close(store.close)
