"""The arguments of an agent: each kind as keys of its manifest, and all of them as what a runtime opens."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, TypeAlias, cast

import orjson
from pydantic.errors import PydanticUserError

from astromesh.agents.manifest import (
    AgentKeys,
    Live,
    ModelLike,
    check_values,
    live_objects,
    live_plugin,
    model_block,
    plain,
    replace_live,
    to_yaml,
    without_empty,
)
from astromesh.config.agent import Budgets, Guardrails, Memory
from astromesh.config.base import Node, node_from_value
from astromesh.config.parser import read_file
from astromesh.errors import ConfigError, InvalidConfiguration, InvalidGraph, ToolFailed
from astromesh.graph import prebuilt
from astromesh.graph.base import BaseNode
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import OutputSchema
from astromesh.guardrails.base import CheckContext, Rule, RuleStream, Verdict
from astromesh.plugins import Deps, Plugins
from astromesh.runtime.agent import NO_LIVE_PARTS, Declaration, LiveParts
from astromesh.tools.base import Tool, ToolContext, ToolPort, ToolSource
from astromesh.tools.functions import FunctionTool
from astromesh.tools.toolbox import ToolLike, as_tool
from astromesh.types import JsonObject, ToolCall, ToolSpec

#: the type of a rule, a mapping as in YAML, a rule, or a function of the text
GuardrailLike: TypeAlias = "str | Mapping[str, Any] | Rule | Callable[[str], Any]"
MemoryLike: TypeAlias = "str | Mapping[str, Any] | None"
PatternLike: TypeAlias = "str | PromptGraph | Mapping[str, Any] | None"

#: prebuilt graphs that are no patterns of YAML
GRAPHS: Mapping[str, Callable[[], PromptGraph]] = {
    "deliberate": prebuilt.deliberate,
    "debate": prebuilt.debate,
    "reasoning_controller": prebuilt.reasoning_controller,
}


# -- models --------------------------------------------------------------------------------------------------


def models(model: ModelLike, keys: AgentKeys, plugins: Plugins) -> JsonObject:
    """Returns `spec.model`. A mapping with `primary` is the whole of it."""
    is_whole = isinstance(model, Mapping) and "primary" in model
    whole: JsonObject = dict(cast("Mapping[str, Any]", model)) if is_whole else {"primary": model}
    others = {"fallback": keys.get("fallback"), "routing": keys.get("routing"), "roles": keys.get("roles")}
    return _model_set({**whole, **{key: one for key, one in others.items() if one}}, plugins)


def _model_set(whole: Mapping[str, Any], plugins: Plugins) -> JsonObject:
    found: JsonObject = {"primary": plain(model_block(whole["primary"], plugins))}
    if fallback := whole.get("fallback"):
        several = fallback if isinstance(fallback, list | tuple) else [fallback]
        found["fallback"] = [plain(model_block(one, plugins)) for one in several]
    if routing := whole.get("routing"):
        found["routing"] = {"strategy": routing} if isinstance(routing, str) else plain(routing)
    if roles := whole.get("roles"):
        found["roles"] = {name: _role(one, plugins) for name, one in roles.items()}
    return found


def _role(models: Any, plugins: Plugins) -> JsonObject:
    is_set = isinstance(models, Mapping) and "primary" in models
    return _model_set(models if is_set else {"primary": models}, plugins)


# -- orchestration -------------------------------------------------------------------------------------------


def orchestration(pattern: PatternLike, pool: Sequence[BaseNode] | None, keys: AgentKeys) -> JsonObject:
    """Returns `spec.orchestration`.

    Raises:
        ConfigError: `pattern` and `node_pool` are both given.
    """
    if pool is not None:
        if pattern is not None:
            raise ConfigError("Pass a pattern or a node_pool, not both.")
        pattern = prebuilt.autonomous(pool)
    if isinstance(pattern, str) and pattern in GRAPHS:
        pattern = GRAPHS[pattern]()
    found: JsonObject
    if isinstance(pattern, PromptGraph):
        about = f"the graph {pattern.name!r} (it belongs into graphs/{pattern.name}.graph.yaml)"
        found = {"pattern": "graph", "graph": Live("graphs", pattern, "graph", about)}
    else:
        found = {"pattern": pattern} if isinstance(pattern, str) else plain(dict(pattern or {}))
    return {
        **found,
        "max_iterations": keys.get("max_iterations", found.get("max_iterations")),
        "timeout_seconds": plain(keys.get("timeout_seconds", found.get("timeout_seconds"))),
    }


# -- tools ---------------------------------------------------------------------------------------------------


class AgentTool:
    """Another agent as a tool: `agent.as_tool()`.

    Args:
        agent: The agent that a call runs.
        name, description: What the model sees.
    """

    def __init__(self, agent: Any, name: str, description: str) -> None:
        self.agent, self.name, self.description = agent, name, description


def listed(values: Iterable[Any] | ToolPort | None) -> list[Any]:
    """Returns tools as a list, also those of a ToolPort."""
    if hasattr(values, "execute"):
        port = cast("ToolPort", values)
        return [_PortTool(spec, port) for spec in port.specs()]
    return list(values or ())


def tools(values: Iterable[Any], servers: Mapping[str, Any]) -> list[JsonObject]:
    """Returns `spec.tools`: functions, tools, YAML blocks, agents, and one block for each MCP server."""
    blocks = [_tool_block(one) for one in values]
    return blocks + [{"name": name, "type": "mcp", "server": name} for name in servers]


def _tool_block(value: Any) -> JsonObject:
    if isinstance(value, Mapping):
        return cast("JsonObject", plain(value))
    if isinstance(value, AgentTool):
        block = {"name": value.name, "type": "agent", "agent": value.agent.name}
        return {**block, **({"description": value.description} if value.description else {})}
    if isinstance(value, ToolSource):
        name = getattr(value, "name", "") or type(value).__name__
        return {"name": name, "type": Live("tools", value, name, f"the Python object {name}")}
    tool = as_tool(cast("ToolLike", value))
    policy = plain(tool.policy) if isinstance(tool, FunctionTool) else {}
    name = tool.spec.name
    reference = _reference(tool)
    written = {"type": "internal", "function": reference} if reference else None
    live = Live("tools", tool, name, f"the Python object {name}", written)
    return {"name": name, "type": live, **policy, **_declared_effect(tool)}


def _declared_effect(tool: Tool) -> JsonObject:
    return {"effect": tool.spec.effect} if tool.spec.effect != "read" else {}


def _reference(tool: Tool) -> str:
    """Returns `module:name` of a function that can be imported, else an empty text."""
    function = tool.function if isinstance(tool, FunctionTool) else None
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not name or "<" in name or module in ("", "__main__"):
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found in (function, tool) else ""


class _PortTool:
    """One tool of a ToolPort."""

    def __init__(self, spec: ToolSpec, port: ToolPort) -> None:
        self.spec, self._port = spec, port

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        call = ToolCall(context.call_id, self.spec.name, orjson.dumps(arguments).decode())
        result = await self._port.execute(call, context)
        if not result.ok:
            raise ToolFailed(result.content)
        return result.content if result.value is None else result.value


# -- memory --------------------------------------------------------------------------------------------------

#: what a memory's URL begins with -> the backend
_BACKENDS = {"postgres": "postgres", "postgresql": "postgres", "redis": "redis", "rediss": "redis"}


def memory(value: MemoryLike, store_of: Callable[[str], Live]) -> JsonObject:
    """Returns `spec.memory`.

    Args:
        value: `memory`, `sqlite:PATH`, a URL of PostgreSQL or Redis, or the YAML block.
        store_of: Returns the store in memory of a group, which lives as long as the agent.

    Raises:
        ConfigError: The text names no store.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        blocks: JsonObject = plain(value)
        if blocks and not blocks.keys() & Memory.model_fields.keys():  # one block alone
            blocks = {"conversational": blocks}
        return {part: _memory_block(part, block, store_of) for part, block in blocks.items()}
    kind, _, rest = value.partition(":")
    if value in ("memory", "in_memory"):
        return {"conversational": {"backend": store_of("conversation_stores")}}
    if rest == ":memory:":
        raise ConfigError(f"memory={value!r} is not a file. Pass memory='memory'.")
    if kind == "sqlite" and rest:
        path = rest.removeprefix("//")
        return {"conversational": {"backend": "sqlite", "path": str(Path(path).absolute())}}
    if kind in _BACKENDS:
        return {"conversational": {"backend": _BACKENDS[kind], "url": value}}
    raise ConfigError(
        f"memory={value!r} names no store. Pass 'memory', 'sqlite:PATH', 'postgres://…', 'redis://…' or a "
        "mapping as in YAML."
    )


def _memory_block(part: str, block: Any, store_of: Callable[[str], Live]) -> Any:
    group = {"conversational": "conversation", "semantic": "semantic", "episodic": "episodic"}.get(part)
    if group and isinstance(block, dict) and block.get("backend") == "in_memory":
        return {**block, "backend": store_of(f"{group}_stores")}
    return block


# -- guardrails and budgets ----------------------------------------------------------------------------------


class FunctionRule:
    """A function of the program as a rule.

    Args:
        function: Takes the text. A text that it returns replaces the checked one; False blocks it; None and
            True let it pass.

    Raises:
        ConfigError: The function is async.
    """

    needs_whole_text = True

    def __init__(self, function: Callable[[str], str | bool | None]) -> None:
        self._function = function
        self.type: str = getattr(function, "__name__", "function")
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise ConfigError(f"The function {self.type!r} in guardrails is async. Pass a plain function.")

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        found = self._function(text)
        if found is None or found is True or found == text:
            return None
        if isinstance(found, str):
            return Verdict("redact", found)
        if found is False:
            return Verdict("block", f"{self.type} refused the text.")
        raise ConfigError(
            f"The guardrail {self.type!r} returned {found!r}. Return a text that replaces the checked one, "
            "False to block it, or None."
        )

    def stream(self, context: CheckContext) -> RuleStream:
        """Raises: NotImplementedError: such a rule needs the whole text."""
        raise NotImplementedError(f"{self.type} needs the whole text.")


def guardrails(value: Sequence[GuardrailLike] | Mapping[str, Any], plugins: Plugins) -> JsonObject:
    """Returns `spec.guardrails`. Rules of a list check queries and answers.

    Args:
        value: Rules, or `{"input": rules, "output": rules}`.

    Raises:
        ConfigError: Something is not a rule.
    """
    if isinstance(value, Mapping) and not value.keys() <= Guardrails.model_fields.keys():
        raise ConfigError("guardrails takes a list of rules, or a mapping with the keys input and output.")
    stages = value if isinstance(value, Mapping) else dict.fromkeys(Guardrails.model_fields, value)
    return {stage: [_rule_block(rule, plugins) for rule in rules] for stage, rules in stages.items()}


def _rule_block(rule: Any, plugins: Plugins) -> JsonObject:
    if isinstance(rule, str):
        return {"type": rule}
    if isinstance(rule, Mapping):
        return cast("JsonObject", plain(rule))
    if isinstance(rule, Rule) and _is_installed(rule, plugins):
        return {"type": rule.type, **plain(rule)}
    if not hasattr(rule, "check"):
        if not callable(rule):
            raise ConfigError(f"{rule!r} is not a guardrail. Pass a type, a mapping, a Rule or a function.")
        rule = FunctionRule(rule)
    return {"type": Live("guardrails", rule, rule.type, f"the Python object {rule.type}")}


def _is_installed(rule: Rule, plugins: Plugins) -> bool:
    return rule.type in plugins.names("guardrails") and plugins.load("guardrails", rule.type) is type(rule)


def budgets(limits: Mapping[str, Any] | None) -> JsonObject:
    """Returns `spec.budgets`. Limits without a scope are those of one run."""
    found: JsonObject = plain(limits or {})
    return found if found.keys() & Budgets.model_fields.keys() else {"per_run": found}


# -- the whole -----------------------------------------------------------------------------------------------


#: keys of a manifest whose arguments are plain values
_PLAIN_KEYS = (
    "sessions", "queue", "stream", "on_disconnect", "recording", "client_tools", "overridable", "schedules",
    "callback",
)  # fmt: skip


def output_schema(output_type: Any) -> JsonObject | None:
    """Returns `spec.output_schema` of a type; None for text.

    Raises:
        ConfigError: The type has no JSON Schema.
    """
    if output_type is None or output_type is str:
        return None
    try:
        return OutputSchema(output_type).json_schema
    except (TypeError, NameError, PydanticUserError) as error:
        raise ConfigError(f"output_type cannot be used: {error}") from error


def manifest_of(name: str, spec: JsonObject, keys: AgentKeys) -> JsonObject:
    """Returns the content of an agent's file.

    Args:
        spec: What the named arguments of `Agent` make of `spec`.
        keys: Its further arguments.

    Raises:
        ConfigError: JSON and YAML cannot represent a value.
    """
    metadata = {"name": name, **{key: keys.get(key) for key in ("version", "namespace", "labels")}}
    permissions = keys.get("permissions", {})
    whole = {
        "apiVersion": "astromesh/v1",
        "kind": "Agent",
        "metadata": plain(metadata),
        "spec": {
            "identity": {key: keys.get(key) for key in ("display_name", "description")},
            **spec,
            "permissions": plain(permissions)
            if isinstance(permissions, Mapping)
            else {"tools": plain(list(permissions))},
            "skills": [str(Path(one).absolute()) for one in keys.get("skills", ())],
            **{key: plain(keys.get(key)) for key in _PLAIN_KEYS},
        },
    }
    cleaned: JsonObject = without_empty(whole)
    check_values(cleaned)
    if not isinstance(permissions, Mapping) and not permissions:
        cleaned["spec"]["permissions"] = {"tools": []}
    return cleaned


_GRAPHS = "graphs"


@dataclass(frozen=True)
class Source:
    """What an agent is made of.

    Args:
        manifest: The content of its file, with live objects.
        text: Its YAML file, if it was read from one and nothing has been replaced since.
        servers: Blocks of mcp.yaml by name.
        called: The agents that it may call.
        folder: The configuration folder of its file.
        file, node: Its file as it was read, if nothing has been replaced since.
    """

    name: str
    manifest: JsonObject
    live: LiveParts = NO_LIVE_PARTS
    text: str = ""
    servers: Mapping[str, JsonObject] = field(default_factory=dict)
    called: tuple[Any, ...] = ()
    folder: Path | None = None
    file: Path | None = None
    node: Node | None = None

    def yaml(self, *, strict: bool) -> str:
        """Raises: ConfigError: `strict`, and something cannot be written."""
        return self.text or to_yaml(self.manifest, strict=strict)

    def with_model(self, block: JsonObject) -> Source:
        """Returns the agent with one model in place of all."""
        changed = self._with_spec("model", {"primary": block})
        return replace(changed, live=replace(self.live, is_one_model=True))

    def with_tools(self, blocks: list[JsonObject], agent_tools: Iterable[AgentTool]) -> Source:
        """Returns the agent with other tools."""
        changed = self._with_spec("tools", blocks)
        return replace(changed, called=tuple(one.agent for one in agent_tools), servers={})

    def _with_spec(self, key: str, value: Any) -> Source:
        spec = {**self.manifest.get("spec", {}), key: value}
        return replace(self, manifest={**self.manifest, "spec": spec}, text="", file=None, node=None)

    @property
    def declaration(self) -> Declaration:
        """Returns what a runtime opens. Each live object is a plugin, or a graph, with a name of its own."""
        plugins: dict[str, dict[str, type[Any]]] = {}
        graphs = {}
        names: dict[int, str] = {}
        for _, one in live_objects(self.manifest):
            name = names.setdefault(id(one), self._free_name(one, names.values()))
            if one.group == _GRAPHS:
                graphs[name] = one.value
            elif one.group:
                plugin = one.value if isinstance(one.value, type) else live_plugin(one.value)
                plugins.setdefault(one.group, {})[name] = plugin
        named = replace_live(self.manifest, lambda one: names[id(one)])
        return Declaration(
            self.name,
            self.node or node_from_value(named),
            {name: node_from_value(block) for name, block in self.servers.items()},
            plugins,
            graphs,
            self.live,
            tuple(agent.declaration for agent in self.called),
            self.folder,
            self.file,
        )

    def _free_name(self, one: Live, used_names: Iterable[str]) -> str:
        name, number = f"{self.name}.{one.label}", 1
        while name in used_names:
            number += 1
            name = f"{self.name}.{one.label}-{number}"
        return name

    def require_sound_graphs(self) -> None:
        """Raises: InvalidGraph: a graph of the agent cannot run."""
        for _, one in live_objects(self.manifest):
            if one.group == _GRAPHS and (problems := one.value.validate()):
                raise InvalidGraph(problems)


def source_of_file(path: Path, live: LiveParts) -> Source:
    """Reads the file of an agent.

    A file `FOLDER/agents/NAME.agent.yaml` belongs to the configuration in FOLDER.

    Raises:
        InvalidConfiguration: The file cannot be read, or is not YAML.
    """
    document = read_file(path, os.environ)
    if document.node is None or document.faults:
        raise InvalidConfiguration(document.faults)
    folder = path.absolute().parent
    return Source(
        document.node.text("metadata", "name") or path.name.split(".")[0],
        document.node.value,
        live,
        document.text,
        folder=folder.parent if folder.name == "agents" else None,
        file=path,
        node=document.node,
    )


class SharedStores:
    """Stores in memory of one agent, by group. They live as long as the agent, not as an event loop."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._live: dict[str, Live] = {}

    def live(self, group: str) -> Live:
        """Returns the store of a group for a manifest."""
        if group not in self._live:
            plugin = self._plugins.load(group, "in_memory")
            written = {"backend": "in_memory"}
            stored = _shared_plugin(plugin)
            self._live[group] = Live(group, stored, f"memory.{group}", "a store in memory", written)
        return self._live[group]


def _shared_plugin(plugin: type[Any]) -> type[Any]:
    opened: list[Any] = []

    class SharedStore:
        """Opens the store once; the runtimes of all event loops share it."""

        Options = plugin.Options

        def __init__(self, store: Any) -> None:
            self._store = store

        @classmethod
        async def open(cls, options: Any, deps: Deps) -> Any:
            if not opened:
                opened.append(await plugin.open(options, deps))
            return cls(opened[0])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def close(self) -> None:
            """Does nothing: the next event loop finds the conversations here."""

    return SharedStore


# -- where runs are stored ---------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where an agent stores what its runs leave.

    Args:
        data_dir: A folder; None: `.astromesh`.
        storage_url: `storage.url` of its runtime; empty: a file in the folder.
    """

    data_dir: str | Path | None = None
    storage_url: str = ""


def place_of(store: str | None, data_dir: str | Path | None, owner: object) -> Place:
    """Returns where runs are stored that wait for a person.

    Args:
        store: `memory`, `sqlite:PATH`, or `postgres://…`.
        owner: A store in memory is a folder that is deleted with this object.

    Raises:
        ConfigError: The text names no store.
    """
    if store is None:
        return Place(data_dir)
    kind, _, rest = store.partition(":")
    if store == "memory":
        folder = mkdtemp(prefix="astromesh-")
        weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
        return Place(data_dir or folder, f"sqlite:///{folder}/runs.db")
    if kind == "sqlite" and rest not in ("", ":memory:"):
        return Place(data_dir, f"sqlite:///{Path(rest.removeprefix('//')).absolute()}")
    if kind in ("postgres", "postgresql") and rest:
        return Place(data_dir, store)
    raise ConfigError(f"store={store!r} names no store. Pass 'memory', 'sqlite:PATH', or 'postgres://…'.")
