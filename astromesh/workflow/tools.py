"""Tools of a workflow: tools.yaml, what one stage may call, and the policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

import orjson

from astromesh.config.workflow import BuiltinTool, PolicySpec, PythonTool
from astromesh.core.tools import approval_predicate
from astromesh.errors import ForeignError, ToolFailed
from astromesh.graph.call_record import to_lenient_json
from astromesh.graph.model_output import OutputSchema
from astromesh.graph.scope import Journal, Scope
from astromesh.plugins import Deps, Plugins
from astromesh.tools.base import Tool, ToolContext, ToolPolicy
from astromesh.tools.process_pool import Port, call_in_process, is_isolated
from astromesh.tools.toolbox import ToolBox
from astromesh.types import JsonObject, ToolCall, ToolResult, ToolSpec
from astromesh.workflow.base import StageFault
from astromesh.workflow.operations import call_function, load_operation
from astromesh.workflow.project import Project
from astromesh.workflow.questions import Ask, ToolQuestions


class PolicyRequest(NamedTuple):
    """A request of a node: for a tool, context, memory layer (`store`) or agent, or to run (`node`)."""

    target: str
    target_id: str
    node: str


def denial_reason(policies: Iterable[PolicySpec], request: PolicyRequest) -> str:
    """Returns why a request is denied, or '': explicit deny, then allow, then the default."""
    allowed, by_default = False, ""
    for policy in policies:
        for rule in policy.rules:
            if rule.target != request.target or rule.target_id not in ("*", request.target_id):
                continue
            if rule.nodes and request.node not in rule.nodes:
                continue
            if rule.action == "deny":
                reason = f": {rule.reason}" if rule.reason else ""
                return f"The policy {policy.name!r} denies {request.target} {request.target_id!r}{reason}."
            allowed = True
        if policy.default == "deny":
            by_default = (
                f"The policy {policy.name!r} does not allow {request.target} {request.target_id!r} for the "
                f"node {request.node!r}."
            )
    return "" if allowed else by_default


#: codes of results that mean misuse by the caller, not a failure of the tool
_MISUSE_CODES = frozenset({"invalid_tool_call", "tool_not_permitted", "tool_rate_limited"})
_ANY_OBJECT = {"type": "object"}


class PythonFunction:
    """`type: python`: calls a function with the arguments, in a thread unless it is a coroutine function."""

    def __init__(
        self, spec: ToolSpec, function: Callable[..., Any], project: Project, tool: PythonTool
    ) -> None:
        self.spec, self._function = spec, function
        answer = project.schema(tool.schema_out)
        self._answer = OutputSchema(dict(answer)) if answer else None
        self._folder, self._tool = project.folder, tool

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        if self._tool.isolation or is_isolated():
            result = await self._call_in_process(arguments)
        else:
            result = await call_function(self._function, **arguments)
        return result if self._answer is None else self._answer.validate(result)

    async def _call_in_process(self, arguments: dict[str, Any]) -> Any:
        payload = {"folder": str(self._folder), "function": self._tool.entrypoint, "arguments": arguments}
        try:
            return await call_in_process(
                f"{__name__}:{run_tool.__name__}", payload, max_memory_mb=self._tool.max_memory_mb or 0
            )
        except ForeignError as error:
            raise ToolFailed(f"The tool {self.spec.name!r} failed: {error}") from error


async def run_tool(payload: JsonObject, port: Port) -> Any:
    """Runs a Python tool in a worker process; see `tools.process_pool`."""
    result = load_operation(Path(payload["folder"]), payload["function"])(**payload["arguments"])
    return to_lenient_json(await result if inspect.isawaitable(result) else result)


def tool_policy(spec: PythonTool | BuiltinTool) -> ToolPolicy:
    """Returns how a tool may be used, as tools.yaml declares it."""
    rule = spec.approval
    if isinstance(rule, str):
        return ToolPolicy(timeout_seconds=spec.timeout_s, approval=rule)
    condition = approval_predicate(spec.id, rule)
    return ToolPolicy(timeout_seconds=spec.timeout_s, approval="required", approve_if=condition)


async def open_tools(project: Project, plugins: Plugins, deps: Deps) -> dict[str, Tool]:
    """Opens every tool of tools.yaml, by id, except those whose function is gone."""
    opened: dict[str, Tool] = {}
    for spec in project.tools.tools:
        with suppress(LookupError):
            opened[spec.id] = await _open_tool(project, spec, plugins, deps)
    return opened


async def _open_tool(project: Project, spec: PythonTool | BuiltinTool, plugins: Plugins, deps: Deps) -> Tool:
    arguments = project.schema(spec.schema_in) or _ANY_OBJECT
    as_seen = ToolSpec(spec.id, spec.description or spec.id, arguments, spec.effect)
    if isinstance(spec, PythonTool):
        function = load_operation(project.folder, spec.entrypoint)
        return PythonFunction(as_seen, function, project, spec)
    options = dict(spec.options)
    for key in ("root", "allow_network", "allow_shell"):
        if key in spec.model_fields_set:
            options[key] = getattr(spec, key)
    tool: Tool = await plugins.open("tools", spec.type, options, deps)
    return _RenamedTool(tool, as_seen if spec.schema_in else None, spec.id)


class _RenamedTool:
    """A tool under the id that tools.yaml gives it."""

    def __init__(self, tool: Tool, spec: ToolSpec | None, name: str) -> None:
        own = tool.spec
        self.spec = spec or ToolSpec(name, own.description, own.parameters, own.effect)
        self._tool = tool

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return await self._tool.call(arguments, context)


class StagePort:
    """The tools of one execution of a stage: checks the policies and records the calls. A `ToolPort`.

    A misuse, or a failure with `tool_on_error: fail`, ends the stage; `fault` says why.

    Args:
        box: the tools that the node names.
        node: id of the node, for the policies.
        on_error: `continue` or `fail`.
        ask: asks a person; None: the Task cannot wait for one.
        journal: of a Task that can be resumed.
    """

    def __init__(
        self,
        box: ToolBox,
        node: str,
        policies: Sequence[PolicySpec],
        on_error: str,
        ask: Ask | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._box, self._node, self._policies, self._fail = box, node, policies, on_error == "fail"
        self._ask, self._begun, self._journal = ask, 0, journal
        self.calls: list[JsonObject] = []
        self.fault: StageFault | None = None

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._box.specs()

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        if why := denial_reason(self._policies, PolicyRequest("tool", call.name, self._node)):
            result = ToolResult(call.id, call.name, why, False, "policy_denied")
        else:
            self._begun += 1
            if self._ask is not None:
                is_new = self._is_new_in_fork(call)
                context = replace(context, step=ToolQuestions(call, self._begun, self._ask, is_fork=is_new))
            result = await self._box.execute(call, context)
        self.calls.append(_call_record(call, result))
        code = "" if result.ok else result.error
        if code == "policy_denied":
            self.fault = StageFault("policy_denied", result.content)
        elif code in _MISUSE_CODES:
            self.fault = StageFault("tool_misuse", result.content)
        elif code and self._fail:
            self.fault = StageFault("tool_failed", result.content)
        if self.fault is None:
            return result
        return ToolResult(call.id, call.name, result.content, False, result.error, ends_run=True)

    def _is_new_in_fork(self, call: ToolCall) -> bool:
        journal = self._journal
        return journal is not None and journal.is_fork and journal.effect_of(call) is None


def _call_record(call: ToolCall, result: ToolResult) -> JsonObject:
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

    The result has `ok`, `value`, `error` and `content`. A tool's own failure is a result. Calling a
    tool that the node does not name, or with wrong arguments, fails the stage.
    """

    def __init__(self, port: StagePort, scope: Scope) -> None:
        self._port, self._scope, self._begun = port, scope, 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._port.specs())

    @property
    def fault(self) -> StageFault | None:
        """Why the stage fails, if a call was misuse."""
        return self._port.fault

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Calls a tool.

        Raises:
            StageFault: misuse, which ends the stage. Operations must not catch it.
        """
        text = orjson.dumps(arguments).decode()
        call_id = uuid5(NAMESPACE_OID, f"{self._scope.path}:{self._begun}").hex
        self._begun += 1
        result = await self._port.execute(
            ToolCall(call_id, name, text), self._scope.tool_context(call_id, name)
        )
        if self._port.fault is not None:
            raise self._port.fault
        return result
