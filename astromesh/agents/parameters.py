"""What programs pass to agents and runs by name, for type checkers and editors; images and files."""

from __future__ import annotations

import asyncio
import mimetypes
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, cast

from astromesh.agents.arguments import GuardrailLike, MemoryLike, PatternLike
from astromesh.agents.manifest import AgentKeys
from astromesh.errors import AstromeshError, ConfigError, InvalidInput
from astromesh.graph.base import BaseNode
from astromesh.graph.graph import PromptGraph
from astromesh.plugins import Plugins
from astromesh.runtime.agent import SystemPrompt
from astromesh.text import did_you_mean
from astromesh.tools.base import ToolPort
from astromesh.types import Attachment, CallerContext, Image, Message


class File(NamedTuple):
    """A file in memory.

    Args:
        name: Its name; the ending says what it holds.
        data: Its content.
        media_type: e.g. `text/csv`. Empty: as the ending of the name says.
    """

    name: str
    data: bytes
    media_type: str = ""


#: a path, a URL, an `Image`, or a `File`
AttachmentLike: TypeAlias = "str | Path | Image | File"


async def read_attachments(attachments: Sequence[AttachmentLike]) -> tuple[Attachment, ...]:
    """Returns attachments as records. Files are read; URLs are fetched when the run starts.

    Raises:
        InvalidInput: A file cannot be read, or an Image is empty.
    """
    if not attachments:
        return ()
    return await asyncio.to_thread(lambda: tuple(map(_attachment, attachments)))


def _attachment(one: AttachmentLike) -> Attachment:
    if isinstance(one, Attachment):
        if not (one.url or one.data):
            raise InvalidInput("An Image among the attachments has neither a `url` nor `data`.")
        return one
    if isinstance(one, str) and one.startswith(("http://", "https://", "data:")):
        return Attachment(url=one, media_type="")
    file = one if isinstance(one, File) else _read(Path(one))
    kind = file.media_type or mimetypes.guess_type(file.name)[0] or ""
    return Attachment(data=b64encode(file.data).decode(), media_type=kind, name=file.name)


def _read(path: Path) -> File:
    try:
        return File(path.name, path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"The attachment {path} cannot be read: {error.strerror or error}.") from error


OnError = Literal["raise", "return"]
Word = Literal["approve", "deny", "answer"]


class RunKeys(TypedDict, total=False):
    """What a run may take beside its message and `deps`."""

    #: The conversation: it is stored in the agent's memory. Without one nothing is stored.
    session_id: str | None
    #: The conversation by hand, e.g. `result.messages` of the turn before; it replaces the stored one.
    history: Sequence[Message | Mapping[str, Any]] | None
    #: Images and files for the model.
    attachments: Sequence[AttachmentLike]
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


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(isinstance(one, kinds) for one in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_attachment(value: Any) -> bool:
    if isinstance(value, File):
        name, data, _ = cast("tuple[Any, ...]", value)
        return isinstance(name, str) and isinstance(data, bytes)
    return isinstance(value, str | Path | Image)


Rules = Mapping[str, tuple[Callable[[Any], bool], str]]

#: By argument of an agent: whether a value other than None may be one, and what it must be.
AGENT_RULES: Rules = {
    "system": (lambda value: isinstance(value, str) or callable(value), "a text or a function"),
    "tools": (
        lambda value: (
            hasattr(value, "execute")
            or (isinstance(value, Iterable) and not isinstance(value, str | Mapping))
        ),
        "a list of tools, or a ToolPort",
    ),
    "servers": (
        lambda value: isinstance(value, Mapping) and all(map(_is_mapping, value.values())),
        "a mapping of names to blocks as in mcp.yaml",
    ),
    "pattern": (
        lambda value: isinstance(value, str | PromptGraph | Mapping),
        "the name of a pattern, a PromptGraph, or a mapping as in YAML",
    ),
    "node_pool": (
        lambda value: bool(value) and _is_list_of(BaseNode)(value),
        "a list of at least one node",
    ),
    "memory": (
        lambda value: isinstance(value, str | Mapping),
        "'memory', 'sqlite:PATH', 'postgres://…', 'redis://…' or a mapping as in YAML",
    ),
    "guardrails": (
        lambda value: isinstance(value, list | tuple | Mapping),
        "a list of rules, or a mapping with the keys input and output",
    ),
    "budgets": (_is_mapping, "a mapping of limits, e.g. {'cost_usd': 0.10}"),
    "roles": (_is_mapping, "a mapping of roles to models"),
    "variables": (_is_mapping, "a mapping of names to JSON values"),
    "permissions": (
        lambda value: isinstance(value, list | tuple | set | frozenset | Mapping),
        "a list of tools, or a mapping as in YAML",
    ),
    "plugins": (lambda value: isinstance(value, Plugins), "Plugins"),
    "data_dir": (lambda value: isinstance(value, str | Path), "a path"),
    "store": (_is_text, "'memory', 'sqlite:PATH' or 'postgres://…'"),
}

#: The same by argument of a run.
RUN_RULES: Rules = {
    "session_id": (_is_text, "a text"),
    "history": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping),
        "a list of messages, e.g. `result.messages`",
    ),
    "attachments": (
        lambda value: isinstance(value, list | tuple) and all(map(_is_attachment, value)),
        "a list of paths, URLs, Images and Files with bytes",
    ),
    "context": (_is_mapping, "a mapping"),
    "caller": (lambda value: isinstance(value, CallerContext), "a CallerContext"),
    "arguments": (_is_mapping, "a mapping"),
    "metadata": (_is_mapping, "a mapping of names to JSON values"),
}


def check_agent(name: Any, arguments: Mapping[str, Any]) -> None:
    """Raises: ConfigError: An argument of an agent is of another kind."""
    if not (isinstance(name, str) and name):
        raise ConfigError(f"name={name!r} is not a name: pass a text.")
    if arguments["guardrails"] is None:
        raise ConfigError(f"guardrails=None is not {AGENT_RULES['guardrails'][1]}.")
    _check(AGENT_RULES, arguments, ConfigError)


def check_run(arguments: Mapping[str, Any]) -> None:
    """Raises: InvalidInput: An argument of a run is of another kind."""
    _check(RUN_RULES, arguments, InvalidInput)


def check_resume(run_id: Any, decision: Any, keys: Mapping[str, Any]) -> None:
    """Raises: InvalidInput: An argument of `resume` is of another kind."""
    for name, value in (("run_id", run_id), ("decision", decision)):
        if not isinstance(value, str):
            raise InvalidInput(f"{name}={value!r} is not a text.")
    check_run(keys)


def _check(rules: Rules, arguments: Mapping[str, Any], error: type[AstromeshError]) -> None:
    for name, value in arguments.items():
        if name in rules and value is not None and not rules[name][0](value):
            raise error(f"{name}={value!r} is not {rules[name][1]}.")


def check_on_error(value: OnError | None) -> None:
    """Raises: ConfigError: It is neither `raise` nor `return`."""
    if value not in (None, "raise", "return"):
        raise ConfigError(f"on_error={value!r} is neither 'raise' nor 'return'.")


def check_names(given: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raises: TypeError: An argument has another name."""
    names = [*known]
    for name in given:
        if name not in names:
            raise TypeError(f"{owner} has no argument `{name}`. {did_you_mean(name, names)}".rstrip())
