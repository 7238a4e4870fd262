"""The 18 node flags of document 002. Any other hashable value may be a flag too."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum


class NodeFlag(Enum):
    """A capability or behaviour that a node declares. The value is its name in YAML."""

    ENTRY = "entry"
    TERMINAL = "terminal"
    CRITICAL = "critical"
    SKIP_ON_ERROR = "skip_on_error"
    RETRYABLE = "retryable"
    REQUIRES_HUMAN = "requires_human"
    NO_HISTORY = "no_history"
    ISOLATED_CONTEXT = "isolated_context"
    CACHEABLE = "cacheable"
    INJECT_TOOLS = "inject_tools"
    LIGHTWEIGHT = "lightweight"
    OBSERVABLE = "observable"
    VERBOSE = "verbose"
    SUMMARIZE_OUTPUT = "summarize_output"
    VALIDATE_OUTPUT = "validate_output"
    READONLY = "readonly"
    STATEFUL = "stateful"
    PARALLEL_SAFE = "parallel_safe"


#: The bit of each flag in a compiled node's mask.
BIT: dict[NodeFlag, int] = {flag: 1 << place for place, flag in enumerate(NodeFlag)}


def mask(flags: Iterable[Hashable]) -> int:
    """Returns the known flags as bits. Custom flags have none: hooks check them with `node.has_flag`."""
    bits = 0
    for flag in flags:
        if isinstance(flag, NodeFlag):
            bits |= BIT[flag]
    return bits
