"""Names in the context that are the engine's own: no node's `output_key` is one of them."""

from __future__ import annotations

#: the node that waits for a person, the ticket of what is to be decided, and decisions by their tickets
AWAITING_HUMAN, HUMAN_TICKET, HUMAN_DECISIONS = "_awaiting_human", "_human_ticket", "_human_decisions"
#: where a node finds why its last try failed
RETRY_ERROR = "_retry_error"
#: results of CACHEABLE nodes by what they read
NODE_CACHE = "_node_cache"

OWN_KEYS = frozenset({AWAITING_HUMAN, HUMAN_TICKET, HUMAN_DECISIONS, RETRY_ERROR, NODE_CACHE})
