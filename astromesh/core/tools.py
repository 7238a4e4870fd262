"""The tool registry: which tools an agent sees (step 6) and how it calls them (step 9; document 001).

Every agent has its own `AgentTools`, the `ToolPort` of its runs. The layers of `tools.policies` stand
between a call and the tool; `bind` applies them once. `approval_predicate` compiles the `approval` rules
of a tool: a rule that cannot be evaluated holds, so that a person is asked.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace
from pydantic import ValidationError

from astromesh.config.agent import ApprovalRule, ToolBlock
from astromesh.config.skills import READ_SKILL, SKILL_FILE, Skill
from astromesh.core.templates import STRICT, CompiledTemplate
from astromesh.errors import (
    AgentNotFoundError,
    AstromeshError,
    ConfigError,
    InvalidToolCall,
    TemplateFailed,
    text_of,
)
from astromesh.logs import get_logger
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.text import did_you_mean
from astromesh.tools.base import (
    DeclaredSource,
    DeclaredTool,
    Invoke,
    RateLimit,
    Tool,
    ToolContext,
    ToolPolicy,
    ToolSource,
)
from astromesh.tools.file_root import FileRoot
from astromesh.tools.functions import FunctionTool
from astromesh.tools.json_schema import schema_validator
from astromesh.tools.policies import (
    Layer,
    apply_layers,
    call_layers,
    permission,
)
from astromesh.tools.results import CHARACTERS_PER_TOKEN, LongResults, result_of, unknown_tool
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec

# -- approval rules ----------------------------------------------------------------------------------------

ApprovalPredicate = Callable[[JsonObject], bool]


def approval_predicate(tool: str, rule: ApprovalRule) -> ApprovalPredicate:
    """A predicate that tells whether a person must approve a call, by its arguments.

    Args:
        tool: its name, for errors.

    Raises:
        InvalidManifest: `when` is not an expression.
        ValueError: `arguments` is not a JSON Schema.
    """
    tests = [make(tool, rule) for make in (_expression_predicate, _schema_predicate)]

    def holds(arguments: JsonObject) -> bool:
        return all(test(arguments) for test in tests)

    return holds


def expression_template(when: str) -> str:
    """The template of an expression, whose text is empty if the expression is false."""
    return "{{ 'x' if (" + when + ") else '' }}"


def _expression_predicate(tool: str, rule: ApprovalRule) -> ApprovalPredicate:
    if rule.when is None:
        return _always_holds
    compiled = CompiledTemplate(expression_template(rule.when), f"approval.when of the tool {tool}", STRICT)

    def holds(arguments: JsonObject) -> bool:
        try:
            return bool(compiled.render({**arguments, "arguments": arguments}))
        except TemplateFailed:
            return True

    return holds


def _schema_predicate(_: str, rule: ApprovalRule) -> ApprovalPredicate:
    if rule.arguments is None:
        return _always_holds
    validator = schema_validator(rule.arguments)

    def holds(arguments: JsonObject) -> bool:
        try:
            return bool(validator.is_valid(arguments))
        except ValueError:  # the validator does not support such numbers or depths
            return True

    return holds


def _always_holds(_: JsonObject) -> bool:
    return True


# -- the registry ------------------------------------------------------------------------------------------

_DEFAULT_POLICY = ToolPolicy()
_DECLARATIONS = (DeclaredTool, DeclaredSource)
#: cached views: callers may be offered different tools
_MAX_VIEWS = 64

log = get_logger("astromesh.tools")


def declare_tool(tool: Tool, block: ToolBlock) -> DeclaredTool:
    """A tool as its YAML block declares it; keys that the block omits keep the values of the tool."""
    spec = replace(
        tool.spec,
        name=block.name,
        description=block.description or tool.spec.description,
        parameters=block.parameters or tool.spec.parameters,
        effect=block.effective_effect or tool.spec.effect,
        repeatable=block.idempotency == "key" or tool.spec.repeatable,
    )
    return DeclaredTool(spec, tool, policy_of_block(block))


def policy_of_block(block: ToolBlock) -> ToolPolicy:
    """The policy of a tool from its YAML block, which may declare several tools."""
    limit = block.rate_limit
    return ToolPolicy(
        timeout_seconds=block.deadline_seconds,
        max_result_tokens=block.max_result_tokens or _DEFAULT_POLICY.max_result_tokens,
        max_calls_per_run=block.max_calls_per_run,
        rate_limit=RateLimit(limit.max_calls, limit.window_seconds) if limit else None,
        idempotency=block.idempotency,
        approval="none" if block.approval == "none" else "required",
        approve_if=approval_predicate(block.name, block.approval)
        if isinstance(block.approval, ApprovalRule)
        else None,
        trusted=block.trusted,
    )


def declare_source(source: ToolSource, block: ToolBlock) -> DeclaredSource:
    """The tools of a source, with the YAML block that declares all of them."""
    return DeclaredSource(block.name, source, policy_of_block(block), block.effective_effect)


class ToolRegistry:
    """The tools of all agents.

    Args:
        clock: for rate limits.
        layers: further policies between the checked arguments and the timeout, outermost first.
        long_results: stores results that are too long for a model; None: they are cut.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        layers: Sequence[Layer] = (),
        long_results: LongResults | None = None,
    ) -> None:
        self._clock, self._long_results = clock or SystemClock(), long_results
        self._layers = tuple(layers)
        self._agents: dict[str, AgentTools] = {}

    def bind(
        self,
        agent_name: str,
        tools: Iterable[Tool | DeclaredTool | DeclaredSource],
        permitted: Collection[str] | None = None,
        *,
        approve_if_tainted: bool = False,
    ) -> AgentTools:
        """Gives an agent its tools, replacing those it had.

        Args:
            agent_name: the agent that the tools are for.
            tools: in the order in which models see them.
            permitted: names that `permissions.tools` lists; None: it is absent.
            approve_if_tainted: a person approves calls with an external effect in a turn that has read
                untrusted text.

        Raises:
            ConfigError: two tools of one name, a permitted tool that is not declared, or a broken schema.
        """
        tools = [tool if isinstance(tool, _DECLARATIONS) else DeclaredTool(tool.spec, tool) for tool in tools]
        sources = tuple(one for one in tools if isinstance(one, DeclaredSource))
        own = [one for one in tools if isinstance(one, DeclaredTool)]
        names = [tool.spec.name for tool in own]
        _check_names(agent_name, names, () if sources else permitted)
        layers = call_layers(self._clock, approve_if_tainted=approve_if_tainted, further=self._layers)
        own_layers = (permission(agent_name, permitted), *layers)
        ways = {tool.spec.name: _bind_tool(tool, own_layers) for tool in own}
        specs = [tool.spec for tool in own if permitted is None or tool.spec.name in permitted]
        view = _ToolView(tuple(specs), ways)
        bound = AgentTools(agent_name, view)
        if sources:
            bound = LiveAgentTools(agent_name, view, sources, permitted, layers)
        bound.long_results = self._long_results
        self._agents[agent_name] = bound
        return bound

    def of(self, agent_name: str) -> AgentTools:
        """The tools of an agent.

        Raises:
            AgentNotFoundError: no tools were bound to such an agent.
        """
        if agent_name not in self._agents:
            raise AgentNotFoundError(agent_name)
        return self._agents[agent_name]

    def schemas(self, agent_name: str) -> list[JsonObject]:
        """Step 6: the JSON Schemas of the permitted tools in the OpenAI function-calling form."""
        return [spec.to_function() for spec in self.of(agent_name).specs()]

    async def execute(
        self,
        tool_name: str,
        arguments: str | Mapping[str, Any],
        agent_name: str,
        context: ToolContext | None = None,
    ) -> Any:
        """Step 9 as document 001 writes it: returns the result of the tool, or raises its error.

        Args:
            tool_name: as the model named it.
            arguments: the model's JSON text, or an object.
            agent_name: whose permissions and limits hold.
            context: the run that the call is part of, if any.

        Raises:
            ToolPermissionError, ToolRateLimitError, InvalidToolCall, ToolTimeout, ToolError: the call failed.
        """
        within = context or ToolContext(agent=agent_name, tool=tool_name)
        return await self.of(agent_name).invoke(tool_name, arguments, within)


class _BoundTool(NamedTuple):
    invoke: Invoke
    policy: ToolPolicy
    untrusted: bool


def _bind_tool(tool: DeclaredTool, layers: Sequence[Layer]) -> _BoundTool:
    trusted = tool.spec.trusted if tool.policy.trusted is None else tool.policy.trusted
    return _BoundTool(apply_layers(tool, layers), tool.policy, not trusted)


class _ToolView(NamedTuple):
    """The tools of an agent at one time: the specs that models see, and the bound tools by name."""

    specs: tuple[ToolSpec, ...]
    bound: Mapping[str, _BoundTool]


class AgentTools:
    """A `ToolPort`: the tools of one agent behind its permissions and limits. Made by `ToolRegistry.bind`."""

    __slots__ = ("_own", "agent_name", "long_results")

    #: whether tools may come and go; then `prepare` is awaited before a run
    live: ClassVar[bool] = False

    def __init__(self, agent_name: str, own: _ToolView) -> None:
        self.agent_name = agent_name
        self._own = own
        self.long_results: LongResults | None = None

    def specs(self) -> tuple[ToolSpec, ...]:
        """The permitted tools, in declared order."""
        return self._own.specs

    def missing_tools(self) -> tuple[str, ...]:
        """Sentences that name the missing tools and the reasons."""
        return ()

    async def prepare(self) -> None:
        """Waits, within bounds, for tools that only the current caller is offered."""

    def callers_only_block(self) -> str:
        """The first block of tools that its server lists only to callers with a token; empty: none."""
        return ""

    def _view(self) -> _ToolView:
        return self._own

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Returns exactly one result per call; a failure is a result with `ok=False` and the reason.

        Raises:
            LimitReached: a limit of the run was reached.
        """
        way = self._view().bound.get(call.name)
        limit = (way.policy if way else _DEFAULT_POLICY).max_result_tokens * CHARACTERS_PER_TOKEN
        keep = (
            partial(_store_result, self.long_results, call.id, context)
            if self.long_results is not None
            else None
        )
        untrusted = way is not None and way.untrusted
        return await result_of(call, self.invoke(call.name, call.arguments, context), limit, keep, untrusted)

    async def invoke(self, name: str, arguments: str | Mapping[str, Any], context: ToolContext) -> Any:
        """The result of the tool.

        Raises:
            ToolError: of every kind.
        """
        view = self._view()
        way = view.bound.get(name)
        if way is None:
            raise InvalidToolCall(unknown_tool(name, [spec.name for spec in view.specs]))
        return await way.invoke(arguments, context)


class LiveAgentTools(AgentTools):
    """The tools of an agent whose sources may change their tools, or offer them by caller.

    Args:
        own: fixed tools; they win over tools of sources with the same name.
        permitted: names that `permissions.tools` lists; the name of a source permits all its tools.
        layers: for each tool of a source, outermost first.
    """

    __slots__ = ("_layers", "_permitted", "_sources", "_views")
    live: ClassVar[bool] = True

    def __init__(
        self,
        agent_name: str,
        own: _ToolView,
        sources: tuple[DeclaredSource, ...],
        permitted: Collection[str] | None,
        layers: tuple[Layer, ...],
    ) -> None:
        super().__init__(agent_name, own)
        self._sources, self._permitted, self._layers = sources, permitted, layers
        self._views: deque[tuple[list[tuple[Tool, ...]], _ToolView]] = deque(maxlen=_MAX_VIEWS)

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._view().specs

    def missing_tools(self) -> tuple[str, ...]:
        return tuple(reason for one in self._sources if (reason := one.source.missing()))

    async def prepare(self) -> None:
        await asyncio.gather(*(one.source.prepare() for one in self._sources))

    def callers_only_block(self) -> str:
        return next((one.name for one in self._sources if one.source.for_callers_only), "")

    def _view(self) -> _ToolView:
        offered = [one.source.current() for one in self._sources]
        for seen, view in self._views:
            if all(map(operator.is_, seen, offered)):
                return view
        view = self._build()
        self._views.appendleft((offered, view))
        return view

    def _build(self) -> _ToolView:
        specs, ways = list(self._own.specs), dict(self._own.bound)
        for source in self._sources:
            for tool in source.declared():
                name = tool.spec.name
                if not self._permits(source.name, name):
                    continue
                if name in ways:
                    log.warning("tool_left_out", agent=self.agent_name, tool=name, reason="its name is taken")
                    continue
                try:
                    ways[name] = _bind_tool(tool, self._layers)
                except ConfigError as error:  # its schema is not a JSON Schema
                    log.warning("tool_left_out", agent=self.agent_name, tool=name, reason=str(error))
                    continue
                specs.append(tool.spec)
        return _ToolView(tuple(specs), ways)

    def _permits(self, source: str, name: str) -> bool:
        return self._permitted is None or name in self._permitted or source in self._permitted


def _store_result(cache: LongResults, call_id: str, context: ToolContext, text: str) -> str:
    owner = (context.caller.user_id if context.caller else "") or "anonymous"
    return cache.add(context.run_id, call_id, text, context.session, owner)


def _check_names(agent_name: str, names: Sequence[str], permitted: Collection[str] | None) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"The agent {agent_name!r} has two tools named {twice[0]!r}.")
    missing = sorted(set(permitted or ()) - set(names))
    if missing:
        raise ConfigError(
            f"The agent {agent_name!r} permits the undeclared tool {missing[0]!r}. "
            f"Declared: {', '.join(names) or 'none'}."
        )


def declared(tool: FunctionTool[..., object]) -> DeclaredTool:
    """Returns a tool with the policy of its keys.

    Raises:
        ConfigError: a key has a value that it cannot have.
    """
    name = tool.spec.name
    keys = {**tool.policy, "name": name, "type": "internal", "effect": tool.spec.effect}
    try:
        return declare_tool(tool, ToolBlock.model_validate(keys))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"The keys of the tool {name!r} are not valid: {faults}") from error
    except (AstromeshError, ValueError) as error:  # of a rule for approvals
        raise ConfigError(f"The approval of the tool {name!r} is not valid: {text_of(error)}") from error


# -- Agent Skills --------------------------------------------------------------------------------------------
#
# They come in three levels: names and descriptions in the prompt, instructions and files on request (Agent
# Skills specification, agentskills.io, "Progressive disclosure"). Nothing of a skill is run: a script is a
# file that the model can read. What it shall call is a tool of the agent.

#: bytes of one file, and files that the instructions are followed by
_MAX_BYTES, _MAX_FILES = 1_048_576, 100
#: files beyond these are not looked for
_MAX_WALKED = 1000
_INTRODUCTION = f"""## Skills

A skill has instructions for one kind of work. If a description fits the task, read the skill with the tool
{READ_SKILL} first, and follow it. Scripts of skills cannot be run; only your tools can."""


def skills_prompt(skills: Mapping[str, Skill]) -> str:
    """Returns the part of a system prompt that names the skills of an agent; empty without skills."""
    if not skills:
        return ""
    listed = "\n".join(
        f"<skill>\n<name>{escape(one.name)}</name>\n"
        f"<description>{escape(one.description)}</description>\n</skill>"
        for one in skills.values()
    )
    return f"{_INTRODUCTION}\n\n<available_skills>\n{listed}\n</available_skills>"


def read_skill_tool(skills: Mapping[str, Skill]) -> FunctionTool:
    """Returns the tool by which a model reads the instructions and the files of skills."""
    roots = {name: FileRoot(one.folder, _MAX_BYTES) for name, one in skills.items()}

    async def read_skill(name: str, path: str = SKILL_FILE) -> str:
        """Reads the instructions of a skill, or one of its files.

        Args:
            name: one of the available skills
            path: a file of the skill, e.g. references/guide.md; absent: the instructions
        """
        skill = skills.get(name)
        if skill is None:
            raise InvalidToolCall(f"There is no skill {name[:64]!r}. {did_you_mean(name, skills)}".strip())
        if path == SKILL_FILE:
            return skill.instructions + await asyncio.to_thread(_files_note, skill.folder)
        return await roots[name].read(path)

    tool = FunctionTool(read_skill)
    tool.spec = replace(tool.spec, trusted=True)
    return tool


def _files_note(folder: Path) -> str:
    files = sorted(islice(_other_files(folder), _MAX_WALKED))
    if not files:
        return ""
    count = "many" if len(files) == _MAX_WALKED else len(files) - _MAX_FILES
    more = f"\n… and {count} more" if len(files) > _MAX_FILES else ""
    return "\n\nFiles of this skill:\n" + "\n".join(f"- {one}" for one in files[:_MAX_FILES]) + more


def _other_files(folder: Path) -> Iterator[str]:
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(names):
            path = (Path(above) / name).relative_to(folder).as_posix()
            if path != SKILL_FILE and not name.startswith("."):
                yield path
