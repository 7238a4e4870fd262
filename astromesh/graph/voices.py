"""The speech of every node of a graph, decided when it is compiled: pure functions of its ways and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

from astromesh.graph.base import BaseNode
from astromesh.graph.edges import OnError, OnGuardFail, OnToolCall
from astromesh.graph.flags import NodeFlag
from astromesh.graph.records import END
from astromesh.graph.speech import Speech
from astromesh.graph.transitions import ERROR_KEY
from astromesh.graph.ways import Drawn, reachable, refuses, targets


class Spoken(Drawn, Protocol):
    """What of a graph is looked at here."""

    @property
    def mode(self) -> str: ...


class Voices:
    """What may be heard of nodes and graphs; of one that stands in several places as much as in the quietest.

    It goes by identity, so it keeps what it knows: nodes may make their children anew each time.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, Speech]] = {}

    def of(self, one: object) -> Speech:
        """The speech of a node or graph; of one that is not known the most careful that needs no guard."""
        return self._found.get(id(one), (None, Speech.INWARD))[1]

    def lowers(self, one: object, speech: Speech) -> bool:
        """Takes a speech down; whether it says more than what was known."""
        if (known := self._found.get(id(one))) is not None and known[1] >= speech:
            return False
        self._found[id(one)] = (one, speech)
        return True


def speeches(graph: Spoken, ceiling: Speech = Speech.FREE) -> Voices:
    """The speech of every node in a graph, nested ones too.

    Args:
        ceiling: of the node that runs the graph.
    """
    found = Voices()
    _graph(graph, ceiling, found)
    return found


def speeches_of_child(node: BaseNode, ceiling: Speech) -> Voices:
    """The same for a node that another one runs."""
    found = Voices()
    _node(node, Speech.FREE, ceiling, found)
    return found


def _graph(graph: Spoken, ceiling: Speech, found: Voices) -> None:
    """A graph's own entry is the ceiling that it stands under."""
    found.lowers(graph, ceiling)
    if graph.mode == "autonomous":
        guarded = any(map(refuses, graph.nodes.values()))
        for node in graph.nodes.values():
            free = Speech.FREE if node.is_terminal else Speech.INWARD
            _node(node, Speech.SILENT if guarded else free, ceiling, found)
        return
    for node in graph.nodes.values():
        _node(node, _by_ways(graph, node), ceiling, found)


def _node(node: BaseNode, placed: Speech, ceiling: Speech, found: Voices) -> None:
    own = max(placed, _by_itself(node))
    if node.own_voice and own < Speech.SILENT:
        own = Speech.FREE
    speech = max(own, ceiling)
    if not found.lowers(node, speech):
        return
    below = Speech.INWARD if speech is Speech.FOLLOWED else speech
    children = tuple(node.children())
    nodes = [child for child in children if isinstance(child, BaseNode)]
    guarded = any(map(refuses, nodes))
    for child in nodes:
        quiet = Speech.FREE if node.lets_speak(child) else Speech.INWARD
        _node(child, Speech.FREE, max(below, Speech.SILENT if guarded else quiet), found)
    for graph in children:
        if not isinstance(graph, BaseNode):
            quiet = Speech.FREE if node.lets_speak(graph) else Speech.INWARD
            _graph(cast(Spoken, graph), max(below, quiet), found)


_CHANGING = frozenset({NodeFlag.SUMMARIZE_OUTPUT, NodeFlag.VALIDATE_OUTPUT})


def _by_itself(node: BaseNode) -> Speech:
    if node.guards:
        return Speech.SILENT
    if node.postprocessor or _CHANGING & node.flags:
        return Speech.FOLLOWED
    return Speech.WHOLE if NodeFlag.RETRYABLE in node.flags else Speech.FREE


def awaiting(graph: Spoken) -> frozenset[str]:
    """The nodes behind which a guard or a human comes: what they say is no answer before it had its say."""
    return frozenset(
        name for name in graph.nodes if _refused_behind(graph, set(targets(graph, name)) - {END, name})
    )


def _by_ways(graph: Spoken, node: BaseNode) -> Speech:
    called, failed, said = (set(ways) - {END} for ways in _ways(graph, node))
    if _refused_behind(graph, said | failed):
        return Speech.SILENT
    if said:
        return Speech.FOLLOWED
    return Speech.WHOLE if failed or _refused_behind(graph, called) else Speech.FREE


def _ways(graph: Spoken, node: BaseNode) -> Iterator[set[str]]:
    """Where a node leads: when it asked for tools, when it failed, when it has spoken."""
    edges = graph.get_edges_from(node.name)
    yield {e.target for e in edges if isinstance(e.condition, OnToolCall)}
    yield {
        *(e.target for e in edges if isinstance(e.condition, OnError)),
        *(t for key, t in node.transitions.items() if key == ERROR_KEY),
    }
    apart = (OnToolCall, OnError) if node.guards else (OnToolCall, OnError, OnGuardFail)
    yield {
        *(e.target for e in edges if not isinstance(e.condition, apart)),
        *(t for key, t in node.transitions.items() if key != ERROR_KEY),
        *node.routes,
        node.default_next or END,
    }


def _refused_behind(graph: Spoken, starts: set[str]) -> bool:
    behind = reachable(starts, lambda name: targets(graph, name))
    return any(name in graph.nodes and refuses(graph.nodes[name]) for name in behind)
