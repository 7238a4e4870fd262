"""Scopes: what a caller may do, and whose runs and sessions it may see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from astromesh.errors import Forbidden, InvalidInput
from astromesh.text import did_you_mean
from astromesh.types import CallerContext


class Viewer(NamedTuple):
    """Whose data a caller sees. `owner` None: everybody's in the tenant."""

    tenant: str
    owner: str | None


#: scopes that open the sessions of others in the same tenant
ANY_SESSION = frozenset({"admin", "sessions:any", "sessions:*"})


def principal_of(caller: CallerContext | None) -> tuple[str, str]:
    """Returns the tenant and the owner of what this caller starts."""
    return (caller or CallerContext()).principal


RUN = "agents:run"
#: answers to questions without assignees
DECIDE = "runs:decide"
#: a `priority` before that of the agent
PRIORITY = "runs:priority"
ADMIN = "admin"
#: scope → what it allows. `FAMILY:*` is every scope of a family, `agents:run:NAME` runs of one agent,
#: `runs:decide:GROUP` answers to questions with this assignee.
SCOPES: Mapping[str, str] = {
    RUN: "run agents",
    "agents:read": "list and describe agents, models and providers",
    "agents:manifest": "read the manifests of agents, prompts included",
    "runs:read": "list and follow one's own runs",
    "runs:write": "cancel one's own runs, rate them",
    PRIORITY: "let one's own runs begin before others of their agent",
    DECIDE: "decide for one's own runs and Tasks that wait for a person",
    "sessions:read": "list one's own sessions and read their history",
    "sessions:write": "erase one's own sessions",
    "sessions:any": "all of that for the sessions and runs of others in the same tenant",
    "tools:read": "list tools with their schemas",
    "rag:query": "search knowledge pipelines",
    "rag:write": "add documents to knowledge pipelines, replace and remove them",
    "workflows:run": "run workflows",
    "workflows:read": "list workflows, read and follow one's own Tasks",
    "workflows:write": "cancel, pause, step and replay one's own Tasks",
    "evaluations:read": "read the datasets and the reports of evaluations",
    "evaluations:write": "make cases of one's own runs",
    "traces:read": "read the traces of one's own runs",
    "metrics:read": "read the metrics",
    "audit:read": "read the audit log of one's tenant",
    ADMIN: "everything",
}
#: scopes with a name of one's own: runs of one agent, questions to one group
_NAMED = (RUN + ":", DECIDE + ":")
#: the scopes of a key that names none: all that an application needs for its own users
DEFAULT_SCOPES = (
    RUN, "agents:read", "runs:read", "runs:write", DECIDE, "sessions:read", "sessions:write",
    "tools:read", "traces:read", "workflows:run", "workflows:read", "workflows:write",
)  # fmt: skip


def permits(granted: Collection[str], scope: str, resource: str = "") -> bool:
    """Whether scopes cover a scope: literally, by `family:*`, for one resource, or as `admin`."""
    if ADMIN in granted or scope in granted or f"{scope.partition(':')[0]}:*" in granted:
        return True
    return bool(resource) and f"{scope}:{resource}" in granted


def missing_scope(scope: str) -> Forbidden:
    return Forbidden(f"This request needs the scope {scope!r}, which your key or token does not have.")


def require_scope(granted: Collection[str], scope: str, resource: str = "") -> None:
    """Raises: Forbidden: the scopes do not cover it."""
    if not permits(granted, scope, resource):
        raise missing_scope(f"{scope}:{resource}" if resource else scope)


def permits_any(granted: Collection[str], scope: str) -> bool:
    """Whether scopes cover a scope for at least one resource."""
    return permits(granted, scope) or any(own.startswith(scope + ":") for own in granted)


def limit_to_agents(scopes: Iterable[str], agents: Collection[str]) -> frozenset[str]:
    """Returns the scopes of a key. If agents are named, the key can run only these.

    Raises:
        InvalidInput: a scope does not exist, or allows more than the named agents.
    """
    requested = frozenset(scopes) or frozenset(DEFAULT_SCOPES)
    for scope in sorted(requested):
        _check_scope(scope)
    if not agents:
        return requested
    limited = requested - {RUN}
    if permits(limited, RUN):
        broad = ", ".join(sorted(limited & {ADMIN, "agents:*"}))
        raise InvalidInput(f"The scope {broad} can run every agent. Omit the scope or omit the agents.")
    return limited | {f"{RUN}:{name}" for name in agents}


def _check_scope(scope: str) -> None:
    family, _, rest = scope.partition(":")
    if scope in SCOPES or any(scope.startswith(one) and scope != one for one in _NAMED):
        return
    if rest == "*" and any(known.startswith(family + ":") for known in SCOPES):
        return
    hint = did_you_mean(scope, SCOPES) or f"Known: {', '.join(SCOPES)}."
    raise InvalidInput(f"There is no scope {scope!r}. {hint}")
