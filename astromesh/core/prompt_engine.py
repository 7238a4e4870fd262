"""Step 5: renders the system prompt of an agent for a run (document 001)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from operator import itemgetter
from time import gmtime, strftime
from typing import Any

from astromesh.config.base import UnprovidedName
from astromesh.core.templates import CompiledTemplate, check_template
from astromesh.errors import ConfigError
from astromesh.text import did_you_mean
from astromesh.types import MemoryContext

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
