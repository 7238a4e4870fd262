"""Whether a policy allows something: explicit deny, then allow, then the default (workflow.md E57). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from astromesh.config.workflow.operations import PolicySpec


class PolicyQuestion(NamedTuple):
    """What a node asks for: tool, context, memory layer (`store`), agent, or to run at all (`node`)."""

    target: str
    target_id: str
    node: str


def denial(policies: Iterable[PolicySpec], asked: PolicyQuestion) -> str:
    """Why it is denied, or an empty text."""
    allowed, by_default = False, ""
    for policy in policies:
        for rule in policy.rules:
            if rule.target != asked.target or rule.target_id not in ("*", asked.target_id):
                continue
            if rule.nodes and asked.node not in rule.nodes:
                continue
            if rule.action == "deny":
                reason = f": {rule.reason}" if rule.reason else ""
                return f"The policy {policy.name!r} denies {asked.target} {asked.target_id!r}{reason}."
            allowed = True
        if policy.default == "deny":
            by_default = (
                f"The policy {policy.name!r} allows {asked.target} {asked.target_id!r} to nobody it names."
            )
    return "" if allowed else by_default
