"""The arguments of agents and runs that are passed by name, for type checkers and editors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from astromesh.agents.arguments import GuardrailLike, MemoryLike, PatternLike
from astromesh.agents.attachments import Attachment
from astromesh.agents.manifest import AgentKeys
from astromesh.errors import ConfigError
from astromesh.graph.base import BaseNode
from astromesh.plugins import Plugins
from astromesh.runtime.declarations import SystemPrompt
from astromesh.tools.base import ToolPort
from astromesh.types import CallerContext, Message

OnError = Literal["raise", "return"]
Word = Literal["approve", "deny", "answer"]


class RunKeys(TypedDict, total=False):
    """What a run may take beside its message and `deps`."""

    #: The conversation: it is stored in the agent's memory. Without one nothing is stored.
    session_id: str | None
    #: The conversation by hand, e.g. `result.messages` of the turn before; it replaces the stored one.
    history: Sequence[Message | Mapping[str, Any]] | None
    #: Images and files for the model.
    attachments: Sequence[Attachment]
    #: Variables of the prompt template.
    context: Mapping[str, Any] | None
    #: Who is calling; tools see it.
    caller: CallerContext | None
    #: Stored with the run; the model does not see it.
    metadata: Mapping[str, Any] | None
    #: Whether a failed run raises its error, or returns a result that has it. None: as the agent says.
    on_error: OnError | None


class DecisionKeys(TypedDict, total=False):
    """What `Agent.resume` may take beside the decision and `deps`."""

    #: In place of those of an approved call.
    arguments: Mapping[str, Any] | None
    #: The value for the decision `answer`.
    answer: Any
    #: The id of the question. None: the oldest one.
    question: str | None
    #: Who decides. None: the local anonymous one, who has started runs without a caller.
    caller: CallerContext | None
    #: As in a run.
    on_error: OnError | None


class AllKeys(AgentKeys, total=False):
    """Every argument of `Agent` whose type does not depend on that of another one."""

    name: str
    system: str | SystemPrompt
    tools: Iterable[Any] | ToolPort | None
    servers: Mapping[str, Mapping[str, Any]] | None
    pattern: PatternLike
    node_pool: Sequence[BaseNode] | None
    memory: MemoryLike
    guardrails: Sequence[GuardrailLike] | Mapping[str, Any]
    budgets: Mapping[str, Any] | None
    on_error: OnError
    plugins: Plugins | None
    data_dir: str | Path | None
    store: str | None


def check_on_error(value: OnError | None) -> None:
    """Raises: ConfigError: It is neither `raise` nor `return`."""
    if value not in (None, "raise", "return"):
        raise ConfigError(f"on_error={value!r} is neither 'raise' nor 'return'.")


def check_names(given: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raises: TypeError: An argument has another name."""
    names = [*known]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise TypeError(f"{owner} has no argument `{name}`.{hint}")
