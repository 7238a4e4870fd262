"""The base of every node: its keywords, its flags, and `execute`."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict, Unpack

from astromesh.graph.config import Graph, Node, NodeConfig
from astromesh.graph.flags import NodeFlag
from astromesh.graph.keywords import check, check_name
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState

Routing = Literal["", "edges_only"]


class NodeKeywords(TypedDict, total=False):
    """The keywords that every node takes.

    Args:
        instructions: the node's own part of the system prompt.
        description: one line for those who choose among nodes; the beginning of the instructions by default.
        blocks, strategy, perspective: parts of the prompt of a PromptNode; see their modules.
        preprocessor: function of `(state[, config])`, before the node does anything.
        postprocessor: function of `(output[, state[, config]])`: what it answers is the node's output.
        guards: functions of `(output[, state])` or `Guard`s, that look at the final output.
        tools: `Tool` objects, or names of tools of the engine.
        inject_tools: all tools of the engine, the same as the flag INJECT_TOOLS.
        tool_loop: whether a step that asked for tools is entered again (else edges `on_tool_call` decide).
        input_keys: names in the context that the node reads.
        output_key: name in the context that the engine writes the output to.
        inherit_context_from: name of a node whose output stands in the prompt.
        output_schema: pydantic model, dataclass, TypedDict or JSON Schema of the output.
        model_override: a model of its own: a ModelPort, or the name of one of the agent's roles.
        transitions: target by key: an output text, a true field of an output, or `error`.
        default_next: where to go when nothing else matches.
        routes: targets that the model may name, beside those of edges and transitions.
        routing: `edges_only` ignores what the model says about where to go and how to change the graph.
        timeout: seconds for one execution, or None; then it is cancelled.
        pure: its output depends on its declared inputs alone: a cached result needs no messages in its key.
        max_iterations: its own visits, or its attempts under RETRYABLE; None for the engine's limit, or 3.
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
    flags: Iterable[Hashable]
    is_entry: bool
    is_terminal: bool
    transitions: Mapping[Any, str]
    default_next: str
    routes: Iterable[str]
    routing: Routing
    timeout: float | None
    pure: bool
    max_iterations: int | None


DEFAULTS: NodeKeywords = {
    "instructions": "",
    "description": "",
    "blocks": (),
    "strategy": None,
    "perspective": None,
    "preprocessor": None,
    "postprocessor": None,
    "guards": (),
    "tools": (),
    "inject_tools": False,
    "tool_loop": True,
    "input_keys": (),
    "output_key": "",
    "inherit_context_from": "",
    "output_schema": None,
    "model_override": None,
    "flags": (),
    "is_entry": False,
    "is_terminal": False,
    "transitions": {},
    "default_next": "",
    "routes": (),
    "routing": "",
    "timeout": None,
    "pure": False,
    "max_iterations": None,
}


#: keywords for what only a PromptNode asks its model
ASKING = frozenset({"blocks", "strategy", "perspective"})
#: these, and what else means nothing to a node that asks no model and calls no tools
WITHOUT_MODEL = ASKING | {"tools", "inject_tools", "tool_loop", "model_override"}


class BaseNode:
    """A step of a graph. Subclasses implement `execute`; a run never changes a node.

    Args:
        name: unique in its graph, and part of paths and of context keys: no `/`.
        keywords: see `NodeKeywords`.

    Raises:
        TypeError: an unknown keyword, or one of a wrong kind.
        ValueError: an empty name, one with `/`, or a keyword out of its range.
    """

    #: flags that every node of this class has, beside those it is given
    default_flags: ClassVar[frozenset[Hashable]] = frozenset()
    #: never skipped because a model says so, never replaced or bypassed by a graph action (guards, humans)
    protected: ClassVar[bool] = False
    #: it knows itself which of its words are the answer, whatever comes behind it; guards hold all the same
    own_voice: ClassVar[bool] = False
    #: what `execute` sees to of preprocessor, guards and postprocessor; for the rest the engine does
    handles: ClassVar[frozenset[str]] = frozenset()
    #: keywords that mean nothing to this class: giving them is a problem of the graph
    ignores: ClassVar[frozenset[str]] = frozenset()
    #: arguments of the class's constructor beside the keywords, in the order in which YAML writes them
    own: ClassVar[tuple[str, ...]] = ()

    name: str
    instructions: str
    description: str
    blocks: tuple[Any, ...]
    strategy: Any
    perspective: Any
    preprocessor: Callable[..., Any] | None
    postprocessor: Callable[..., Any] | None
    guards: tuple[Any, ...]
    tools: tuple[Any, ...]
    inject_tools: bool
    tool_loop: bool
    input_keys: tuple[str, ...]
    output_key: str
    inherit_context_from: str
    output_schema: Any
    model_override: Any
    flags: frozenset[Hashable]
    is_entry: bool
    is_terminal: bool
    transitions: dict[Any, str]
    default_next: str
    routes: tuple[str, ...]
    routing: Routing
    timeout: float | None
    pure: bool
    max_iterations: int | None

    def __init__(self, name: str, **keywords: Unpack[NodeKeywords]) -> None:
        check_name(name)
        self.name = name
        for key in keywords.keys() - DEFAULTS.keys():
            near = difflib.get_close_matches(key, DEFAULTS, 1)
            raise TypeError(
                f"Node {name!r} has no keyword {key!r}." + (f" Did you mean {near[0]!r}?" if near else "")
            )
        check(name, keywords)
        for key, value in (DEFAULTS | keywords).items():
            setattr(self, key, value)
        for key in ("blocks", "guards", "tools", "input_keys", "routes"):
            setattr(self, key, tuple(getattr(self, key)))
        self.transitions = dict(self.transitions)
        self._settle_flags()

    def _settle_flags(self) -> None:
        flags = self.default_flags | frozenset(self.flags)
        for flag, key in _FLAG_OF_KEYWORD:
            if getattr(self, key):
                flags |= {flag}
            setattr(self, key, flag in flags)
        self.flags = flags

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        """Does the node's work once.

        What it raises becomes a failed result. It may read and append to `state` directly; its output and
        `messages_added` are written by the engine. Children are run by `config.run` and `config.together`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute().")

    def children(self) -> Iterable[Node | Graph]:
        """The nodes and graphs that this one runs itself: they are compiled with it, checked and drawn."""
        return ()

    def lets_speak(self, child: Node | Graph) -> bool:
        """Whether a child's answer may be the node's own as it was said: then it streams like one."""
        return False

    def meaningless(self) -> Iterable[str]:
        """Keywords that were given and mean nothing to this node."""
        return sorted(key for key in self.ignores if getattr(self, key) != DEFAULTS[key])  # type: ignore[literal-required]

    def problems(self) -> Iterable[str]:
        """What is wrong with the node by itself, for `PromptGraph.validate`; subclasses add theirs."""
        return ()

    def body(self) -> Callable[..., Awaitable[Any]]:
        """What the engine awaits for one execution, asked for once, when the graph is compiled."""
        return self.execute

    def given(self, key: str) -> Any:
        """The value that the constructor took for a keyword or one of `own`, for YAML."""
        return getattr(self, key)

    def has_flag(self, flag: Hashable) -> bool:
        return flag in self.flags

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


_FLAG_OF_KEYWORD = (
    (NodeFlag.ENTRY, "is_entry"),
    (NodeFlag.TERMINAL, "is_terminal"),
    (NodeFlag.INJECT_TOOLS, "inject_tools"),
)
