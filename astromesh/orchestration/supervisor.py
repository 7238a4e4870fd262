"""supervisor: decomposes a task, delegates to worker agents, collects (document 001, step 7).

decompose   offers the workers to the planner as tools: it calls them, or writes its delegations as JSON
delegate    runs the workers as nested runs, independent ones concurrently, and the run's own tools
answer      the supervisor answers, or asks for more and delegates again

A round makes at most `MAX_TASKS` delegations. It makes none whose results are not read.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self

import orjson
from msgspec import structs
from pydantic import Field

from astromesh.errors import (
    AstromeshError,
    DeadlineExceeded,
    IterationsExhausted,
    ToolError,
    ToolFailed,
    ToolTimeout,
)
from astromesh.graph.base import BaseNode
from astromesh.graph.calls import tool_message
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.model_output import extract_values, whole_object
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes import PromptNode, SynthesizeNode
from astromesh.graph.records import NodeResult
from astromesh.graph.runner import together
from astromesh.graph.scope import Scope
from astromesh.graph.state import GraphState
from astromesh.orchestration.base import Outcome, PatternTask
from astromesh.orchestration.patterns import (
    NOTES,
    GraphPattern,
    PatternOptions,
    agents_of,
    best_fit,
    isolated_state,
)
from astromesh.plugins import Deps
from astromesh.providers.base import ModelPort
from astromesh.tools.base import NestedRunOptions, RunAgent, ToolContext, ToolPort
from astromesh.tools.toolbox import JoinedTools, ToolBox
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    JsonObject,
    Message,
    ToolCall,
    ToolResult,
    ToolSpec,
)

# -- workers and assignments -------------------------------------------------------------------------------


class WorkerTool:
    """A worker agent as a tool of its supervisor.

    Args:
        agent: The name of the agent and of the tool.
        description: The purpose of the agent.
        run_agent: Runs it.
        terms: The options of its runs.
    """

    def __init__(self, agent: str, description: str, run_agent: RunAgent, terms: NestedRunOptions) -> None:
        task = {"type": "string", "description": "What to do, with everything it needs to know."}
        schema = {"type": "object", "properties": {"task": task}, "required": ["task"]}
        about = f"Delegates a task to the agent {agent}. {description}".strip()
        self.spec = ToolSpec(agent, about, schema, "external", repeatable=True)
        self._run, self._terms = run_agent, terms
        self._active: set[int] = set()

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Runs the worker.

        Raises:
            ToolTimeout, ToolFailed: The run of the worker failed. The supervisor sees the reason.
        """
        name = self.spec.name
        place = next(n for n in count(1) if n not in self._active)
        self._active.add(place)
        if place > 1:  # concurrent runs have separate sessions
            context = replace(context, tool=f"{name}-{place}")
        try:
            answer = await self._run(name, arguments["task"], {}, context, self._terms)
        except ToolError:
            raise
        except DeadlineExceeded as error:
            raise ToolTimeout(f"The agent {name!r} did not finish in time: {error}") from error
        except AstromeshError as error:
            raise ToolFailed(f"The agent {name!r} failed ({error.code}): {error}") from error
        finally:
            self._active.discard(place)
        return answer["response"]


class Assignment(NamedTuple):
    """A task for a worker. `after` holds the numbers, from 1, of the assignments whose results it needs."""

    worker: str
    task: str
    after: tuple[int, ...] = ()


def parse_assignments(text: str, workers: Mapping[str, str]) -> list[Assignment] | None:
    """Returns the assignments that a text holds as JSON, or None if it holds none.

    The closest name replaces a misspelled one. An unknown name goes to the worker that fits the task best.

    Args:
        text: A model's answer.
        workers: The descriptions by name.
    """
    for value in extract_values(text):
        listed = value.get("delegate") if isinstance(value, dict) else value
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            continue
        if not listed and not isinstance(value, dict):
            continue
        found = [_parse_assignment(item, number, workers) for number, item in enumerate(listed, 1)]
        if all(found):
            return [assignment for assignment in found if assignment]
    return None


def _parse_assignment(item: Mapping[str, Any], number: int, workers: Mapping[str, str]) -> Assignment | None:
    task = item.get("task")
    if not isinstance(task, str) or not task.strip():
        return None
    after = item.get("after", ())
    earlier = [n for n in after if type(n) is int and 0 < n < number] if isinstance(after, list) else []
    return Assignment(_match_worker(str(item.get("worker", "")), task, workers), task.strip(), tuple(earlier))


def _match_worker(name: str, task: str, workers: Mapping[str, str]) -> str:
    folded = {name.casefold(): name for name in workers}
    near = difflib.get_close_matches(name.casefold(), folded, 1, 0.8)
    return folded[near[0]] if near else best_fit(task, workers)


def execution_waves(assignments: Sequence[Assignment]) -> list[list[int]]:
    """Returns groups of positions that can run concurrently. Each assignment comes after those it needs."""
    depth: list[int] = []
    for assignment in assignments:
        depth.append(1 + max((depth[n - 1] for n in assignment.after), default=-1))
    return [[i for i, d in enumerate(depth) if d == level] for level in range(max(depth, default=-1) + 1)]


#: The limit of delegations of one round.
MAX_TASKS = 32
_TOO_MANY = f"At most {MAX_TASKS} tasks are delegated at a time. This one was not delegated."
_CUT = "{} further tasks were not delegated: at most {} are delegated at a time."


class Supervisor(GraphPattern):
    """A supervisor decomposes a task, delegates to worker agents, and collects the results.

    Args:
        workers: The descriptions by name.
        max_parallel: The limit of workers that run concurrently.
        run_agent: Runs an agent.
    """

    class Options(PatternOptions):
        workers: tuple[str, ...] = Field(min_length=1, description="The agents that do the work.")
        max_parallel: int = Field(4, ge=1, description="The limit of workers that run concurrently.")

    def __init__(self, workers: Mapping[str, str], max_parallel: int, run_agent: RunAgent) -> None:
        super().__init__(partial(supervisor_graph, workers, max_parallel), lambda task: Delegations())
        self._workers, self._run_agent = workers, run_agent

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Self:
        """Opens the pattern. Raises ConfigError if there is no runtime that runs agents."""
        run_agent, workers = agents_of(deps, options.workers, "supervisor")
        return cls(workers, options.max_parallel, run_agent)

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        terms = NestedRunOptions(max_iterations=task.max_iterations)
        workers = [WorkerTool(n, about, self._run_agent, terms) for n, about in self._workers.items()]
        return await super().run(task, model, JoinedTools(ToolBox(workers, timeout=None), tools), scope)


def supervisor_graph(workers: Mapping[str, str], max_parallel: int, max_iterations: int) -> PromptGraph:
    """Returns the graph that the docstring of this module describes.

    Args:
        workers: The descriptions by name.
        max_parallel: The limit of workers that run concurrently.
        max_iterations: The limit of rounds of the supervisor.
    """
    critical = {NodeFlag.CRITICAL}
    graph = PromptGraph("supervisor")
    graph.add_node(Decompose(workers))
    graph.add_node(Delegate("delegate", workers, max_parallel))
    graph.add_node(SupervisorAnswer(workers, max_iterations, flags=critical))
    graph.set_entry("decompose").always("decompose", "delegate").always("delegate", "answer")
    return graph.on_tool_call("answer", "delegate").on_output("answer", "delegate", "again", True)


@dataclass(slots=True)
class Delegations:
    """The delegations of a run, and the rounds of the supervisor.

    Args:
        requested: The assignments that the model wrote and that are carried out next.
        as_text: Whether the model writes its delegations instead of calling tools.
    """

    delegated: list[tuple[str, bool]] = field(default_factory=list)
    rounds: int = 0
    call_count: int = 0
    requested: list[Assignment] = field(default_factory=list)
    as_text: bool = False

    def metadata(self) -> JsonObject:
        return {"delegations": [{"agent": agent, "ok": ok} for agent, ok in self.delegated]}


# -- decompose ---------------------------------------------------------------------------------------------
class Decompose(BaseNode):
    """Asks for delegations: tool calls, or JSON, which it records.

    Args:
        workers: The descriptions by name.
    """

    def __init__(self, workers: Mapping[str, str]) -> None:
        super().__init__("decompose", flags={NodeFlag.CRITICAL})
        self.workers = workers
        self.prompt = PromptNode(
            "assign",
            role="planner",
            instructions=_DECOMPOSE,
            model_override="planner",
            inject_tools=True,
            tool_loop=False,
            routing="edges_only",
        )

    def children(self) -> Iterable[BaseNode]:
        return (self.prompt,)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        own = isolated_state(state, state.messages)
        result = await config.run(self.prompt, own)
        if result.error:
            return NodeResult(self.name, error=result.error, exception=result.exception)
        if result.tool_calls:
            requests = own.messages[len(state.messages) :]
            return NodeResult(self.name, is_answer=False, messages_added=requests)
        notes: Delegations = config[NOTES]
        found = parse_assignments(str(result.raw_output), self.workers)
        notes.as_text = found is not None
        if found is None:  # the whole task goes to the worker that fits it best
            found = [Assignment(best_fit(state.question, self.workers), state.question)]
        notes.requested = found
        return NodeResult(self.name, {"tasks": len(found)}, is_answer=False)


_DECOMPOSE = (
    "You lead workers; each is one of your tools that takes a `task`. Do not answer yet: break the question "
    "into tasks, each for the worker it fits and with everything that worker needs to know. Call the workers "
    "of all tasks that are independent at once. If you cannot call tools, answer with one JSON object: "
    '{"delegate": [{"worker": "NAME", "task": "TASK", "after": [NUMBERS OF TASKS WHOSE RESULTS IT NEEDS]}]}. '
    'If nobody is needed, answer {"delegate": []}.'
)


# -- delegate ----------------------------------------------------------------------------------------------
class Delegate(BaseNode):
    """Carries out the calls of the last message, or the assignments that the model wrote.

    The conversation holds the results as those of tool calls.

    Args:
        workers: The descriptions by name.
        max_parallel: The limit of calls that run concurrently.
    """

    def __init__(self, name: str, workers: Mapping[str, str], max_parallel: int) -> None:
        super().__init__(name, inject_tools=True)
        self.workers, self.max_parallel = workers, max_parallel

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        pending = state.messages[-1].tool_calls if state.messages[-1].role == "assistant" else ()
        if pending:
            results = await self._call(pending, state, config)
            return NodeResult(self.name, is_answer=False, messages_added=[tool_message(r) for r in results])
        notes: Delegations = config[NOTES]
        requested, notes.requested = notes.requested, []
        calls, results = await self._assign(requested[:MAX_TASKS], state, config)
        if cut := len(requested) - len(calls):
            content = f"{results[-1].content}\n\n{_CUT.format(cut, MAX_TASKS)}"
            results[-1] = structs.replace(results[-1], content=content)
        call_message = [Message("assistant", "", tuple(calls))] if calls else []
        return NodeResult(
            self.name, is_answer=False, messages_added=[*call_message, *map(tool_message, results)]
        )

    async def _assign(
        self, assignments: Sequence[Assignment], state: GraphState, config: NodeConfig
    ) -> tuple[list[ToolCall], list[ToolResult]]:
        calls: dict[int, ToolCall] = {}
        results: dict[int, ToolResult] = {}
        for wave in execution_waves(assignments):
            for i in wave:
                needed = [results[n - 1].content for n in assignments[i].after]
                calls[i] = _tool_call(assignments[i], needed, config[NOTES])
            done = await self._call([calls[i] for i in wave], state, config)
            results.update(zip(wave, done, strict=True))
        places = range(len(assignments))
        return [calls[i] for i in places], [results[i] for i in places]

    async def _call(
        self, calls: Sequence[ToolCall], state: GraphState, config: NodeConfig
    ) -> list[ToolResult]:
        free = asyncio.Semaphore(self.max_parallel)

        async def one(call: ToolCall) -> ToolResult:
            async with free:
                return (await config.call_tools((call,), state))[0]

        results = await together([one(call) for call in calls[:MAX_TASKS]])
        notes: Delegations = config[NOTES]
        notes.delegated += [(result.name, result.ok) for result in results if result.name in self.workers]
        refused = (ToolResult(c.id, c.name, _TOO_MANY, False, "too_many_calls") for c in calls[MAX_TASKS:])
        return [*results, *refused]


def _tool_call(assignment: Assignment, needed: Sequence[str], notes: Delegations) -> ToolCall:
    notes.call_count += 1
    known = "\n\n".join(needed)
    task = f"{assignment.task}\n\n## What is known\n{known}" if known else assignment.task
    return ToolCall(f"delegate_{notes.call_count}", assignment.worker, orjson.dumps({"task": task}).decode())


# -- answer ------------------------------------------------------------------------------------------------
class SupervisorAnswer(SynthesizeNode):
    """Writes the answer from the results of the workers, or asks for more.

    Delegations of its last call are not carried out, because the results are not read.

    Args:
        workers: The descriptions by name.
        max_rounds: The limit of calls of the supervisor.
    """

    decides_streaming = True

    def __init__(self, workers: Mapping[str, str], max_rounds: int, **keywords: Any) -> None:
        super().__init__("answer", inject_tools=True, tool_loop=False, routing="edges_only", **keywords)
        self.workers, self.max_rounds = workers, max_rounds

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        notes: Delegations = config[NOTES]
        notes.rounds += 1
        result = await super().execute(state, config)
        text = str(result.raw_output or "")
        again = not result.tool_calls and self._delegates(text)
        if not (result.tool_calls or again):
            return result
        if notes.rounds >= self.max_rounds:
            if result.tool_calls and text:
                state.messages.append(Message("assistant", text))
            raise IterationsExhausted(f"The supervisor has used up its {self.max_rounds} rounds.")
        if result.tool_calls:
            return result
        notes.requested = parse_assignments(text, self.workers) or []
        return NodeResult(self.name, {"again": True}, is_answer=False)

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        """Lets a model that writes its delegations write more of them. Listeners see answers alone."""
        notes: Delegations = config[NOTES]
        if not notes.as_text:
            return super()._ask(request, config)
        system, *others = request.messages
        instructed = structs.replace(system, content=f"{system.content}\n\n{_AGAIN}")
        return config.complete(
            structs.replace(request, messages=(instructed, *others)),
            role=self._event_role,
            visible_text=lambda result: "" if self._delegates(result.content) else result.content,
        )

    def _delegates(self, text: str) -> bool:
        """Whether a text delegates, or is JSON that was meant to."""
        alone = whole_object(text)
        if alone is not None and "delegate" in alone:
            return True
        has_delegate = any(isinstance(found, dict) and "delegate" in found for found in extract_values(text))
        return has_delegate and bool(parse_assignments(text, self.workers))


_AGAIN = (
    "If something that you need is still missing, answer with nothing but the JSON object that delegates "
    'further tasks: {"delegate": [{"worker": "NAME", "task": "TASK"}]}. Otherwise write the answer.'
)
