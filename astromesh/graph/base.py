"""The base class of nodes: keywords, flags, and `execute`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, TypedDict, Unpack

from astromesh.graph.flags import NodeFlag
from astromesh.graph.node_config import Graph, Node, NodeConfig
from astromesh.graph.policies import CachePolicy, RetryPolicy, as_policies, as_policy, policy_to_json
from astromesh.graph.records import NodeResult
from astromesh.graph.scope import NodeEffect
from astromesh.graph.state import NO_RESTORES, GraphState, Restore
from astromesh.graph.validation import check_keywords, check_name
from astromesh.text import did_you_mean
from astromesh.tools.toolbox import CompiledTools

Routing = Literal["", "edges_only"]
Join: TypeAlias = Literal["all", "any"] | int


class NodeKeywords(TypedDict, total=False):
    """The keywords that every node takes.

    Args:
        instructions: The node's own part of the system prompt.
        description: One line for those who choose among nodes. The default is the start of the instructions.
        blocks, strategy, perspective: Parts of the prompt of a PromptNode. See `nodes.system_prompt`.
        preprocessor: A function of `(state[, config])`, called before the node does anything.
        postprocessor: A function of `(output[, state[, config]])` that returns the output of the node.
        guards: Functions of `(output[, state])`, or `Guard`s, that check the final output.
        tools: `Tool` objects, or names of the engine's tools.
        inject_tools: Adds all tools of the engine, as the flag INJECT_TOOLS does.
        tool_loop: Whether a step with tool calls is entered again. Otherwise edges `on_tool_call` decide.
        input_keys: Names in the context that the node reads.
        output_key: The name in the context to which the engine writes the output, unless that is None.
        inherit_context_from: The name of a node whose output becomes part of the prompt.
        output_schema: A pydantic model, dataclass, TypedDict or JSON Schema of the output.
        model_override: The node's own model: `provider:name`, a ModelPort, an async function of the
            CompletionRequest, or the name of one of the agent's roles.
        parameters: Of its model calls: `{"temperature": 0}`. They come before those of the model.
        transitions: Targets by key: an output text, a true field of an output, or `error`.
        default_next: The target if nothing else matches.
        routes: Targets that the model may name, beside those of edges and transitions.
        routing: `edges_only`: the text of the model neither chooses the next node nor changes the graph.
        join: What the node waits for if several branches of a fork reach it. `all`: every one that can still
            reach it. `any`, or a number: the first, or so many. The others that can reach it are cancelled.
        timeout: Seconds for one execution, which is then cancelled, or None.
        retry: Other attempts after a failure: a number of attempts, a RetryPolicy, or several of them, of
            which the first one counts that covers the failure. It brings the flag RETRYABLE.
        cache: Seconds for which a result is used again by all runs of the engine, and of others with its
            store; or a CachePolicy.
        pure: The output depends on the declared inputs alone, so that the key of a cached result needs no
            messages.
        max_iterations: The node's own limit of visits, or of attempts under RETRYABLE. The default is the
            engine's limit, or 3.
    """

    instructions: str
    description: str
    blocks: Sequence[Any]
    strategy: Any
    perspective: Any
    preprocessor: Callable[..., Any] | None
    postprocessor: Callable[..., Any] | None
    guards: Sequence[Any]
    tools: Sequence[Any]
    inject_tools: bool
    tool_loop: bool
    input_keys: Sequence[str]
    output_key: str
    inherit_context_from: str
    output_schema: Any
    model_override: Any
    parameters: Mapping[str, Any]
    flags: Iterable[Hashable]
    is_entry: bool
    is_terminal: bool
    transitions: Mapping[Any, str]
    default_next: str
    routes: Iterable[str]
    routing: Routing
    join: Join
    timeout: float | None
    retry: Any
    cache: Any
    pure: bool
    max_iterations: int | None


#: Keywords that only a PromptNode uses.
PROMPT_KEYWORDS = frozenset({"blocks", "strategy", "perspective"})
#: Keywords that a node without model and tools does not use.
MODEL_KEYWORDS = PROMPT_KEYWORDS | {"tools", "inject_tools", "tool_loop", "model_override", "parameters"}


class BaseNode:
    """A step of a graph. Subclasses implement `execute`. A run never changes a node.

    Args:
        name: Unique in its graph. It is part of paths and of context keys, and contains no `/`.
        keywords: See `NodeKeywords`.

    Raises:
        TypeError: A keyword is unknown or has a wrong type.
        ValueError: The name is empty or contains `/`, or a keyword is out of range.
    """

    #: Flags of every node of this class, beside those that are passed.
    default_flags: ClassVar[frozenset[Hashable]] = frozenset()
    #: Whether no model can skip it and no graph action can replace or bypass it (guards, humans).
    protected: ClassVar[bool] = False
    #: Whether the node itself decides which of its text streams, whatever node follows. Guards still apply.
    decides_streaming: ClassVar[bool] = False
    #: What the node does to the world by itself, beside calls of the run's model and tools. See FunctionNode.
    effect: NodeEffect = "read"
    #: Those of preprocessor, guards and postprocessor that `execute` applies. The engine applies the others.
    handles: ClassVar[frozenset[str]] = frozenset()
    #: Keywords that this class does not use. Passing one is a problem of the graph.
    ignores: ClassVar[frozenset[str]] = frozenset()
    #: Constructor arguments beside the keywords, in the order in which YAML writes them.
    constructor_keys: ClassVar[tuple[str, ...]] = ()
    #: Objects that the nodes of its graph share, by their keys in the context: a resumed run makes each of
    #: its JSON.
    restores: ClassVar[Mapping[str, Restore]] = NO_RESTORES

    name: str
    instructions: str = ""
    description: str = ""
    blocks: tuple[Any, ...] = ()
    strategy: Any = None
    perspective: Any = None
    preprocessor: Callable[..., Any] | None = None
    postprocessor: Callable[..., Any] | None = None
    guards: tuple[Any, ...] = ()
    tools: tuple[Any, ...] = ()
    inject_tools: bool = False
    tool_loop: bool = True
    input_keys: tuple[str, ...] = ()
    output_key: str = ""
    inherit_context_from: str = ""
    output_schema: Any = None
    model_override: Any = None
    parameters: Mapping[str, Any] = MappingProxyType({})
    flags: frozenset[Hashable] = frozenset()
    is_entry: bool = False
    is_terminal: bool = False
    transitions: Mapping[Any, str] = MappingProxyType({})
    default_next: str = ""
    routes: tuple[str, ...] = ()
    routing: Routing = ""
    join: Join = "all"
    timeout: float | None = None
    retry: tuple[RetryPolicy, ...] = ()
    cache: CachePolicy | None = None
    pure: bool = False
    max_iterations: int | None = None
    _own_routes: tuple[str, ...] = ()

    def __init__(self, name: str, **keywords: Unpack[NodeKeywords]) -> None:
        check_name(name)
        self.name = name
        for key in keywords.keys() - DEFAULTS.keys():
            raise TypeError(f"Node {name!r} has no keyword `{key}`. {did_you_mean(key, DEFAULTS)}".rstrip())
        check_keywords(name, keywords)
        passed: dict[str, Any] = {**keywords}
        if "retry" in passed:
            passed["retry"] = as_policies(f"Node {name!r}", passed["retry"])
        if "cache" in passed:
            passed["cache"] = as_policy(f"Node {name!r}", passed["cache"])
        for key, value in passed.items():
            setattr(self, key, tuple(value) if key in _TUPLES else value)
        self.transitions = dict(self.transitions)
        flags = self.default_flags | frozenset(self.flags)
        if self.retry:
            flags |= {NodeFlag.RETRYABLE}
        for flag, key in _FLAG_OF_KEYWORD:
            if getattr(self, key):
                flags |= {flag}
            setattr(self, key, flag in flags)
        self.flags = flags
        #: Those of `tools` that are no names.
        self.own_tools = CompiledTools(tool for tool in self.tools if not isinstance(tool, str))

    def add_routes(self, *targets: str) -> None:
        """Declares targets that the node itself chooses, so that they are checked and drawn."""
        self._own_routes = tuple(filter(None, targets))
        self.routes += self._own_routes

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        """Does the node's work once.

        An exception becomes a failed result. The method may read `state` and append to it directly. The
        engine writes the output and `messages_added`. Run children with `config.run` and `config.together`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no execute(). Write `async def execute(self, state, config)`."
        )

    def children(self) -> Iterable[Node | Graph]:
        """Returns the nodes and graphs that this node runs. They are compiled, checked and drawn with it."""
        return ()

    def streams_child(self, child: Node | Graph) -> bool:
        """Whether a child's answer may become the node's own without a change. Then it streams like one."""
        return False

    def ignored_keywords(self) -> Iterable[str]:
        """Returns the keywords that were passed and that this node does not use."""
        return sorted(key for key in self.ignores if getattr(self, key) != DEFAULTS[key])

    def problems(self) -> Iterable[str]:
        """Returns what is wrong with the node by itself, for `PromptGraph.validate`.

        Subclasses add their own.
        """
        return ()

    def body(self) -> Callable[..., Awaitable[Any]]:
        """Returns what the engine awaits for one execution.

        The engine asks once, when it compiles the graph.
        """
        return self.execute

    def constructor_value(self, key: str) -> Any:
        """Returns the value that the constructor took for a keyword or a constructor key, for YAML."""
        if key == "routes":
            return self.routes[: len(self.routes) - len(self._own_routes)]
        if key == "retry" and self.retry:
            return [policy.to_json() for policy in self.retry]
        if key == "cache" and self.cache is not None:
            return policy_to_json(self.cache)
        return getattr(self, key)

    def has_flag(self, flag: Hashable) -> bool:
        return flag in self.flags

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


#: The keywords of every node with their defaults.
DEFAULTS: Mapping[str, Any] = {key: getattr(BaseNode, key) for key in NodeKeywords.__annotations__}
_TUPLES = frozenset(key for key, value in DEFAULTS.items() if value == ())
_FLAG_OF_KEYWORD = (
    (NodeFlag.ENTRY, "is_entry"),
    (NodeFlag.TERMINAL, "is_terminal"),
    (NodeFlag.INJECT_TOOLS, "inject_tools"),
)
