"""An agent: as a Python program declares it, as its runs share it after bootstrap, and as a diagram."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from astromesh.config.agent import AgentManifest, AgentModel, Budgets, GuardrailRule, ToolBlock
from astromesh.config.base import Node
from astromesh.config.checks import AGENT_LISTS, PATTERN_ITERATIONS
from astromesh.config.folder import PythonManifests
from astromesh.core.guardrails import GuardrailsEngine, StreamMode
from astromesh.core.memory import MemoryManager
from astromesh.core.model_router import ModelRouter
from astromesh.core.prompt_engine import PromptTemplate
from astromesh.core.tools import AgentTools
from astromesh.durable.budgets import BudgetCaps, BudgetLimit
from astromesh.errors import AgentUnavailable, ConfigError, InvalidManifest
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import AnswerSchema
from astromesh.graph.topology import mermaid_text
from astromesh.orchestration.base import Drawable, Pattern
from astromesh.plugins import Plugins
from astromesh.tools.base import ToolContext
from astromesh.types import JsonObject

#: returns the system prompt of a run, which is no template
SystemPrompt: TypeAlias = Callable[[ToolContext], "str | Awaitable[str]"]


@dataclass(frozen=True, slots=True)
class LiveParts:
    """What an agent has that no manifest can hold.

    Args:
        system: Makes the system prompt of each run; None: `prompts.system` does.
        output_type: The type of the answer, whose JSON Schema is `output_schema`; None: the schema itself.
        deps: `ToolContext.deps` of runs that bring none of their own.
        wrap_model: Wraps each of its providers and models of nodes, e.g. to record their calls.
        is_one_model: Whether its main model answers for every role and node, e.g. in a test.
    """

    system: SystemPrompt | None = None
    output_type: Any = None
    deps: Any = None
    wrap_model: Callable[[Any], Any] | None = None
    is_one_model: bool = False

    def node_model(self, model: Any) -> Any:
        """Returns what replaces a model that a node has as an object. None: the main model."""
        if self.is_one_model:
            return None
        return model if self.wrap_model is None else self.wrap_model(model)


NO_LIVE_PARTS = LiveParts()


@dataclass(frozen=True, slots=True)
class Declaration:
    """One agent.

    Args:
        manifest: The content of its file.
        servers: Blocks of mcp.yaml that it needs, by name.
        plugins: Its live objects as plugins, by group and name. The names begin with that of the agent.
        graphs: Its graphs by name.
        called: The agents that it may call.
        folder: The configuration folder that the manifest belongs to; None: it belongs to none.
        file: The file that the manifest was read from, if there is one.
    """

    name: str
    manifest: Node
    servers: Mapping[str, Node] = field(default_factory=dict)
    plugins: Mapping[str, Mapping[str, type[Any]]] = field(default_factory=dict)
    graphs: Mapping[str, PromptGraph] = field(default_factory=dict)
    live: LiveParts = NO_LIVE_PARTS
    called: tuple[Declaration, ...] = ()
    folder: Path | None = None
    file: Path | None = None

    def every(self) -> Iterator[Declaration]:
        """Yields the agent, and all that it may call."""
        yield self
        for one in self.called:
            yield from one.every()


class DeclaredAgent(Protocol):
    """An agent that is declared in Python: `astromesh.Agent`."""

    @property
    def declaration(self) -> Declaration: ...


class Declarations:
    """The declared agents of one runtime.

    Args:
        agents: Their declarations; agents that they may call come with them.

    Raises:
        ConfigError: Two agents or servers have one name, or the agents belong to several folders.
    """

    def __init__(self, agents: Iterable[DeclaredAgent] = ()) -> None:
        self._agents: dict[str, Declaration] = {}
        self._servers: dict[str, Node] = {}
        for agent in agents:
            for one in agent.declaration.every():
                self._add(one)
        folders = sorted({str(one.folder) for one in self._agents.values() if one.folder is not None})
        if len(folders) > 1:
            raise ConfigError(f"The agents belong to several configuration folders: {', '.join(folders)}.")
        #: the configuration folder of its agents
        self.folder = Path(folders[0]) if folders else None

    def __bool__(self) -> bool:
        return bool(self._agents)

    @property
    def live(self) -> Mapping[str, LiveParts]:
        return {name: one.live for name, one in self._agents.items()}

    @property
    def graphs(self) -> dict[str, PromptGraph]:
        return {name: graph for one in self._agents.values() for name, graph in one.graphs.items()}

    def manifests(self, *, only: bool) -> PythonManifests:
        """Args: only: whether the runtime has no configuration folder."""
        agents = {n: (a.file or Path(f"Agent({n!r})"), a.manifest) for n, a in self._agents.items()}
        one_model = frozenset(name for name, one in self._agents.items() if one.live.is_one_model)
        return PythonManifests(agents, self._servers, only, one_model)

    def extend(self, plugins: Plugins) -> Plugins:
        """Returns the plugins of a runtime with the live objects of its agents."""
        for one in self._agents.values():
            plugins = plugins.with_extra(one.plugins)
        return plugins

    def _add(self, one: Declaration) -> None:
        known = self._agents.setdefault(one.name, one)
        if known is not one:
            raise ConfigError(f"Two agents are named {one.name!r}. Give one of them another `name`.")
        for name, block in one.servers.items():
            if self._servers.setdefault(name, block).value != block.value:
                raise ConfigError(f"Two MCP servers are named {name!r}. Give one of them another name.")


def limits_of(budgets: Budgets) -> tuple[BudgetLimit, ...]:
    """Returns the stored budgets of an agent; most agents have none."""
    found = (
        BudgetLimit("session", BudgetCaps(**budgets.per_session.caps())),
        BudgetLimit("day", BudgetCaps(**budgets.per_principal_daily.caps())),
    )
    return tuple(limit for limit in found if limit.caps != BudgetCaps())


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    Args:
        timeout_seconds: The deadline of a run, without the time for which it waits for its session.
        grace_seconds: The time after the deadline, for a pattern that ends at the deadline by itself.
        budget: The budget of one run, by key of the ledger.
        limits: The budgets of sessions and principals.
        snapshot: What durable runs store: its manifest, and those of agents and graphs that it needs.
        max_running: The number of its runs that a process may execute at once; 0 without a limit.
        merges_messages: Whether messages that arrive close together become one run.
        continues_on_disconnect: Whether a synchronous run continues when its client disconnects.
        can_call_tools: Whether one of its models can, those of its roles included.
        skills: The part of its system prompt that names its skills.
        live: What it has beside its manifest if it is declared in Python.
        stream: How text may leave while the model writes it: `token`, `sentence` or `final`.
        loaded_at: Seconds since the epoch.
        knowledge_tools: The pipelines by the names of the tools that search them; its answers have citations.
    """

    name: str
    manifest: AgentManifest
    guardrails: GuardrailsEngine
    memory: MemoryManager
    prompt: PromptTemplate
    tools: AgentTools
    router: ModelRouter
    pattern: Pattern
    pattern_name: str
    max_iterations: int
    timeout_seconds: float
    grace_seconds: float
    stream: StreamMode
    budget: dict[str, float]
    output_schema: AnswerSchema | None = None
    skills: str = ""
    live: LiveParts = NO_LIVE_PARTS
    snapshot: JsonObject = field(default_factory=dict)
    limits: tuple[BudgetLimit, ...] = ()
    max_running: int = 0
    merges_messages: bool = False
    continues_on_disconnect: bool = False
    can_call_tools: bool = True
    loaded_at: float = 0.0
    knowledge_tools: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        tools = self.manifest.spec.tools
        pipelines = {tool.name: tool.options.pipeline for tool in tools if tool.type == "rag"}
        object.__setattr__(self, "knowledge_tools", pipelines)

    def iterations_within(self, limit: int) -> int:
        """Returns the model calls of its tool loop under the limit of an outer pattern.

        The limit does not apply to patterns without such a loop.
        """
        if self.pattern_name in PATTERN_ITERATIONS:
            return self.max_iterations
        return min(limit, self.max_iterations)

    @property
    def summarizes(self) -> bool:
        """Whether its conversations are summarized (`strategy: summary`)."""
        memory = self.manifest.spec.memory
        return memory.conversational is not None and memory.conversational.strategy == "summary"

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of its models. The agent works if one of them answers."""
        return tuple(p.name for p in self.router.providers)


def unavailable_error(name: str, faults: Sequence[InvalidManifest], *, passing: bool) -> AgentUnavailable:
    """Returns the error of an agent that cannot run.

    Args:
        faults: Faults of its manifest, or the one reason why it could not be opened.
        passing: Whether it works again when a store answers.
    """
    first = faults[0]
    if first.line:
        count = f"{len(faults)} fault{'' if len(faults) == 1 else 's'}"
        return AgentUnavailable(f"The agent {name!r} has {count} in its manifest: {first}")
    return AgentUnavailable(
        f"The agent {name!r} cannot run{' now' if passing else ''}: {first}", temporary=passing
    )


#: keys of a tool that name what it reaches; an address is left out, because it may hold a secret
_TOOL_TARGETS = ("pipeline", "server", "agent", "function")


def agent_diagram(agent: Agent) -> str:
    """Returns an agent as a Mermaid flowchart. A pattern that is not a graph is one box."""
    spec = agent.manifest.spec
    lines = ["flowchart TD", f'    subgraph pattern["{mermaid_text(agent.pattern_name)}"]']
    lines += [f"    {line}" for line in _pattern(agent)]
    lines.append("    end")
    workers = getattr(spec.orchestration.options, AGENT_LISTS.get(agent.pattern_name, ""), ())
    permitted = spec.permissions.tools
    groups = (
        ("input", "input guardrails", map(_rule, spec.guardrails.input), "input --> pattern"),
        ("output", "output guardrails", map(_rule, spec.guardrails.output), "pattern --> output"),
        ("models", "models", _models(spec.model), "pattern -.-> models"),
        ("tools", "tools", (_tool(tool, permitted) for tool in spec.tools), "pattern -.-> tools"),
        ("workers", "workers", map(str, workers), "pattern -.-> workers"),
    )
    for name, title, labels, edge in groups:
        lines += _group(name, title, labels, edge)
    return "\n".join(lines)


def _pattern(agent: Agent) -> Iterable[str]:
    """Returns the lines of the pattern's own diagram, without its head."""
    if not isinstance(agent.pattern, Drawable):
        return (f'    pattern_box["{mermaid_text(agent.pattern_name)}"]',)
    return agent.pattern.to_mermaid(agent.max_iterations).splitlines()[1:]


def _group(name: str, title: str, labels: Iterable[str], edge: str) -> Iterator[str]:
    boxes = [f'        {name}{i}["{mermaid_text(label)}"]' for i, label in enumerate(labels)]
    if boxes:
        yield from (f'    subgraph {name}["{title}"]', *boxes, "    end", f"    {edge}")


def _rule(rule: GuardrailRule) -> str:
    action = rule.plugin_value("action")
    return f"{rule.type}: {action}" if action else rule.type


def _models(model: AgentModel) -> Iterator[str]:
    for role, models in model.sets():
        for place, block in enumerate(models.blocks()):
            notes = [role] * bool(role) + ["fallback"] * bool(place) + ["skipped"] * bool(block.skipped)
            name = f"{block.provider}/{block.model}" if block.model else block.provider
            yield f"{name} ({', '.join(notes)})" if notes else name


def _tool(tool: ToolBlock, permitted: tuple[str, ...] | None) -> str:
    target = next((str(value) for key in _TOOL_TARGETS if (value := tool.plugin_value(key))), "")
    notes = [f"{tool.type} {target}".strip()]
    notes += ["approval"] * (tool.approval != "none")
    notes += ["not permitted"] * (permitted is not None and tool.name not in permitted)
    return f"{tool.name} ({', '.join(notes)})"
