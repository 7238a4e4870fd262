"""Tools of a workflow: tools.yaml as tools, and what one stage may call of them (workflow.md E46)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

import orjson

from astromesh.abc.deps import Deps
from astromesh.abc.own_tasks import OwnTasks
from astromesh.abc.python_calls import PythonCalls
from astromesh.abc.threads import Threads
from astromesh.abc.tool import Tool, ToolContext
from astromesh.config.workflow.agents import BuiltinTool, PythonTool
from astromesh.config.workflow.operations import PolicySpec
from astromesh.graph.output_schema import OutputSchema
from astromesh.node.scope import Scope
from astromesh.node.toolbox import ToolBox
from astromesh.plugins import Plugins
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec
from astromesh.workflow.faults import StageFault
from astromesh.workflow.policy import PolicyQuestion, denial
from astromesh.workflow.project import Project
from astromesh.workflow.references import load_operation

#: operations and tools that are no coroutines block; they have threads of their own
CALLS = PythonCalls(Threads(16, "astromesh-op"), OwnTasks())
_CALLS = UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
#: codes of results that are the caller's misuse, not the tool's own failure
MISUSE = frozenset({"invalid_tool_call", "tool_not_permitted", "tool_rate_limited"})
_ANY = {"type": "object"}


class PythonFunction:
    """`type: python`: a function called with the arguments; sync ones run in a thread."""

    def __init__(
        self, spec: ToolSpec, function: Callable[..., Any], answer: Mapping[str, Any] | None
    ) -> None:
        self.spec, self._function = spec, function
        self._answer = OutputSchema(dict(answer)) if answer else None

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        result = await called(self._function, **arguments)
        return result if self._answer is None else self._answer.validate(result)


async def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A function's answer, wherever it has to run."""
    name = getattr(function, "__name__", type(function).__name__)
    is_async = inspect.iscoroutinefunction(function)
    return await CALLS.call(function, named, name, is_async=is_async, places=arguments)


async def open_tools(project: Project, plugins: Plugins, deps: Deps) -> dict[str, Tool]:
    """Every tool of tools.yaml, by id."""
    return {spec.id: await _open(project, spec, plugins, deps) for spec in project.tools.tools}


async def _open(project: Project, spec: PythonTool | BuiltinTool, plugins: Plugins, deps: Deps) -> Tool:
    arguments = project.schema(spec.schema_in) or _ANY
    as_seen = ToolSpec(spec.id, spec.description or spec.id, arguments, spec.effect)
    if isinstance(spec, PythonTool):
        function = load_operation(project.folder, spec.entrypoint)
        return PythonFunction(as_seen, function, project.schema(spec.schema_out))
    options = dict(spec.options)
    for key in ("root", "allow_network", "allow_shell"):
        if key in spec.model_fields_set:
            options[key] = getattr(spec, key)
    tool: Tool = await plugins.open("tools", spec.type, options, deps)
    return _Renamed(tool, as_seen if spec.schema_in else None, spec.id)


class _Renamed:
    """A tool under the id that tools.yaml gives it."""

    def __init__(self, tool: Tool, spec: ToolSpec | None, name: str) -> None:
        own = tool.spec
        self.spec = spec or ToolSpec(name, own.description, own.parameters, own.effect)
        self._tool = tool

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return await self._tool.call(arguments, context)


class StagePort:
    """The tools of one execution of a stage, with the policy in front and its calls on record. A `ToolPort`.

    A misuse, or a failure where `tool_on_error: fail`, ends the stage: `fault` says why.

    Args:
        box: the tools that the node names.
        node: id of the node, for the policies.
        on_error: `continue` or `fail`.
    """

    def __init__(self, box: ToolBox, node: str, policies: Sequence[PolicySpec], on_error: str) -> None:
        self._box, self._node, self._policies, self._fail = box, node, policies, on_error == "fail"
        self.calls: list[JsonObject] = []
        self.fault: StageFault | None = None

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._box.specs()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if why := denial(self._policies, PolicyQuestion("tool", call.name, self._node)):
            result = ToolResult(call.id, call.name, why, False, "policy_denied")
        else:
            result = await self._box.execute(call, context)
        self.calls.append(_record(call, result))
        code = "" if result.ok else result.error
        if code == "policy_denied":
            self.fault = StageFault("policy_denied", result.content)
        elif code in MISUSE:
            self.fault = StageFault("tool_misuse", result.content)
        elif code and self._fail:
            self.fault = StageFault("tool_failed", result.content)
        if self.fault is None:
            return result
        return ToolResult(call.id, call.name, result.content, False, result.error, ends_run=True)


def _record(call: ToolCall, result: ToolResult) -> JsonObject:
    return {
        "tool": call.name,
        "arguments": call.arguments,
        "status": "success" if result.ok else "failure",
        "result": result.content,
        "error": result.error,
        "duration_ms": result.duration_ms,
    }


class StageTools:
    """The third argument of an operation: `answer = await tools.call("law_lookup", query="…")`.

    `answer.ok`, `answer.value`, `answer.error`, `answer.content`. A tool's own failure is an answer (E46);
    calling a tool that the node does not name, or with wrong arguments, fails the stage.
    """

    def __init__(self, port: StagePort, scope: Scope) -> None:
        self._port, self._scope = port, scope

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._port.specs())

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Raises: an exception that ends the stage, for misuse; not to be caught."""
        text = orjson.dumps(arguments).decode()
        call_id = uuid5(_CALLS, f"{self._scope.path}:{len(self._port.calls)}").hex
        result = await self._port.execute(
            ToolCall(call_id, name, text), self._scope.tool_context(call_id, name)
        )
        if self._port.fault is not None:
            raise self._port.fault
        return result
