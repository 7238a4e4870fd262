"""The rules that decide which text of the model is sent to listeners. This module has all of them.

When a graph is compiled, `audibility_in_graph` gives each node a level:

    STREAMED       every path leads straight to the end: the node streams token by token
    WHEN_COMPLETE  the answer, unless the node fails: sent once it is complete, without text beside tool calls
    INTERMEDIATE   another node follows: the text is the node's own and not the answer
    INTERNAL       a node that runs this one makes something else of its text
    HIDDEN         a guard or a human may still refuse the text: no listener hears it

During a run, `visible_part` applies the level to each model call. An answer that was not streamed is sent at
the end of the run. `AnswerSteps` names the steps of role `assistant` whose sent text is not the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import chain
from typing import Any, TypeAlias, cast

from astromesh.graph.calls import ASSISTANT
from astromesh.graph.flags import NodeFlag
from astromesh.graph.records import END
from astromesh.graph.topology import GraphView, branch_nodes, is_graph, may_refuse, reachable, targets
from astromesh.graph.transitions import ERROR_KEY, OnError, OnGuardFail, OnToolCall
from astromesh.telemetry.events import COMMENTARY
from astromesh.types import CompletionResult, Event


class Audibility(IntEnum):
    """The text of a node's model calls that is sent to listeners. A higher level sends less."""

    STREAMED = 0
    WHEN_COMPLETE = 1
    INTERMEDIATE = 2
    INTERNAL = 3
    HIDDEN = 4


#: Returns the part of an answer that listeners may see.
VisibleText: TypeAlias = Callable[[CompletionResult], str]

# -- one model call ----------------------------------------------------------------------------------------


def visible_part(
    audibility: Audibility, role: str, name: str, visible_text: VisibleText | None
) -> tuple[str, VisibleText | None]:
    """Returns the role that events report for a model call, and the part of its answer that they show.

    Args:
        role: The role in which the node asks.
        name: The node's name. It replaces the role `assistant` where the text is not the answer.
        visible_text: The part that the node itself has chosen, or None.
    """
    if audibility is Audibility.HIDDEN:
        return (name if role == ASSISTANT else role), _nothing
    if role != ASSISTANT or audibility is Audibility.STREAMED:
        return role, visible_text
    if audibility is Audibility.INTERNAL:
        return name, visible_text
    if visible_text is not None:
        return role, visible_text
    return (role, _text_without_calls) if audibility is Audibility.WHEN_COMPLETE else (name, None)


def _nothing(result: CompletionResult) -> str:
    return ""


def _text_without_calls(result: CompletionResult) -> str:
    return "" if result.tool_calls else result.content


# -- what of the sent text is the answer -------------------------------------------------------------------


class AnswerSteps:
    """The steps of role `assistant` whose sent text may still be the answer of a run.

    A step leaves when its text turns out to be something else: it stands beside tool calls, another step
    follows, or the answer has other words. Listeners then get `model.commentary`. At the end, what they have
    of the other steps is the answer.
    """

    __slots__ = ("_emit", "_texts")

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        #: by step, what returns the text that listeners have of it
        self._texts: dict[int, Callable[[], str]] = {}

    def add(self, step: int, text: Callable[[], str]) -> None:
        """Adds a step. Args: text: returns what listeners have of it."""
        self._texts[step] = text

    def begin(self, step: int) -> None:
        """Begins a step, possibly once more after a crash: the text of those before it is not the answer."""
        self._texts.pop(step, None)
        for before in [one for one in self._texts if one < step]:
            self.set_aside(before)

    def set_aside(self, step: int) -> None:
        """Removes a step, and tells listeners that have text of it."""
        text = self._texts.pop(step, None)
        if text is not None and text():
            self._emit(COMMENTARY, step=step)

    def forget(self, step: int) -> None:
        """Removes a step of which listeners have nothing."""
        self._texts.pop(step, None)

    def settle(self, answer: str) -> bool:
        """Removes all steps but the newest one whose text is the answer. Returns whether there is one."""
        found = next((one for one in sorted(self._texts, reverse=True) if self._texts[one]() == answer), None)
        for step in [one for one in self._texts if one != found]:
            self.set_aside(step)
        return found is not None

    @property
    def newest_text(self) -> str:
        """The text of the newest step."""
        return self._texts[max(self._texts)]() if self._texts else ""


class AnswerText:
    """Finds the text of the answer among the events of a run, for readers who cannot take text back.

    The text of a step that offers tools waits for its end, because text beside tool calls is not part of the
    answer. Call `of` with every event of the run.
    """

    def __init__(self) -> None:
        #: deltas that wait, by step
        self._pending: dict[int, list[str]] = {}
        #: steps that offer no tools, whose text leaves at once
        self._open_steps: set[int] = set()

    def of(self, event: Event) -> Iterable[str]:
        """Returns the texts that leave with an event."""
        make = getattr(self, "_" + event.type.replace(".", "_"), None)
        return make(event) if make else ()

    def is_sent(self, step: int) -> bool:
        """Whether the text of a step leaves at once."""
        return step in self._open_steps

    def discard(self) -> None:
        """Drops the text that waits."""
        self._pending.clear()

    def rest(self) -> Iterable[str]:
        """Returns the text that still waits when the run ends."""
        pending, self._pending = self._pending, {}
        return chain.from_iterable(pending.values())

    def _model_started(self, event: Event) -> Iterable[str]:
        if event.data["role"] == ASSISTANT and not event.data.get("tools"):
            self._open_steps.add(event.data["step"])
        return ()

    def _model_delta(self, event: Event) -> Iterable[str]:
        if event.data["role"] != ASSISTANT:
            return ()
        step, content = event.data["step"], event.data["content"]
        if step in self._open_steps:
            return (content,)
        self._pending.setdefault(step, []).append(content)
        return ()

    def _model_finished(self, event: Event) -> Iterable[str]:
        if event.data["tool_calls"]:
            return ()
        return self._pending.pop(event.data["step"], ())

    def _model_commentary(self, event: Event) -> Iterable[str]:
        """Drops the text of a step, as far as it waits here."""
        self._pending.pop(event.data["step"], None)
        return ()

    _model_restarted = _model_commentary


# -- the level of each node, when a graph is compiled ------------------------------------------------------


class AudibilityMap:
    """The levels of nodes and graphs. One that is used in several places has the highest of its levels.

    The keys are identities. The map keeps the objects alive: nodes may create their children anew each time.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, Audibility]] = {}

    def get(self, part: object) -> Audibility:
        """Returns the level of a node or graph. An unknown one is INTERNAL."""
        return self._found.get(id(part), (None, Audibility.INTERNAL))[1]

    def restrict(self, part: object, audibility: Audibility) -> bool:
        """Raises a level. Returns False if the known level is at least as high."""
        if (known := self._found.get(id(part))) is not None and known[1] >= audibility:
            return False
        self._found[id(part)] = (part, audibility)
        return True


def audibility_in_graph(graph: GraphView, least: Audibility = Audibility.STREAMED) -> AudibilityMap:
    """Returns the levels of all nodes of a graph, nested ones included.

    Args:
        least: The level of the node that runs the graph. No level inside is lower.
    """
    found = AudibilityMap()
    _classify_graph(graph, least, found)
    return found


def audibility_in_node(node: Any, least: Audibility) -> AudibilityMap:
    """Returns the levels of a node that another node runs, and of everything inside it."""
    found = AudibilityMap()
    _classify_node(node, Audibility.STREAMED, least, found)
    return found


def nodes_before_guards(graph: GraphView) -> frozenset[str]:
    """Returns the nodes that a guard or a human follows. Their output is not an answer before it has run."""
    return frozenset(
        name for name in graph.nodes if _refused_later(graph, targets(graph, name) - {END, name})
    )


def _classify_graph(graph: GraphView, least: Audibility, found: AudibilityMap) -> None:
    found.restrict(graph, least)
    if graph.mode != "autonomous":
        for node in graph.nodes.values():
            _classify_node(node, _by_targets(graph, node), least, found)
        return
    guarded = any(map(may_refuse, graph.nodes.values()))
    for node in graph.nodes.values():
        unguarded = Audibility.STREAMED if node.is_terminal else Audibility.INTERNAL
        _classify_node(node, Audibility.HIDDEN if guarded else unguarded, least, found)


def _classify_node(node: Any, by_place: Audibility, least: Audibility, found: AudibilityMap) -> None:
    own = max(by_place, _by_keywords(node))
    if node.decides_streaming and own < Audibility.HIDDEN:
        own = Audibility.STREAMED
    audibility = max(own, least)
    if not found.restrict(node, audibility):
        return
    inside = Audibility.INTERNAL if audibility is Audibility.INTERMEDIATE else audibility
    children = tuple(node.children())
    guarded = any(may_refuse(child) for child in children if not is_graph(child))
    for child in children:
        level = max(inside, Audibility.STREAMED if node.streams_child(child) else Audibility.INTERNAL)
        if is_graph(child):
            _classify_graph(cast(GraphView, child), level, found)
        else:
            _classify_node(child, Audibility.STREAMED, Audibility.HIDDEN if guarded else level, found)


_OUTPUT_CHANGING_FLAGS = frozenset({NodeFlag.SUMMARIZE_OUTPUT, NodeFlag.VALIDATE_OUTPUT})


def _by_keywords(node: Any) -> Audibility:
    if node.guards:
        return Audibility.HIDDEN
    if node.postprocessor or _OUTPUT_CHANGING_FLAGS & node.flags:
        return Audibility.INTERMEDIATE
    return Audibility.WHEN_COMPLETE if NodeFlag.RETRYABLE in node.flags else Audibility.STREAMED


def _by_targets(graph: GraphView, node: Any) -> Audibility:
    after_calls, after_failure, after_answer = (names - {END} for names in _targets_by_outcome(graph, node))
    if graph.forks and node.name in branch_nodes(graph):
        after_answer |= {node.name}  # others may answer at the same time
    if _refused_later(graph, after_answer | after_failure):
        return Audibility.HIDDEN
    if after_answer:
        return Audibility.INTERMEDIATE
    if after_failure or _refused_later(graph, after_calls):
        return Audibility.WHEN_COMPLETE
    return Audibility.STREAMED


def _targets_by_outcome(graph: GraphView, node: Any) -> Iterator[set[str]]:
    """Yields where a node leads after tool calls, after a failure, and after an answer."""
    edges = graph.get_edges_from(node.name)
    yield {e.target for e in edges if isinstance(e.condition, OnToolCall)}
    yield {
        *(e.target for e in edges if isinstance(e.condition, OnError)),
        *(t for key, t in node.transitions.items() if key == ERROR_KEY),
    }
    no_answer = (OnToolCall, OnError) if node.guards else (OnToolCall, OnError, OnGuardFail)
    yield {
        *(e.target for e in edges if not isinstance(e.condition, no_answer)),
        *(t for key, t in node.transitions.items() if key != ERROR_KEY),
        *node.routes,
        *(graph.forks[node.name].targets if node.name in graph.forks else ()),
        node.default_next or END,
    }


def _refused_later(graph: GraphView, starts: set[str]) -> bool:
    """Whether a guard or a human stands on a path from these nodes on."""
    ahead = reachable(starts, lambda name: targets(graph, name))
    return any(name in graph.nodes and may_refuse(graph.nodes[name]) for name in ahead)
