"""Rules over the arguments of a tool call: which calls a person must approve.

A rule that cannot be answered holds: nothing happens unasked because a rule was not written for it.
"""

from __future__ import annotations

from collections.abc import Callable

from astromesh.config.agent import ApprovalRule
from astromesh.core.templates import Compiled
from astromesh.errors import TemplateFailed
from astromesh.node.json_schemas import schema_validator
from astromesh.types import JsonObject

Rule = Callable[[JsonObject], bool]


def rule_of(tool: str, rule: ApprovalRule) -> Rule:
    """Whether a call is one that the rule names.

    Args:
        tool: its name, for errors.

    Raises:
        InvalidManifest: `when` is no expression.
        ValueError: `arguments` is no JSON Schema.
    """
    tests = [make(tool, rule) for make in (_expression, _schema)]

    def holds(arguments: JsonObject) -> bool:
        return all(test(arguments) for test in tests)

    return holds


def template_of(when: str) -> str:
    """The template of an expression: empty where it does not hold."""
    return "{{ 'x' if (" + when + ") else '' }}"


def _expression(tool: str, rule: ApprovalRule) -> Rule:
    if rule.when is None:
        return _always
    compiled = Compiled(template_of(rule.when), f"approval.when of the tool {tool}", strict=True)

    def holds(arguments: JsonObject) -> bool:
        try:
            return bool(compiled.render({**arguments, "arguments": arguments}))
        except TemplateFailed:
            return True

    return holds


def _schema(_: str, rule: ApprovalRule) -> Rule:
    if rule.arguments is None:
        return _always
    validator = schema_validator(rule.arguments)

    def holds(arguments: JsonObject) -> bool:
        try:
            return bool(validator.is_valid(arguments))
        except ValueError:  # numbers and depths that a validator cannot take
            return True

    return holds


def _always(_: JsonObject) -> bool:
    return True
