"""Renders what an agent's templates say: its system prompt (document 001, step 5), and context transforms.

A context transform is a template of a JSON object between two agents. Text of a model can only become a
value. While the template renders, every expression writes a mark. Then the marks are replaced: inside quotes
by text, elsewhere by a JSON value. So `{"customer": "{{ customer_id }}", "items": {{ items }}}` keeps its
shape whatever the arguments hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from operator import itemgetter
from time import gmtime, strftime
from typing import Any

import orjson
from jinja2 import ChainableUndefined, Undefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from astromesh.config.base import UnprovidedName
from astromesh.core.template_limits import written
from astromesh.core.templates import CompiledTemplate, Sandbox, check_template
from astromesh.errors import ConfigError, TemplateFailed, ToolFailed
from astromesh.plugins import Transform
from astromesh.text import did_you_mean
from astromesh.types import JsonObject, MemoryContext

__all__ = [
    "RESERVED_NAMES", "PromptEngine", "PromptTemplate", "check_template", "current_date", "unprovided_names",
]  # fmt: skip

#: names of document 001, and `context` of requests; `prompts.variables` and requests cannot set them
RESERVED_NAMES = frozenset(
    {
        "agent_name",
        "description",
        "conversation_history",
        "semantic_context",
        "episodic_events",
        "current_date",
        "context",
    }
)
#: reserved names whose values differ between runs
_OF_RUNS = frozenset({"conversation_history", "semantic_context", "episodic_events", "context"})
#: the variable for the metadata of a run
METADATA = "metadata"
_DAY = 86_400
_NO_CONTEXT: Mapping[str, Any] = {}


class PromptEngine:
    """Compiles the prompt of each agent once, at bootstrap."""

    def register(
        self,
        agent_name: str,
        system: str,
        *,
        description: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> PromptTemplate:
        """The system prompt of an agent.

        Args:
            system: Jinja2 text (`prompts.system`).
            variables: `prompts.variables`.

        Raises:
            ConfigError: the text is not a template, or a variable has a reserved name.
        """
        own = sorted(RESERVED_NAMES & (variables or {}).keys())
        if own:
            raise ConfigError(
                f"prompts.variables cannot set {', '.join(own)}: the name is reserved. Choose another name."
            )
        known = {**(variables or {}), "agent_name": agent_name, "description": description}
        return PromptTemplate(CompiledTemplate(system, f"The system prompt of {agent_name!r}"), known)


class PromptTemplate:
    """One agent's system prompt.

    Args:
        known: values that are the same in all runs.
    """

    __slots__ = ("_compiled", "_dated", "_free", "_known", "_needs", "_plain", "_varies")

    def __init__(self, compiled: CompiledTemplate, known: Mapping[str, Any]) -> None:
        needs = compiled.names
        self._compiled = compiled
        self._needs = needs
        self._known = {name: value for name, value in known.items() if name in needs}
        self._dated = "current_date" in needs
        #: names whose values only the context of a request can have
        self._free = tuple(
            name for name in needs if name not in RESERVED_NAMES and name not in known and name[0] != "_"
        )
        #: whether it uses anything that differs between runs, except the date
        self._varies = bool(self._free or needs & _OF_RUNS)
        #: the text if nothing but the date varies, and its date
        self._plain = ("", "")

    @property
    def free_names(self) -> tuple[str, ...]:
        """The names whose values only the context of a request, or its metadata, can have."""
        return self._free

    def render(
        self,
        memory: MemoryContext,
        context: Mapping[str, Any] = _NO_CONTEXT,
        now: float = 0.0,
        metadata: Mapping[str, Any] = _NO_CONTEXT,
    ) -> str:
        """The system message of a run.

        Args:
            context: the request's own variables.
            now: seconds since the epoch.
            metadata: of the run, the variable `metadata`, unless another variable has this name.

        Raises:
            TemplateFailed: an expression fails on these values.
        """
        date = current_date(now) if self._dated else "-"
        if self._varies and (varying := self._varying(memory, context, metadata)):
            return self._compiled.render({**self._known, "current_date": date, **varying})
        if self._plain[0] != date:
            self._plain = (date, self._compiled.render({**self._known, "current_date": date}))
        return self._plain[1]

    def _varying(
        self, memory: MemoryContext, context: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The values of this run, without empty ones, which render as missing values do."""
        varying: dict[str, Any] = {}
        needs = self._needs
        if memory.conversation_history and "conversation_history" in needs:
            varying["conversation_history"] = memory.conversation_history
        if memory.semantic_results and "semantic_context" in needs:
            varying["semantic_context"] = memory.semantic_results
        if memory.episodic_events and "episodic_events" in needs:
            varying["episodic_events"] = memory.episodic_events
        if context:
            if "context" in needs:
                varying["context"] = context
            for name in self._free:
                if name in context:
                    varying[name] = context[name]
        if metadata and METADATA in self._free:
            varying.setdefault(METADATA, metadata)
        return varying


def unprovided_names(system: str, variables: Collection[str]) -> list[UnprovidedName]:
    """Returns the variables of a system prompt that only the context of a request can provide.

    Leaves out variables that the template expects to be missing: in a condition, or with a `default`.

    Args:
        variables: names of `prompts.variables`.
    """
    known = {*RESERVED_NAMES, METADATA, *variables}
    missing = CompiledTemplate(system, "The system prompt").unconditional_names()
    return [
        UnprovidedName(name, line, did_you_mean(name, known))
        for name, line in sorted(missing.items(), key=itemgetter(1))
        if name not in known
    ]


def current_date(now: float) -> str:
    """The day in UTC, as 2026-01-31. Without the time of day prompts stay the same, and caches hit."""
    return _day(int(now // _DAY))


@lru_cache(maxsize=4)
def _day(day: int) -> str:
    return strftime("%Y-%m-%d", gmtime(day * _DAY))


MAX_CONTEXT = 100_000

_VALUES = "_values"
# the marks are from Unicode's private use area
_MARK = re.compile("\ue000(\\d+)\ue001")
_STRING_OR_MARK = re.compile('"(?:[^"\\\\]|\\\\.)*"|' + _MARK.pattern, re.DOTALL)


def compile_transform(template: str) -> Transform:
    """A function from the arguments of a tool call to the context of the nested run.

    The template reads each argument by its name, and all of them as `arguments`.

    Args:
        template: Jinja2 text that renders to a JSON object.

    Raises:
        ConfigError: the template is invalid, or cannot render to a JSON object.
    """
    compiled = CompiledTemplate(template, "context_transform", _SANDBOX)
    if not template.strip().startswith("{"):
        raise ConfigError("context_transform must be the template of a JSON object, which starts with '{'.")

    def transform(arguments: Mapping[str, Any]) -> JsonObject:
        values: list[Any] = []
        try:
            text = compiled.render({**arguments, "arguments": dict(arguments), _VALUES: values})
            return _read(_filled(text, values))
        except (TemplateFailed, orjson.JSONEncodeError) as error:
            raise ToolFailed(f"context_transform: {error}") from error

    return transform


@pass_context
def _mark(context: Context, value: Any) -> Any:
    """Replaces the result of an expression by a mark; Jinja2 calls it for every expression."""
    written(context, value)
    if isinstance(value, Markup):  # a result of `tojson` is JSON already
        return value
    values = context[_VALUES]
    values.append(None if isinstance(value, Undefined) else value)
    return f"\ue000{len(values) - 1}\ue001"


def _filled(text: str, values: list[Any]) -> str:
    def fill(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _json(values[int(match[1])])
        return _MARK.sub(lambda mark: _json(_text(values[int(mark[1])]))[1:-1], match[0])

    return _STRING_OR_MARK.sub(fill, text)


def _text(value: Any) -> str:
    """A value inside quotes; a missing value is empty, as everywhere in templates."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _read(text: str) -> JsonObject:
    if len(text) > MAX_CONTEXT:
        raise ToolFailed(f"context_transform rendered more than {MAX_CONTEXT} characters.")
    try:
        context = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ToolFailed(f"context_transform rendered invalid JSON: {error}") from error
    if not isinstance(context, dict):
        raise ToolFailed("context_transform must render a JSON object.")
    return context


@pass_context
def _to_json(context: Context, value: Any, indent: int | None = None) -> Markup:
    return Markup(_text_of_json(context, value, indent))  # noqa: S704 - marks what is JSON already


_SANDBOX = Sandbox(finalize=_mark)
_SANDBOX.undefined = ChainableUndefined
_text_of_json = _SANDBOX.filters["tojson"]
_SANDBOX.filters["tojson"] = _to_json
